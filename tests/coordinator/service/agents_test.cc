// espalierd, agents, mpirun and (stub) workers as the processes they are: two nodes on loopback,
// each with its agent and Open MPI daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "tests/coordinator/service/espalierd_process.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const char* const kNodes[] = {"left", "right"};
// Far more than a test waits for.
constexpr int64_t kForEver = 1000000;

class Agents : public ::testing::Test {
 protected:
  Agents() {
    daemon_.folder().Write("cluster.yaml", absl::StrCat("metrics_listen: 127.0.0.1:0\n"
                                                        "launcher: {worker: ",
                                                        BinFolder(),
                                                        "/../tests/stub_worker}\n"
                                                        "nodes:\n"
                                                        "  - {name: left, address: 127.0.0.1}\n"
                                                        "  - {name: right, address: 127.0.0.2}\n"));
  }
  ~Agents() override {
    for (const auto& [node, agent] : agents_) KillAgent(node);
    for (const ProcessIdentity& daemon : daemons_) {
      WaitUntil([&] { return SignalSession(daemon, SIGKILL) == 0; });
    }
  }

  static std::string BinFolder() {
    const char* bin = std::getenv("ESPALIER_BIN");
    return bin == nullptr ? "." : bin;
  }
  std::string AgentFile(const std::string& node, const std::string& name) const {
    return absl::StrCat("agent-", node, "/", name);
  }
  void StartAgent(const std::string& node) {
    absl::StatusOr<GatedProcess> process =
        GatedProcess::Spawn({.argv = {BinFolder() + "/espalier-agent", "run", "--coordinator",
                                      daemon_.folder().path("state"), "--node", node, "--state-dir",
                                      daemon_.folder().path("agent-" + node)},
                             .log_path = daemon_.folder().path("agent-" + node + ".log")});
    ASSERT_TRUE(process.ok()) << process.status();
    const int before = CountAttached(node);
    process->Release();
    agents_[node] = process->identity();
    ASSERT_TRUE(WaitUntil([&] { return CountAttached(node) > before; })) << AgentLog(node);
  }
  void KillAgent(const std::string& node) {
    const ProcessIdentity agent = agents_[node];
    if (agent.pid > 0) kill(static_cast<pid_t>(agent.pid), SIGKILL);
    EXPECT_TRUE(WaitUntil([&] { return !IsAlive(agent); }));
  }
  std::string AgentLog(const std::string& node) const {
    return daemon_.folder().Read("agent-" + node + ".log");
  }
  int CountAttached(const std::string& node) const {
    std::istringstream log(AgentLog(node));
    int count = 0;
    for (std::string line; std::getline(log, line);) {
      count += line.find(" attached to espalierd") != std::string::npos;
    }
    return count;
  }
  void StartAll() {
    daemon_.Start();
    for (const char* node : kNodes) StartAgent(node);
  }
  // Open MPI's daemon on the node, as its agent has recorded it.
  ProcessIdentity DaemonOf(const std::string& node, const std::string& job, int generation) {
    ProcessIdentity daemon;
    std::istringstream record(daemon_.folder().Read(
        AgentFile(node, absl::StrCat("generations/", job, ".", generation, "/record"))));
    record >> daemon.pid >> daemon.start;
    EXPECT_TRUE(IsAlive(daemon)) << node << ": " << AgentLog(node);
    daemons_.push_back(daemon);
    return daemon;
  }
  bool NothingIsLeft() {
    for (const ProcessIdentity& daemon : daemons_) {
      if (SignalSession(daemon, 0) > 0) return false;
    }
    return true;
  }
  void Cancel(const std::string& job) {
    BoundedContext context;
    v1::CancelRequest request;
    v1::CancelResponse response;
    request.set_job_id(job);
    EXPECT_TRUE(daemon_.stub().Cancel(&context, request, &response).ok());
    daemon_.Await(job, v1::JOB_STATE_CANCELLED);
  }
  void ExpectNoFoldersLeft() {
    for (const char* node : kNodes) {
      EXPECT_TRUE(std::filesystem::is_empty(daemon_.folder().path(AgentFile(node, "generations"))))
          << node;
    }
  }
  // The job's next generation advances after `pid` was killed, and nothing of the first one lives
  // by then.
  void ExpectRecoveryAfterKilling(int64_t pid, const std::string& job) {
    kill(static_cast<pid_t>(pid), SIGKILL);
    v1::JobStatus status;
    EXPECT_TRUE(WaitUntil([&] {
      if (const auto now = daemon_.Status(job)) status = *now;
      return status.generation() > 1;
    }));
    EXPECT_TRUE(NothingIsLeft());
    status = daemon_.AwaitStep(job, status.step() + 60);
    for (const char* node : kNodes) DaemonOf(node, job, static_cast<int>(status.generation()));
    Cancel(job);
    EXPECT_TRUE(NothingIsLeft());
    ExpectNoFoldersLeft();
  }

  EspalierdProcess daemon_;
  std::map<std::string, ProcessIdentity> agents_;
  std::vector<ProcessIdentity> daemons_;
};

TEST_F(Agents, AJobRunsThroughTheAgentsOfItsNodesToItsEnd) {
  StartAll();
  const std::string job = daemon_.Submit({.steps = 400});
  daemon_.AwaitStep(job, 1);
  for (const char* node : kNodes) DaemonOf(node, job, 1);
  const v1::JobStatus status = daemon_.Await(job, v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(status.generation(), 1);
  EXPECT_TRUE(NothingIsLeft());
  ExpectNoFoldersLeft();
}

TEST_F(Agents, AKilledWorkerLeavesNothingBehind) {
  StartAll();
  const std::string job = daemon_.Submit({.steps = kForEver});
  const v1::JobStatus status = daemon_.AwaitStep(job, 60);
  for (const char* node : kNodes) DaemonOf(node, job, 1);
  ExpectRecoveryAfterKilling(status.ranks(1).pid(), job);
}

TEST_F(Agents, AKilledDaemonLeavesNothingBehind) {
  StartAll();
  const std::string job = daemon_.Submit({.steps = kForEver});
  daemon_.AwaitStep(job, 60);
  DaemonOf("left", job, 1);
  ExpectRecoveryAfterKilling(DaemonOf("right", job, 1).pid, job);
}

TEST_F(Agents, AKilledMpirunLeavesNothingBehind) {
  StartAll();
  const std::string job = daemon_.Submit({.steps = kForEver});
  daemon_.AwaitStep(job, 60);
  for (const char* node : kNodes) DaemonOf(node, job, 1);
  ExpectRecoveryAfterKilling(daemon_.LaunchedProcess().pid, job);
}

TEST_F(Agents, AKilledAgentIsNotNoticedByTheGenerationAndTheNextOneEndsIt) {
  StartAll();
  const std::string job = daemon_.Submit({.steps = kForEver});
  v1::JobStatus status = daemon_.AwaitStep(job, 60);
  for (const char* node : kNodes) DaemonOf(node, job, 1);
  KillAgent("right");
  status = daemon_.AwaitStep(job, status.step() + 60);
  EXPECT_EQ(status.generation(), 1);
  StartAgent("right");
  status = daemon_.AwaitStep(job, status.step() + 60);
  EXPECT_EQ(status.generation(), 1);
  Cancel(job);
  EXPECT_TRUE(NothingIsLeft());
  ExpectNoFoldersLeft();
}

TEST_F(Agents, InvariantJournalThenAct_AKilledEspalierdIsNotNoticedByTheGeneration) {
  StartAll();
  const std::string job = daemon_.Submit({.steps = kForEver});
  v1::JobStatus status = daemon_.AwaitStep(job, 60);
  for (const char* node : kNodes) DaemonOf(node, job, 1);
  daemon_.Kill();
  daemon_.Start();
  status = daemon_.AwaitStep(job, status.step() + 60);
  EXPECT_EQ(status.generation(), 1);
  Cancel(job);
  EXPECT_TRUE(WaitUntil([&] { return NothingIsLeft(); }));
}

TEST_F(Agents, WhatEspalierdForgotMeanwhileIsEndedWhenTheAgentComesBack) {
  StartAll();
  const std::string job = daemon_.Submit({.steps = kForEver});
  daemon_.AwaitStep(job, 60);
  for (const char* node : kNodes) DaemonOf(node, job, 1);
  KillAgent("right");
  daemon_.Kill();
  SignalSession(daemon_.LaunchedProcess(), SIGKILL);
  daemon_.Start();
  StartAgent("right");
  EXPECT_TRUE(WaitUntil([&] { return NothingIsLeft(); }));
}

TEST_F(Agents, ASecondAgentOfANodeIsToldSo) {
  StartAll();
  absl::StatusOr<GatedProcess> other =
      GatedProcess::Spawn({.argv = {BinFolder() + "/espalier-agent", "run", "--coordinator",
                                    daemon_.folder().path("state"), "--node", "left", "--state-dir",
                                    daemon_.folder().path("agent-other")},
                           .log_path = daemon_.folder().path("agent-other.log")});
  ASSERT_TRUE(other.ok()) << other.status();
  other->Release();
  EXPECT_TRUE(WaitUntil([&] {
    return absl::StrContains(daemon_.folder().Read("agent-other.log"), "another agent");
  })) << daemon_.folder().Read("agent-other.log");
  kill(static_cast<pid_t>(other->identity().pid), SIGTERM);
  EXPECT_TRUE(WaitUntil([&] { return !IsAlive(other->identity()); }));
  EXPECT_EQ(CountAttached("left"), 1) << "the first one stays";
}

TEST_F(Agents, AnAgentOfAnUnknownNodeEndsWithTheReason) {
  daemon_.Start();
  absl::StatusOr<GatedProcess> agent =
      GatedProcess::Spawn({.argv = {BinFolder() + "/espalier-agent", "run", "--coordinator",
                                    daemon_.folder().path("state"), "--node", "nobody",
                                    "--state-dir", daemon_.folder().path("agent-nobody")},
                           .log_path = daemon_.folder().path("agent-nobody.log")});
  ASSERT_TRUE(agent.ok()) << agent.status();
  agent->Release();
  EXPECT_TRUE(WaitUntil([&] { return !IsAlive(agent->identity()); }));
  EXPECT_THAT(daemon_.folder().Read("agent-nobody.log"), HasSubstr("nobody"));
}

}  // namespace
}  // namespace espalier
