// The view that a real loop publishes.
#include "coordinator/service/view_publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/advance.h"
#include "coordinator/journal/record.h"
#include "tests/coordinator/loop/loop_world.h"

namespace espalier {
namespace {

class Viewing : public ::testing::Test {
 protected:
  v1::ClusterSpec Cluster() {
    v1::ClusterSpec cluster;
    for (const char* name : {"left", "right"}) cluster.add_nodes()->set_name(name);
    return cluster;
  }
  const JobView& OnlyJob() { return *board_.Current()->jobs.begin()->second; }

  ViewBoard board_;
  ViewPublisher publisher_{board_, Cluster(), "/state"};
  LoopWorld world_{&publisher_};
};

TEST_F(Viewing, AStepReportShows) {
  world_.Submit();
  world_.Turn();
  world_.AttachAll(1);
  v1::AttachRequest message;
  message.mutable_step()->set_step(4);
  message.mutable_step()->set_loss(2.5);
  message.mutable_step()->set_compute_seconds(0.25);
  v1::TaskFigure& figure = *message.mutable_step()->add_figures();
  figure.set_name("accuracy");
  figure.set_value(0.5);
  world_.Say(2, message);
  world_.Say(1, message);
  world_.Turn();
  const v1::JobStatus status = OnlyJob().StatusAt({});
  ASSERT_EQ(status.figures_size(), 1);
  EXPECT_EQ(status.figures(0).value(), 0.5);
  EXPECT_EQ(status.step(), 5);
  EXPECT_EQ(status.loss(), 2.5);
  EXPECT_EQ(status.ranks(1).last_step().step(), 4);
  EXPECT_EQ(OnlyJob().tallies[1].seconds(GoodputAccount::kCompute), 0.25);
  EXPECT_EQ(status.checkpoint_directory(),
            absl::StrCat("/state/jobs/", world_.job, "/checkpoints"));
}

// Seconds that a rank waits for others are not its own.
TEST_F(Viewing, ThePlanIsExplainedByTheSecondsOfEachRank) {
  world_.Submit();
  world_.Turn();
  world_.AttachAll(1);
  EXPECT_FALSE(OnlyJob().status.has_imbalance());
  for (int step = 0; step < 2; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      v1::AttachRequest message;
      v1::StepReport& report = *message.mutable_step();
      report.set_step(step);
      report.set_shard(16);
      report.set_compute_seconds(rank == 0 ? 1.2 : 1.1);
      report.set_data_wait_seconds(0.1);
      report.set_update_seconds(0.3);
      report.set_exchange_wait_seconds(rank == 0 ? 0 : 0.1);
      world_.Say(1 + rank, message);
      world_.Turn();
    }
  }
  const v1::JobStatus status = OnlyJob().StatusAt({});
  EXPECT_DOUBLE_EQ(status.ranks(0).speed().measured_seconds(), 1.6);
  EXPECT_NEAR(status.ranks(1).speed().seconds_per_sequence(), 1.5 / 16, 1e-9);
  EXPECT_NEAR(status.ranks(1).speed().predicted_seconds(), 1.5, 1e-9);
  EXPECT_EQ(status.ranks(1).speed().measurements(), 1);
  EXPECT_NEAR(status.imbalance(), 1.6 / 1.55 - 1, 1e-9);
}

TEST_F(Viewing, EachStepCountsOnceWhicheverRankReportsIt) {
  world_.Submit();
  world_.Turn();
  world_.AttachAll(1);
  v1::AttachRequest message;
  message.mutable_step()->set_step(4);
  message.mutable_step()->set_skipped(true);
  for (int stream : {1, 2}) {
    world_.Say(stream, message);
    world_.Turn();
  }
  message.mutable_step()->set_step(3);
  world_.Say(1, message);
  world_.Turn();
  EXPECT_EQ(OnlyJob().StatusAt({}).skipped_steps(), 1);
  EXPECT_EQ(OnlyJob().StatusAt({}).step(), 5);
}

TEST_F(Viewing, WhatTheLastStepSaidIsStillThereWhenEspalierdWasStartedAgain) {
  JobRecord record;
  record.id = JobId("job-1");
  record.state = JobState::kCompleted;
  record.last_step =
      StepFigures{.step = Step(9), .loss = 1.5, .gradient_norm = 0.5, .learning_rate = 3e-4};
  Job job;
  job.record = *DecodeJob(EncodeJob(record));
  const v1::JobStatus status = MakeJobView(job, JobNotes(), "/state", ViewMoment())->StatusAt({});
  EXPECT_EQ(status.loss(), 1.5);
  EXPECT_EQ(status.gradient_norm(), 0.5);
  EXPECT_EQ(status.learning_rate(), 3e-4);
}

// A node that is away for a night has no worker there, whatever the others do meanwhile.
TEST_F(Viewing, ARankThatTheGenerationLacksHasNoSeconds) {
  const WorkerId right = {JobId("job-1"), Generation(1), Rank(1)};
  ClusterState state;
  JobRecord& record = state.jobs[right.job].record;
  record.id = right.job;
  const auto publish = [&](const std::vector<NodeName>& nodes, absl::Duration now) {
    record.nodes = nodes;
    publisher_.Publish({state, {right.job}, now, LoopStats()});
  };
  const std::vector<NodeName> both = {NodeName("left"), NodeName("right")};
  publisher_.Attached(right, absl::Seconds(0));
  publish(both, absl::Seconds(0));
  publisher_.Moved(right.job, JobState::kRunning, JobState::kRecovering, Tick{}, absl::Seconds(3));
  publish({NodeName("left")}, absl::Seconds(5));
  publish(both, absl::Hours(9));
  publisher_.Attached(right, absl::Hours(9));
  v1::AttachRequest message;
  message.mutable_step()->set_compute_seconds(2);
  publisher_.Heard(right, message, absl::Hours(9) + absl::Seconds(2));
  publish(both, absl::Hours(9) + absl::Seconds(2));
  const WorkerTally& tally = OnlyJob().tallies[1];
  EXPECT_EQ(tally.seconds(GoodputAccount::kRecovering), 5);
  EXPECT_EQ(tally.seconds(GoodputAccount::kIdle), 0);
  EXPECT_EQ(tally.seconds(GoodputAccount::kCompute), 2);
}

TEST_F(Viewing, ARestartIsCountedByItsCause) {
  world_.launcher.refusal = absl::NotFoundError("no mpirun");
  world_.Submit();
  world_.Turn();
  world_.Turn();
  EXPECT_EQ(OnlyJob().restarts_by_cause, (std::map<std::string, int64_t>{{"launch_failed", 1}}));
}

TEST_F(Viewing, NodesShowWhoHoldsThem) {
  ASSERT_EQ(board_.Current()->nodes.size(), 2u);
  EXPECT_EQ(board_.Current()->nodes[1]->job_id(), "");
  world_.Submit();
  world_.Turn();
  EXPECT_EQ(board_.Current()->nodes[1]->job_id(), world_.job);
}

TEST_F(Viewing, AForgottenJobLeavesItsCheckpointsAlone) {
  const size_t kept = RetentionPolicy().always;
  JournalBatch batch;
  for (size_t i = 1; i <= kept + 1; ++i) {
    JobRecord record;
    record.id = JobId(absl::StrCat("nano-", i));
    record.number = static_cast<int64_t>(i);
    record.state = JobState::kCompleted;
    record.state_since = absl::FromUnixSeconds(static_cast<int64_t>(i));
    batch.jobs.push_back({record.id, EncodeJob(record)});
  }
  ASSERT_TRUE(world_.journal.Commit(batch).ok());
  const auto folder = std::filesystem::path(world_.folder.root()) / "jobs" / "nano-1";
  std::filesystem::create_directories(folder / "logs");
  std::filesystem::create_directories(folder / "checkpoints/step-00000100");
  world_.Restart();
  EXPECT_EQ(board_.Current()->jobs.count(JobId("nano-1")), 1u);
  world_.Turn();
  EXPECT_EQ(board_.Current()->jobs.count(JobId("nano-1")), 0u);
  EXPECT_EQ(board_.Current()->jobs.size(), kept);
  EXPECT_EQ(world_.journal.Load()->jobs.size(), kept);
  EXPECT_FALSE(std::filesystem::exists(folder / "logs"));
  EXPECT_TRUE(std::filesystem::exists(folder / "checkpoints/step-00000100"));
}

TEST(NodeView, ShowsWhatTheAgentSaysAndWhyNoJobGetsTheNode) {
  ClusterState state;
  state.versions.set_open_mpi("4.1.4");
  state.nodes.Add({.name = NodeName("left"), .certificate = "ab12"});
  Node& node = *state.nodes.Edit(NodeName("left"));
  node.agent.state = AgentState::kAttached;
  node.agent.clock_ahead = absl::Seconds(3);
  node.agent.report.emplace().mutable_versions()->set_open_mpi("5.0.7");
  v1::NodeSpec spec;
  spec.set_name("left");
  const auto view = MakeNodeView(state, node, spec);
  EXPECT_EQ(view->agent(), v1::AGENT_STATE_ATTACHED);
  EXPECT_EQ(view->report().versions().open_mpi(), "5.0.7");
  EXPECT_EQ(view->unusable_reason(),
            "has other versions (Open MPI 5.0.7 there, 4.1.4 here); install the same");
  EXPECT_EQ(view->clock_ahead_seconds(), 3);
  EXPECT_EQ(view->certificate(), "ab12");
}

TEST_F(Viewing, ANodeIsShownAnewOnlyWhenItHasChanged) {
  const auto before = board_.Current()->nodes[0];
  world_.Turn();
  EXPECT_EQ(board_.Current()->nodes[0].get(), before.get());
  world_.Submit();
  world_.Turn();
  EXPECT_NE(board_.Current()->nodes[0].get(), before.get());
}

TEST_F(Viewing, WhileTheJournalIsFullTheLastViewStandsAndTheFailuresShow) {
  world_.journal.full = true;
  world_.clock.on_sleep = [&] {
    EXPECT_TRUE(board_.Current()->jobs.empty());
    EXPECT_EQ(board_.Current()->stats.journal_failures, 1);
    world_.journal.full = false;
  };
  world_.Submit();
  world_.Turn();
  EXPECT_EQ(board_.Current()->jobs.size(), 1u);
}

}  // namespace
}  // namespace espalier
