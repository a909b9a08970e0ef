// espalierd as a process of its own, with a state folder that survives it, and a client. Used by
// agents_test.cc, espalierd_test.cc and prometheus_test.cc.
#pragma once

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/platform/process.h"
#include "coordinator/journal/sqlite_journal.h"
#include "espalier/v1/operator.grpc.pb.h"
#include "tests/coordinator/scratch_folder.h"
#include "tests/coordinator/service/local_server.h"
#include "tests/coordinator/wait_until.h"

namespace espalier {

class EspalierdProcess {
 public:
  EspalierdProcess();
  // Ends espalierd and every generation that it left running.
  ~EspalierdProcess();

  // Lets jobs write to a folder beside the state folder; before Start.
  void Allow(const std::string& folder) const;
  // Starts it and waits until it answers.
  void Start();
  // Starts it, without waiting.
  void Spawn();
  void Kill() { End(SIGKILL); }
  // Asks it to stop, and gives its exit status.
  int Terminate();
  // Has it load its certificates again.
  void Hangup() { kill(static_cast<pid_t>(identity_->pid), SIGHUP); }
  bool running() const { return identity_ && IsAlive(*identity_); }

  // Submits a job of so many steps on both nodes, with a checkpoint every 50; its id.
  struct Job {
    int64_t steps = 200;
    // Name of the data folder; see stub_worker_main.cc.
    std::string data = "data";
    int32_t max_restarts = 5;
    std::string request_id;
  };
  v1::SubmitRequest MakeSubmission(const Job& job) const;
  std::string Submit(const Job& job);
  v1::OperatorService::Stub& stub() { return *stub_; }
  std::optional<v1::JobStatus> Status(const std::string& job);
  // Waits until the job is in the state; its status then. Fails when another final one comes first.
  v1::JobStatus Await(const std::string& job, v1::JobState state);
  v1::JobStatus AwaitStep(const std::string& job, int64_t step);

  std::string metrics_address() const { return Address("metrics="); }
  // The mpirun that the journal knows; the newest of several.
  ProcessIdentity LaunchedProcess() const;
  const ScratchFolder& folder() const { return folder_; }
  std::string state(const std::string& name) const { return folder_.path("state/" + name); }
  std::string log() const { return folder_.Read("espalierd.log"); }

 private:
  void End(int signal);
  // How many starts the log tells of.
  int CountListening() const;
  std::string Address(const std::string& key) const;

  ScratchFolder folder_;
  std::optional<ProcessIdentity> identity_;
  int listening_before_ = 0;
  std::unique_ptr<v1::OperatorService::Stub> stub_;
};

}  // namespace espalier
