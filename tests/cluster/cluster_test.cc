// The system on real parts: what one person with two machines relies on.
#include "tests/cluster/cluster.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <set>
#include <thread>

namespace espalier::cluster {
namespace {

class ClusterTest : public testing::Test {
 protected:
  static int64_t ResidentBytes(int pid) {
    std::ifstream statm("/proc/" + std::to_string(pid) + "/statm");
    int64_t total = 0, resident = 0;
    statm >> total >> resident;
    return resident * 4096;
  }

  Cluster cluster_;
};

// TCP connections between the two machines that have carried more than `bytes` each way or the
// other, as the kernel counts them, less those of gRPC and mpirun itself.
int BusyConnections(const Cluster& cluster, int pid, int64_t bytes) {
  const std::string text = cluster.On("studio", "ss -tinpH state established dst 10.77.0.2").output;
  int busy = 0;
  bool ours = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("users:") != std::string::npos) {
      ours = line.find("pid=" + std::to_string(pid) + ",") != std::string::npos;
    }
    const size_t sent = line.find("bytes_sent:");
    if (!ours || sent == std::string::npos) continue;
    const size_t received = line.find("bytes_received:");
    const int64_t total =
        std::stoll(line.substr(sent + 11)) +
        (received == std::string::npos ? 0 : std::stoll(line.substr(received + 15)));
    busy += total > bytes;
  }
  return busy;
}

TEST_F(ClusterTest, FourLinksAreConfirmedAndEachDirectionHasItsOwn) {
  // Large enough for messages that Open MPI does not send eagerly over its first connection.
  const std::string job = cluster_.RunningJob(
      {"model.hidden_size=512", "model.intermediate_size=4096", "train.global_batch=2"});
  const std::string log = cluster_.Cli("logs " + job).output;
  EXPECT_NE(log.find("4 links"), std::string::npos) << log;
  cluster_.WaitForStepAfter(job, 20);
  // Open MPI's default protocol gives each direction one connection and leaves the others idle
  // (worker/collective/README.md); one shared connection would mean that the links are not there.
  EXPECT_GE(BusyConnections(cluster_, cluster_.Pids(job)[0], 1 << 20), 2)
      << cluster_.On("studio", "ss -tinpH state established dst 10.77.0.2").output;
}

TEST_F(ClusterTest, ASoftPauseKeepsMemoryAndStopsSteps) {
  const std::string job = cluster_.RunningJob();
  const std::vector<int> pids = cluster_.Pids(job);
  EXPECT_EQ(cluster_.Cli("pause " + job).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(job, "PAUSED_SOFT"));
  const int64_t step = cluster_.StepOf(job);
  const int64_t memory = ResidentBytes(pids[0]);
  EXPECT_FALSE(Eventually([&] { return cluster_.StepOf(job) > step; }, 3)) << "a paused job moved";
  EXPECT_GT(ResidentBytes(pids[0]), memory / 2);
  EXPECT_EQ(cluster_.Cli("resume " + job).exit_code, 0);
  EXPECT_TRUE(cluster_.WaitForStepAfter(job, step));
  EXPECT_EQ(cluster_.Pids(job), pids) << "the same processes go on";
}

TEST_F(ClusterTest, AHardPauseFreesTheNodesAndResumesFromItsCheckpoint) {
  const std::string job = cluster_.RunningJob();
  const std::vector<int> pids = cluster_.Pids(job);
  EXPECT_EQ(cluster_.Cli("pause --hard " + job).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(job, "PAUSED_HARD"));
  for (int pid : pids) EXPECT_FALSE(Alive(pid)) << pid;
  const int64_t step = cluster_.StepOf(job);
  EXPECT_EQ(cluster_.Cli("resume " + job).exit_code, 0);
  EXPECT_TRUE(cluster_.WaitForStepAfter(job, step));
  EXPECT_EQ(cluster_.Job(job).value("restarts", 0), 0) << "a pause is no failure";
}

TEST_F(ClusterTest, AKilledWorkerIsReplacedAndTheRunGoesOn) {
  const std::string job = cluster_.RunningJob({"checkpoint.every_steps=20"});
  cluster_.WaitForStepAfter(job, 25);
  kill(cluster_.Pids(job)[1], SIGKILL);
  EXPECT_TRUE(Eventually([&] { return cluster_.Job(job).value("restarts", 0) == 1; }));
  EXPECT_TRUE(cluster_.WaitForStepAfter(job, cluster_.StepOf(job) + 20)) << "the run goes on";
  EXPECT_NE(cluster_.Cli("events " + job).output.find("rank 1"), std::string::npos);
}

TEST_F(ClusterTest, AFrozenWorkerIsNamedAndReplaced) {
  const std::string job = cluster_.RunningJob({"checkpoint.every_steps=20"});
  const int frozen = cluster_.Pids(job)[1];
  kill(frozen, SIGSTOP);
  EXPECT_TRUE(Eventually([&] { return cluster_.Job(job).value("restarts", 0) == 1; }))
      << cluster_.Story(job);
  EXPECT_TRUE(cluster_.WaitForStepAfter(job, cluster_.StepOf(job) + 5));
  const std::string events = cluster_.Cli("events " + job).output;
  EXPECT_NE(events.find("rank 1"), std::string::npos) << events;
  EXPECT_NE(events.find("macbook"), std::string::npos) << events;
  EXPECT_TRUE(Eventually([&] { return !Alive(frozen); })) << "the frozen process must be ended";
}

TEST_F(ClusterTest, WhoFollowsAJobOverTlsGoesOnWhenTheCoordinatorIsBack) {
  const std::string job = cluster_.RunningJob();
  const std::string seen = cluster_.folder() + "/watched";
  Must("touch " + seen);
  std::thread watch([&] { cluster_.Cli("watch " + job + " > " + seen + " 2>&1"); });
  const auto lines_after = [&](const std::string& mark) {
    return Shell("sed -e '1,/" + mark + "/d' " + seen).output;
  };
  EXPECT_TRUE(Eventually([&] { return !Shell("grep RUNNING " + seen).output.empty(); }));
  cluster_.KillCoordinator();
  EXPECT_TRUE(Eventually([&] { return !Shell("grep 'went away' " + seen).output.empty(); }));
  cluster_.StartCoordinator();
  EXPECT_TRUE(
      Eventually([&] { return lines_after("went away").find("RUNNING") != std::string::npos; }, 30))
      << Shell("cat " + seen).output;
  EXPECT_EQ(cluster_.Cli("cancel " + job).exit_code, 0);
  watch.join();
}

TEST_F(ClusterTest, AKilledCoordinatorFindsItsJobStillTraining) {
  const std::string job = cluster_.RunningJob();
  const std::vector<int> pids = cluster_.Pids(job);
  cluster_.KillCoordinator();
  for (int pid : pids) EXPECT_TRUE(Alive(pid)) << "a running generation does not even notice";
  cluster_.StartCoordinator();
  cluster_.WaitForState(job, "RUNNING");
  EXPECT_TRUE(cluster_.WaitForStepAfter(job, cluster_.StepOf(job)));
  EXPECT_TRUE(Eventually([&] { return cluster_.Pids(job) == pids; }))
      << "the same processes come back";
  EXPECT_EQ(cluster_.Job(job).value("restarts", 0), 0);
}

// Another generation may have been started where these workers cannot see it. The timeout shortens
// the lease; of 1 second, a busy machine holds a worker up for that long, which is a restart.
TEST_F(ClusterTest, ARunWithoutItsLeaseHoldsAndGoesOnWhereItWas) {
  const std::string job =
      cluster_.RunningJob({"health.failure_timeout_seconds=3", "checkpoint.every_steps=0"});
  const std::vector<int> pids = cluster_.Pids(job);
  const auto logged = [&](const std::string& what) {
    const std::string log = cluster_.folder() + "/state/jobs/" + job + "/logs/gen-0001.log";
    return cluster_.On("studio", "grep -c '" + what + "' " + log).exit_code == 0;
  };
  cluster_.KillCoordinator();
  EXPECT_TRUE(Eventually([&] { return logged("holds at the step boundary"); }))
      << cluster_.Story(job);
  for (int pid : pids) EXPECT_TRUE(Alive(pid));
  cluster_.StartCoordinator();
  EXPECT_TRUE(Eventually([&] { return logged("espalierd is back"); })) << cluster_.Story(job);
  EXPECT_TRUE(cluster_.WaitForStepAfter(job, cluster_.StepOf(job)));
  EXPECT_TRUE(Eventually([&] { return cluster_.Pids(job) == pids; }))
      << "the same processes come back:\n"
      << cluster_.Story(job);
  EXPECT_EQ(cluster_.Job(job).value("restarts", 0), 0) << cluster_.Story(job);
}

TEST_F(ClusterTest, ACutCableIsSurvived) {
  const std::string job = cluster_.RunningJob({"checkpoint.every_steps=20"});
  cluster_.WaitForStepAfter(job, 25);
  cluster_.CutCable();
  EXPECT_TRUE(Eventually([&] { return cluster_.Job(job).value("restarts", 0) > 0; }))
      << cluster_.Story(job);
  cluster_.RestoreCable();
  const int64_t step = cluster_.StepOf(job);
  EXPECT_TRUE(cluster_.WaitForStepAfter(job, step + 5, 120));
}

TEST_F(ClusterTest, RolesDecideWhoMayDoWhat) {
  const std::string job = cluster_.RunningJob();
  EXPECT_EQ(cluster_.Cli("job " + job, "viewer").exit_code, 0);
  const CommandResult pause = cluster_.Cli("pause " + job, "viewer");
  EXPECT_NE(pause.exit_code, 0);
  EXPECT_NE(pause.output.find("viewer"), std::string::npos) << pause.output;
  const CommandResult submit = cluster_.Cli("submit " + cluster_.folder() + "/job.yaml", "macbook");
  EXPECT_NE(submit.exit_code, 0);
  EXPECT_NE(submit.output.find("worker"), std::string::npos) << submit.output;
}

}  // namespace
}  // namespace espalier::cluster
