// 2,000 seeds of the simulator; espalier_sim runs more.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

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

// What makes a shorter time of faults a prefix of a longer one.
TEST(Simulated, WhatHappensBeforeFaultsStopDoesNotDependOnWhenTheyStop) {
  const auto until = [](uint64_t seed, absl::Duration fault_time) {
    RunResult result = Simulate({.seed = seed, .trace = true, .fault_time = fault_time});
    const auto late = [](const std::string& line) { return std::stod(line) >= 10; };
    result.trace.erase(std::find_if(result.trace.begin(), result.trace.end(), late),
                       result.trace.end());
    return result.trace;
  };
  size_t lines = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::vector<std::string> whole = until(seed, absl::Seconds(60));
    EXPECT_EQ(until(seed, absl::Seconds(10)), whole) << "seed " << seed;
    lines += whole.size();
  }
  EXPECT_GT(lines, 500u);
}

TEST(Simulated, ASeedAlwaysGivesTheSameRun) {
  EXPECT_EQ(Simulate({.seed = 7}).fingerprint, Simulate({.seed = 7}).fingerprint);
  EXPECT_NE(Simulate({.seed = 7}).fingerprint, Simulate({.seed = 8}).fingerprint);
}

}  // namespace
}  // namespace espalier::sim
