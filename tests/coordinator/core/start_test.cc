// What a restarted coordinator makes of a journal whose times lie ahead of a clock that was set
// back meanwhile.
#include <gtest/gtest.h>

#include <optional>

#include "common/config/job_file.h"
#include "coordinator/core/advance.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/faults.h"

namespace espalier {
namespace {

const absl::Time kBefore = absl::FromUnixSeconds(1'800'000'000);
const absl::Time kNow = kBefore - absl::Hours(8);
const NodeName kStudio("studio");

JobRecord Recovering() {
  JobRecord record;
  record.id = JobId("nano-1");
  record.number = 1;
  record.state = JobState::kRecovering;
  record.state_since = kBefore;
  record.generation = Generation(1);
  record.retry_at = kBefore + absl::Seconds(5);
  record.faults = {kBefore - absl::Minutes(5), kBefore};
  record.spec.set_name("nano");
  record.spec.mutable_parallel()->set_min_nodes(1);
  record.spec.mutable_train()->set_global_batch(4);
  FillJobDefaults(record.spec);
  return record;
}

class ClockSetBack : public ::testing::Test {
 protected:
  void Start(const JobRecord& job, NodeRecord node = {.name = kStudio}) {
    Advance(state_, CoordinatorStarted{.nodes = {kStudio}, .records = {node}, .jobs = {job}}, kNow);
  }
  const JobRecord& Job() const { return state_.jobs.at(JobId("nano-1")).record; }
  ClusterState state_;
};

TEST_F(ClockSetBack, AJobIsStartedAgainAfterTheLongestBackOffAtMost) {
  Start(Recovering());
  EXPECT_EQ(Job().state, JobState::kRecovering);
  Advance(state_, Tick{}, kNow + kLongestBackoff);
  EXPECT_EQ(Job().state, JobState::kLaunching);
}

TEST_F(ClockSetBack, TheFaultsOfAJobLeaveTheWindowThatTheyWereIn) {
  Start(Recovering());
  for (const absl::Time fault : Job().faults) EXPECT_LE(fault, kNow);
  EXPECT_LE(Job().state_since, kNow);
}

TEST_F(ClockSetBack, ANodeIsTakenBackAfterTheTimeForWhichItWasSetAsideAtMost) {
  const NodePolicy policy;
  Start(Recovering(), {.name = kStudio,
                       .faults = {kBefore},
                       .set_asides = 1,
                       .set_aside_reason = "3 faults within 10m",
                       .set_aside_until = kBefore + policy.first_set_aside});
  EXPECT_TRUE(IsSetAside(state_.nodes.Find(kStudio)->record));
  EXPECT_LE(state_.nodes.Find(kStudio)->record.faults.front(), kNow);
  Advance(state_, Tick{}, kNow + policy.first_set_aside);
  EXPECT_FALSE(IsSetAside(state_.nodes.Find(kStudio)->record));
}

// Else the next coordinator would wait anew.
TEST_F(ClockSetBack, WarningsAndWhatAilsANodeOutliveEspalierd) {
  JobRecord job = Recovering();
  job.warnings = {"slow_down"};
  NodeRecord node{.name = kStudio};
  node.illness = {Ailment::kHeat, "is too hot", kBefore, {kNow - absl::Minutes(1), kBefore}};
  Start(job, node);
  EXPECT_TRUE(state_.jobs.at(JobId("nano-1")).health.holds(TrainingHealth::kSlowDown));
  const NodeHealth& health = state_.nodes.Find(kStudio)->agent.health;
  EXPECT_EQ(health.ailment(), Ailment::kHeat);
  EXPECT_EQ(health.since(), kNow);
  EXPECT_EQ(health.IllOfLate(kNow), 2);
}

TEST_F(ClockSetBack, WhatWasBoundedIsJournaled) {
  const CoordinatorStarted start{.nodes = {kStudio},
                                 .records = {{.name = kStudio, .faults = {kBefore}}},
                                 .jobs = {Recovering()}};
  std::optional<JobRecord> job;
  std::optional<NodeRecord> node;
  for (const Effect& effect : Advance(state_, start, kNow)) {
    if (const auto* persist = std::get_if<PersistJob>(&effect)) job = persist->record;
    if (const auto* persist = std::get_if<PersistNode>(&effect)) node = persist->record;
  }
  ASSERT_TRUE(job.has_value() && node.has_value());
  EXPECT_EQ(job->retry_at, Job().retry_at);
  EXPECT_EQ(job->faults, Job().faults);
  EXPECT_EQ(node->faults, state_.nodes.Find(kStudio)->record.faults);
}

TEST_F(ClockSetBack, ATimeThatIsPastIsLeftAsItIs) {
  JobRecord job = Recovering();
  job.faults = {kNow - absl::Minutes(5)};
  job.retry_at = kNow + absl::Seconds(5);
  Start(job);
  EXPECT_EQ(Job().faults, job.faults);
  EXPECT_EQ(Job().retry_at, job.retry_at);
}

}  // namespace
}  // namespace espalier
