// Invariant "progress is liveness": who is stuck, and who is to blame.
#include "coordinator/core/liveness.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'000'000'000);

struct RankCase {
  // Seconds since a counter changed, and since anything was heard.
  double stalled = 0;
  double silent = 0;
  Phase phase = Phase::kExchange;
  int64_t step = 5;
  int64_t collective = 10;
  int64_t layer = 0;
};

struct Case {
  std::string name;
  std::vector<RankCase> ranks;
  // -1: nobody is stuck.
  int64_t culprit = -1;
};

Job JobOf(const std::vector<RankCase>& ranks, JobState state) {
  Job job;
  job.record.state = state;
  job.record.spec.mutable_health()->set_failure_timeout_seconds(10);
  for (const RankCase& rank : ranks) {
    job.world.ranks.push_back(TrackedRank{.node = NodeName("studio"),
                                          .stream = StreamId(1),
                                          .pid = 7,
                                          .counters = {.step = Step(rank.step),
                                                       .phase = rank.phase,
                                                       .collective = rank.collective,
                                                       .layer = rank.layer},
                                          .progressed_at = kNow - absl::Seconds(rank.stalled),
                                          .heard_at = kNow - absl::Seconds(rank.silent)});
  }
  return job;
}

class StuckRank : public testing::TestWithParam<Case> {};

TEST_P(StuckRank, IsTheOneThatHoldsUpTheOthers) {
  const auto fault = FindStuckRank(JobOf(GetParam().ranks, JobState::kRunning), kNow);
  EXPECT_EQ(fault ? fault->culprit->value() : -1, GetParam().culprit);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, StuckRank,
    testing::Values(
        Case{"AllWell", {{.stalled = 1}, {.stalled = 9}}, -1},
        Case{"JustInTime", {{.stalled = 10, .silent = 10}, {.stalled = 0}}, -1},
        Case{"TheSilentOne", {{.stalled = 11, .silent = 0}, {.stalled = 11, .silent = 11}}, 1},
        Case{"NobodyWhenOneWaitsForALongShard",
             {{.stalled = 30, .phase = Phase::kExchange}, {.stalled = 1, .phase = Phase::kCompute}},
             -1},
        Case{"NobodyWhenOneWaitsForACheckpointThatIsWritten",
             {{.stalled = 1, .phase = Phase::kCheckpoint},
              {.stalled = 30, .phase = Phase::kBoundary},
              {.stalled = 30, .phase = Phase::kBoundary}},
             -1},
        Case{"TheSilentOneThoughOthersWork", {{.stalled = 1}, {.stalled = 11, .silent = 11}}, 1},
        Case{"TheSilentOneEvenWhenAnotherStalledFirst",
             {{.stalled = 30, .silent = 1}, {.stalled = 11, .silent = 8}},
             1},
        Case{"TheLongestSilent", {{.stalled = 11, .silent = 9}, {.stalled = 12, .silent = 12}}, 1},
        Case{
            "TheOneThatDoesNotWait",
            {{.stalled = 11, .phase = Phase::kExchange}, {.stalled = 11, .phase = Phase::kCompute}},
            1},
        Case{"TheOneBehindWhenAllWait",
             {{.stalled = 11, .collective = 12}, {.stalled = 11, .collective = 11}},
             1},
        Case{"AnEarlierStepIsFurtherBehind",
             {{.stalled = 11, .step = 5, .collective = 20},
              {.stalled = 11, .step = 4, .collective = 30}},
             1}),
    [](const auto& info) { return info.param.name; });

TEST(Liveness, AHeartbeatWithoutProgressDoesNotCount) {
  const Job job = JobOf({{.stalled = 11, .silent = 0, .phase = Phase::kCompute, .layer = 7}},
                        JobState::kRunning);
  const auto fault = FindStuckRank(job, kNow);
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->reason,
            "rank 0 on studio made no progress within 10s in compute at step 5, layer 7, after "
            "10 collectives");
}

TEST(Liveness, WhileStartingOnlySilenceCounts) {
  EXPECT_FALSE(FindStuckRank(JobOf({{.stalled = 60, .silent = 1}}, JobState::kLaunching), kNow));
  EXPECT_TRUE(FindStuckRank(JobOf({{.stalled = 60, .silent = 11}}, JobState::kLaunching), kNow));
}

TEST(Liveness, ARankThatSaidItsLastWordIsNotStuck) {
  Job job = JobOf({{.stalled = 60, .silent = 60}}, JobState::kRunning);
  job.world.ranks[0].outcome = Outcome::kStopped;
  EXPECT_FALSE(FindStuckRank(job, kNow));
}

TEST(Liveness, ARankThatHangsIsStuckThoughTheOthersSaidTheirLastWord) {
  Job job = JobOf({{.stalled = 1}, {.stalled = 11}}, JobState::kRunning);
  job.world.ranks[0].outcome = Outcome::kStopped;
  const auto fault = FindStuckRank(job, kNow);
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->culprit, Rank(1));
}

TEST(Liveness, OwnSleepMovesEveryDeadline) {
  Job job = JobOf({{.stalled = 5, .silent = 5}}, JobState::kRunning);
  ShiftDeadlines(job, absl::Hours(1));
  EXPECT_FALSE(FindStuckRank(job, kNow + absl::Hours(1)));
  EXPECT_TRUE(FindStuckRank(job, kNow + absl::Hours(1) + absl::Seconds(6)));
}

}  // namespace
}  // namespace espalier
