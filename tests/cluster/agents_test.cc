// Two machines as README.md has people set them up: agents that joined with a token, no ssh, no
// disk in common.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/cluster/cluster.h"

namespace espalier::cluster {
namespace {

class MachinesWithAgents : public testing::Test {
 protected:
  bool Holds(const std::string& disk, const std::string& job) const {
    return Shell("ls " + cluster_.folder() + "/" + disk + "/jobs/" + job + "/checkpoints/step-*")
               .exit_code == 0;
  }

  Cluster cluster_{Nodes::kAgents};
};

TEST_F(MachinesWithAgents, TrainTogetherAndEachKeepsTheCheckpointsOnItsOwnDisk) {
  const std::string job = cluster_.RunningJob({"checkpoint.every_steps=20"});
  const std::vector<RankInfo> ranks = cluster_.Ranks(job);
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].node, "studio");
  EXPECT_EQ(ranks[1].node, "macbook");
  cluster_.WaitForStepAfter(job, 25);
  for (const char* disk : {"state", "disk-of-macbook"}) {
    EXPECT_TRUE(Eventually([&] { return Holds(disk, job); })) << disk << cluster_.Story(job);
  }
  const std::vector<int> pids = cluster_.Pids(job);
  EXPECT_EQ(cluster_.Cli("cancel " + job).exit_code, 0);
  cluster_.WaitForState(job, "CANCELLED");
  for (int pid : pids) EXPECT_FALSE(Alive(pid)) << pid;
}

// The MacBook's lid closes: the Studio goes on alone. The lid opens: what still runs there is ended
// by its agent, and the run takes the MacBook in again.
TEST_F(MachinesWithAgents, OneThatIsCutOffIsDoneWithoutAndTakenInWhenItIsBack) {
  const std::string job = cluster_.RunningJob(
      {"checkpoint.every_steps=20", "parallel.min_nodes=1", "parallel.max_nodes=2"});
  cluster_.WaitForStepAfter(job, 25);
  ASSERT_EQ(cluster_.Ranks(job).size(), 2u);
  const int left_behind = cluster_.Pids(job)[1];
  cluster_.CutCable();
  EXPECT_TRUE(Eventually([&] { return cluster_.Ranks(job).size() == 1; }, 120))
      << cluster_.Story(job);
  EXPECT_TRUE(cluster_.WaitForStepAfter(job, cluster_.StepOf(job) + 20, 120));
  cluster_.RestoreCable();
  EXPECT_TRUE(Eventually([&] { return !Alive(left_behind); })) << cluster_.Story(job);
  EXPECT_TRUE(Eventually([&] { return cluster_.Usable("macbook"); }))
      << cluster_.Cli("nodes").output;
  const int64_t alone = cluster_.StepOf(job);
  EXPECT_TRUE(Eventually([&] { return cluster_.Ranks(job).size() == 2; }, 120))
      << cluster_.Story(job);
  EXPECT_TRUE(cluster_.WaitForStepAfter(job, alone + 5, 120)) << cluster_.Story(job);
}

// What is trained stays in the machines' memory, of which nothing is left when the job is over.
TEST_F(MachinesWithAgents, AKilledWorkerCostsNoCommittedStep) {
  const std::string job = cluster_.RunningJob({"checkpoint.every_steps=0"});
  cluster_.WaitForStepAfter(job, 20);
  const int64_t committed = cluster_.StepOf(job);
  kill(cluster_.Pids(job)[1], SIGKILL);
  EXPECT_TRUE(Eventually([&] { return cluster_.Job(job).value("restarts", 0) == 1; }, 60))
      << cluster_.Story(job);
  EXPECT_TRUE(cluster_.WaitForState(job, "RUNNING", 120)) << cluster_.Story(job);
  EXPECT_TRUE(cluster_.WaitForStepAfter(job, committed + 20, 120)) << cluster_.Story(job);
  EXPECT_EQ(cluster_.Story(job).find("goes back"), std::string::npos) << cluster_.Story(job);
  EXPECT_EQ(cluster_.Job(job).value("restarts", 0), 1) << cluster_.Story(job);
  EXPECT_EQ(cluster_.Cli("cancel " + job).exit_code, 0);
  cluster_.WaitForState(job, "CANCELLED");
  for (const char* disk : {"state", "disk-of-macbook"}) {
    const std::string left = "ls " + cluster_.folder() + "/" + disk + "/warm/espalier-*";
    EXPECT_TRUE(Eventually([&] { return Shell(left).exit_code != 0; })) << Shell(left).output;
  }
}

TEST_F(MachinesWithAgents, OneThatIsDrainedIsLeftAndTakenInWhenItIsAllowed) {
  const std::string job =
      cluster_.RunningJob({"checkpoint.every_steps=20", "parallel.min_nodes=1",
                           "parallel.max_nodes=2", "health.failure_timeout_seconds=2"});
  cluster_.WaitForStepAfter(job, 5);
  const int64_t together = cluster_.StepOf(job);
  EXPECT_EQ(cluster_.Cli("nodes drain macbook --reason movie").exit_code, 0);
  EXPECT_TRUE(Eventually([&] { return cluster_.Ranks(job).size() == 1; }, 120))
      << cluster_.Story(job);
  EXPECT_TRUE(cluster_.WaitForStepAfter(job, together + 20, 120)) << cluster_.Story(job);
  EXPECT_FALSE(cluster_.Usable("macbook"));
  EXPECT_EQ(cluster_.Cli("nodes allow macbook").exit_code, 0);
  EXPECT_TRUE(Eventually([&] { return cluster_.Ranks(job).size() == 2; }, 120))
      << cluster_.Story(job);
}

TEST_F(MachinesWithAgents, AKilledAgentIsStartedAgainWhileTheRunGoesOn) {
  const std::string job = cluster_.RunningJob();
  const std::vector<int> pids = cluster_.Pids(job);
  cluster_.KillAgent("macbook");
  cluster_.StartAgent("macbook");
  EXPECT_TRUE(cluster_.WaitForStepAfter(job, cluster_.StepOf(job) + 5));
  EXPECT_EQ(cluster_.Cli("pause --hard " + job).exit_code, 0);
  cluster_.WaitForState(job, "PAUSED_HARD");
  for (int pid : pids) EXPECT_FALSE(Alive(pid)) << pid;
}

}  // namespace
}  // namespace espalier::cluster
