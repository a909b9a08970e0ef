// 2,000 seeds of the simulator; espalier_sim runs more.
#include <gtest/gtest.h>

#include "tests/sim/simulation.h"

namespace espalier::sim {
namespace {

constexpr uint64_t kSeedsOfOneTest = 500;

// Invariants "Journal, then act", "Progress is liveness", fencing, and the life of a job.
class Simulator : public testing::TestWithParam<uint64_t> {};

TEST_P(Simulator, EveryRuleHoldsUnderFaults) {
  std::map<JobState, int64_t> ends;
  for (uint64_t seed = GetParam(); seed < GetParam() + kSeedsOfOneTest; ++seed) {
    const RunResult result = Simulate({.seed = seed});
    ASSERT_EQ(result.failure, "");
    for (const auto& [state, count] : result.ends) ends[state] += count;
  }
  // The runs are worth something only while jobs end in every way.
  EXPECT_GT(ends[JobState::kCompleted], 0);
  EXPECT_GT(ends[JobState::kFailed], 0);
  EXPECT_GT(ends[JobState::kCancelled], 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Simulator, testing::Values(1, 501, 1001, 1501));

TEST(Simulated, ASeedAlwaysGivesTheSameRun) {
  EXPECT_EQ(Simulate({.seed = 7}).fingerprint, Simulate({.seed = 7}).fingerprint);
  EXPECT_NE(Simulate({.seed = 7}).fingerprint, Simulate({.seed = 8}).fingerprint);
}

}  // namespace
}  // namespace espalier::sim
