// Launching: the launcher with a script that plays mpirun, and real processes. Used by
// mpirun_launcher_test.cc and adoption_test.cc. One thread.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/platform/process.h"
#include "coordinator/launcher/mpirun_launcher.h"
#include "tests/coordinator/scratch_folder.h"
#include "tests/coordinator/wait_until.h"

namespace espalier {

inline const GenerationKey kKey = {JobId("job-1"), Generation(1)};
inline const ProcessIdentity kDead = {getpid(), "another-boot/1"};  // gone

class Launching : public ::testing::Test {
 protected:
  Launching() {
    v1::NodeSpec& node = *cluster_.add_nodes();
    node.set_name("a");
    node.set_address("127.0.0.1");
    cluster_.mutable_launcher()->set_remote_shell(
        folder_.WriteScript("shell", "#!/bin/sh\necho \"$@\" >> " + folder_.path("shell.log")));
  }

  std::unique_ptr<MpirunLauncher> Make(const std::string& script) {
    return MakeWith(folder_.WriteScript("mpirun", "#!/bin/sh\n" + script));
  }
  std::unique_ptr<MpirunLauncher> MakeWith(const std::string& mpirun) {
    cluster_.mutable_launcher()->set_mpirun(mpirun);
    return std::make_unique<MpirunLauncher>(
        MpirunLauncherOptions{.cluster = &cluster_,
                              .default_worker = "/opt/espalier-worker",
                              .agents = agents_,
                              .agent_program = "/opt/espalier-agent",
                              .state_dir = folder_.root(),
                              .version = [this] { return version_; },
                              .grace = absl::Milliseconds(200),
                              .signal_session = signal_session_,
                              .networks = networks_});
  }
  LaunchRequest Request() { return {.key = kKey, .nodes = {NodeName("a")}}; }
  ProcessIdentity Start(MpirunLauncher& launcher) {
    absl::StatusOr<ProcessIdentity> process = launcher.Prepare(Request());
    EXPECT_TRUE(process.ok()) << process.status();
    launcher.Release(kKey);
    return *process;
  }
  // The reason of the end, which must come.
  std::string AwaitEnd(MpirunLauncher& launcher) {
    std::vector<LaunchEnded> ended;
    EXPECT_TRUE(WaitUntil([&] {
      ended = launcher.Poll(RealClock().Monotonic());
      return !ended.empty();
    }));
    EXPECT_EQ(ended.size(), 1u);
    EXPECT_TRUE(launcher.Poll(RealClock().Monotonic()).empty()) << "reported once";
    if (ended.empty()) return "";
    ended_ = ended[0];
    unconfirmed_ = ended[0].unconfirmed;
    return ended[0].reason;
  }
  std::string GenerationLog() { return folder_.Read("jobs/job-1/logs/gen-0001.log"); }

  ScratchFolder folder_;
  v1::ClusterSpec cluster_;
  NodeAgents* agents_ = nullptr;
  OpenMpiVersion version_ = OpenMpiVersion::kFour;
  std::function<std::vector<LocalNetwork>()> networks_ = LocalNetworks;
  std::function<int(const ProcessIdentity&, int)> signal_session_ = SignalSession;
  LaunchEnded ended_;  // as it was awaited last
  std::vector<NodeName> unconfirmed_;
};

}  // namespace espalier
