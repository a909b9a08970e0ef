// What must hold of Advance in every state of a job: requests are answered once, the order of the
// effects is the one in which they must be applied, and time never goes back.
#include "coordinator/core/advance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/facts.h"
#include "coordinator/core/faults.h"

namespace espalier {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'000'000'000);

v1::JobSpec SpecOf(const std::string& name) {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.mutable_train()->set_steps(10);
  spec.mutable_train()->set_global_batch(4);
  spec.mutable_parallel()->set_min_nodes(1);
  spec.mutable_health()->set_failure_timeout_seconds(2);
  spec.mutable_health()->set_max_restarts(3);
  spec.mutable_health()->set_restart_window_seconds(60);
  spec.mutable_health()->set_restart_backoff_seconds(0.5);
  spec.mutable_launch()->set_timeout_seconds(10);
  return spec;
}

constexpr JobState kStates[] = {JobState::kQueued,     JobState::kLaunching,  JobState::kRunning,
                                JobState::kPausing,    JobState::kPausedSoft, JobState::kPausedHard,
                                JobState::kRegrouping, JobState::kRecovering, JobState::kCancelling,
                                JobState::kCompleted,  JobState::kFailed,     JobState::kCancelled};

bool Runs(JobState state) {
  return !IsFinal(state) && state != JobState::kQueued && state != JobState::kPausedHard;
}

// A coordinator whose journal holds one job in this state; where it runs, its launch is alive.
ClusterState StateWith(JobState state) {
  JobRecord record;
  record.id = JobId("nano-1");
  record.number = 1;
  record.spec = SpecOf("nano");
  record.state = state;
  record.reason = "it is a test";
  record.generation = Generation(1);
  record.nodes = {NodeName("studio")};
  record.directive = {.number = 1, .plan = {.number = 1, .sequences = {4}}};
  record.run_state_number = 1;
  record.processes = Runs(state) ? Processes::kRunning : Processes::kNone;
  CoordinatorStarted start{.nodes = {NodeName("studio")}, .jobs = {record}};
  if (Runs(state)) start.launches = {{record.id, record.generation}};
  // Somebody else has the node, so that a queued job stays queued.
  JobRecord other = record;
  other.id = JobId("other-2");
  other.number = 2;
  other.state = JobState::kRunning;
  other.processes = Processes::kRunning;
  if (!Runs(state)) {
    start.jobs.push_back(other);
    start.launches.push_back({other.id, other.generation});
  }
  ClusterState cluster;
  Advance(cluster, start, kNow);
  return cluster;
}

std::vector<Event> Requests() {
  const JobId job("nano-1");
  return {PauseRequested{RequestId(1), job, PauseKind::kSoft},
          PauseRequested{RequestId(1), job, PauseKind::kHard}, ResumeRequested{RequestId(1), job},
          CancelRequested{RequestId(1), job, true}, CheckpointRequested{RequestId(1), job}};
}

int OrderOf(const Effect& effect) {
  if (std::holds_alternative<PersistJob>(effect) || std::holds_alternative<PersistNode>(effect) ||
      std::holds_alternative<AppendEvent>(effect) || std::holds_alternative<ForgetJob>(effect)) {
    return 0;
  }
  if (std::holds_alternative<Launch>(effect) || std::holds_alternative<Kill>(effect)) return 2;
  return std::holds_alternative<Reply>(effect) ? 3 : 1;
}

TEST(Advance, AnswersEveryRequestOnceInEveryState) {
  for (const JobState state : kStates) {
    for (const Event& request : Requests()) {
      ClusterState cluster = StateWith(state);
      ASSERT_EQ(cluster.jobs.at(JobId("nano-1")).record.state, state);
      int replies = 0;
      for (const Effect& effect : Advance(cluster, request, kNow)) {
        replies += std::holds_alternative<Reply>(effect) ? 1 : 0;
      }
      EXPECT_EQ(replies, 1) << JobStateName(state) << " request " << request.index();
    }
  }
}

TEST(Advance, ARefusalNamesTheStateAndChangesNothing) {
  for (const JobState state : kStates) {
    for (const Event& request : Requests()) {
      ClusterState cluster = StateWith(state);
      const std::vector<Effect> effects = Advance(cluster, request, kNow);
      const Reply& reply = std::get<Reply>(effects.back());
      if (reply.status.ok()) continue;
      EXPECT_EQ(effects.size(), 1u) << JobStateName(state);
      EXPECT_EQ(reply.status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_NE(reply.status.message().find(JobStateName(state)), absl::string_view::npos);
    }
  }
}

TEST(Advance, RepeatingARequestIsHarmless) {
  for (const JobState state : kStates) {
    for (const Event& request : Requests()) {
      ClusterState cluster = StateWith(state);
      const auto first = Advance(cluster, request, kNow);
      const JobState after = cluster.jobs.at(JobId("nano-1")).record.state;
      const auto second = Advance(cluster, request, kNow);
      if (!std::get<Reply>(first.back()).status.ok()) continue;
      EXPECT_TRUE(std::get<Reply>(second.back()).status.ok()) << JobStateName(state);
      EXPECT_EQ(cluster.jobs.at(JobId("nano-1")).record.state, after) << JobStateName(state);
    }
  }
}

// Invariant "journal, then act": the journal's effects come first.
TEST(Advance, EffectsComeInTheOrderInWhichTheyMustBeApplied) {
  for (const JobState state : kStates) {
    for (const Event& request : Requests()) {
      ClusterState cluster = StateWith(state);
      int last = 0;
      for (const Effect& effect : Advance(cluster, request, kNow)) {
        EXPECT_GE(OrderOf(effect), last) << JobStateName(state);
        last = OrderOf(effect);
      }
    }
  }
}

TEST(Advance, TimeDoesNotGoBack) {
  ClusterState cluster = StateWith(JobState::kRunning);
  Advance(cluster, Tick{}, kNow + absl::Seconds(1));
  Advance(cluster, Tick{}, kNow - absl::Hours(1));
  EXPECT_EQ(cluster.now, kNow + absl::Seconds(1));
  EXPECT_EQ(cluster.jobs.at(JobId("nano-1")).record.state, JobState::kRunning);
}

TEST(Restarts, BackOffDoublesUpToAMinute) {
  v1::HealthSpec health;
  health.set_restart_backoff_seconds(0.5);
  EXPECT_EQ(Backoff(health, 1), absl::Milliseconds(500));
  EXPECT_EQ(Backoff(health, 2), absl::Seconds(1));
  EXPECT_EQ(Backoff(health, 7), absl::Seconds(32));
  EXPECT_EQ(Backoff(health, 8), absl::Seconds(60));
  EXPECT_EQ(Backoff(health, 100000), absl::Seconds(60));
}

// A job of one rank on studio, attached.
StreamId AttachRank(ClusterState& state) {
  const StreamId stream(1);
  Advance(state,
          WorkerAttached{.stream = stream,
                         .worker = {JobId("nano-1"), Generation(1), Rank(0)},
                         .world_size = 1,
                         .node = NodeName("studio"),
                         .pid = 7},
          kNow);
  return stream;
}

std::vector<std::string> Told(const std::vector<Effect>& effects) {
  std::vector<std::string> told;
  for (const Effect& effect : effects) {
    if (const auto* row = std::get_if<AppendEvent>(&effect)) told.push_back(row->text);
  }
  return told;
}

TEST(Advance, ALearningRateThatWasLoweredIsToldOnce) {
  ClusterState state = StateWith(JobState::kRunning);
  const StreamId stream = AttachRank(state);
  const auto told_of = [&](int64_t step, bool lowers, double factor = 0.5) {
    const EvaluationRecord evaluation{
        .step = Step(step), .loss = 2, .reductions = 1, .rate_factor = factor};
    return Told(Advance(state, WorkerEvaluated{stream, evaluation, lowers}, kNow));
  };
  EXPECT_THAT(
      told_of(20, true),
      ::testing::ElementsAre("the learning rate is 0.5 of its schedule's from step 20 on: the "
                             "validation loss is on a plateau "
                             "(train.schedule.plateau_patience)"));
  EXPECT_THAT(told_of(20, true), ::testing::IsEmpty()) << "told again after a stream broke";
  EXPECT_THAT(told_of(30, false), ::testing::IsEmpty());
  EXPECT_THAT(told_of(40, false, 0.25), ::testing::ElementsAre(::testing::HasSubstr(
                                            "0.25 of its schedule's from step 40 on or "
                                            "an earlier one")))
      << "the evaluation that lowered it went unheard";
  EXPECT_THAT(told_of(50, false, 1), ::testing::IsEmpty()) << "goes on from before it was lowered";
}

TEST(Advance, WhatIsWrongWithTheStepsIsInTheEventsOfTheJob) {
  ClusterState state = StateWith(JobState::kRunning);
  state.jobs.at(JobId("nano-1")).record.spec.mutable_health()->set_warn_norm_spike(10);
  const StreamId stream = AttachRank(state);
  const auto told_of = [&](int64_t step, double norm) {
    const StepFigures figures{
        .step = Step(step), .loss = 2, .gradient_norm = norm, .step_seconds = 1};
    return Told(Advance(state, WorkerStepReported{stream, figures}, kNow));
  };
  for (int64_t step = 0; step < 30; ++step) told_of(step, 1);
  EXPECT_THAT(told_of(30, 50), ::testing::ElementsAre(::testing::HasSubstr(
                                   "warning: a gradient of norm 50, where the median")));
  EXPECT_THAT(told_of(31, 1), ::testing::IsEmpty());
}

TEST(Advance, AFailedCheckpointIsCountedOnceHoweverOftenItIsTold) {
  ClusterState state = StateWith(JobState::kRunning);
  const StreamId stream = AttachRank(state);
  const auto count_after = [&](const CheckpointRecord& told) {
    Advance(state, WorkerCheckpointed{stream, told}, kNow);
    return state.jobs.at(JobId("nano-1")).record.checkpoint_failures;
  };
  EXPECT_EQ(count_after({.step = Step(3), .seconds = 0.5, .error = "disk full"}), 1);
  EXPECT_EQ(count_after({.step = Step(3), .seconds = 0.5, .error = "disk full"}), 1);
  EXPECT_EQ(count_after({.step = Step(3), .seconds = 0.6, .error = "disk full"}), 2)
      << "another attempt at the same step";
  EXPECT_EQ(count_after({.step = Step(3), .path = "dir", .seconds = 0.7}), 2) << "it succeeded";
}

}  // namespace
}  // namespace espalier
