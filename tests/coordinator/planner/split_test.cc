#include "coordinator/planner/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

namespace espalier {
namespace {

using testing::ElementsAre;
using Sequences = std::vector<int32_t>;

Runner Fast(double per_sequence, double constant = 0) { return {.time = {constant, per_sequence}}; }

// The earliest latest finish of all divisions, tried one by one.
double BestByTrying(int32_t batch, const std::vector<Runner>& runners) {
  double best = 1e300;
  Sequences sequences(runners.size());
  const std::function<void(size_t, int32_t)> place = [&](size_t i, int32_t left) {
    if (i == runners.size()) {
      if (left == 0) best = std::min(best, LatestFinish(sequences, runners));
      return;
    }
    for (int32_t n = runners[i].least; n <= std::min(left, runners[i].most); ++n) {
      sequences[i] = n;
      place(i + 1, left - n);
    }
  };
  place(0, batch);
  return best;
}

std::vector<Runner> RandomRunners(size_t count, std::mt19937_64& random) {
  std::uniform_real_distribution<> speed(0.05, 2);
  std::vector<Runner> runners;
  for (size_t i = 0; i < count; ++i) {
    Runner runner = Fast(speed(random), random() % 2 == 0 ? 0 : speed(random));
    runner.least = static_cast<int32_t>(random() % 3);
    if (random() % 4 == 0) runner.most = runner.least + static_cast<int32_t>(random() % 5);
    runners.push_back(runner);
  }
  return runners;
}

TEST(SplitBatch, FollowsTheSpeed) {
  EXPECT_THAT(*SplitBatch(32, {Fast(1), Fast(2.2)}), ElementsAre(22, 10));
  EXPECT_THAT(*SplitBatch(8, {Fast(1), Fast(1), Fast(1)}), ElementsAre(3, 3, 2));
  EXPECT_THAT(*SplitBatch(8, {Fast(1)}), ElementsAre(8));
  EXPECT_THAT(*SplitBatch(10, {Fast(1), Fast(1, 4)}), ElementsAre(7, 3));
}

TEST(SplitBatch, GivesTheSlowestItsLeast) {
  EXPECT_THAT(*SplitBatch(8, {Fast(1), Fast(100)}), ElementsAre(7, 1));
}

TEST(SplitBatch, KeepsWithinTheRoomOfARank) {
  std::vector<Runner> runners = {Fast(1), Fast(1), Fast(10)};
  runners[0].most = 3;
  EXPECT_THAT(*SplitBatch(12, runners), ElementsAre(3, 8, 1));
}

TEST(SplitBatch, SaysWhatDoesNotFit) {
  EXPECT_EQ(SplitBatch(1, {Fast(1), Fast(1)}).status().message(),
            "a global batch of 1 sequences cannot be divided among 2 ranks, which need at least 2; "
            "raise train.global_batch, or lower parallel.min_nodes and max_nodes");
  std::vector<Runner> small = {Fast(1)};
  small[0].most = 4;
  EXPECT_EQ(SplitBatch(5, small).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SplitBatch, NoOtherDivisionIsDoneEarlier) {
  std::mt19937_64 random(1);
  int tried = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const std::vector<Runner> runners = RandomRunners(1 + random() % 4, random);
    const auto batch = static_cast<int32_t>(random() % 13);
    const absl::StatusOr<Sequences> split = SplitBatch(batch, runners);
    const double best = BestByTrying(batch, runners);
    ASSERT_EQ(split.ok(), best < 1e300);
    if (!split.ok()) continue;
    ++tried;
    ASSERT_EQ(std::accumulate(split->begin(), split->end(), 0), batch);
    ASSERT_NEAR(LatestFinish(*split, runners), best, 1e-9);
    for (size_t i = 0; i < runners.size(); ++i) {
      ASSERT_GE((*split)[i], runners[i].least);
      ASSERT_LE((*split)[i], runners[i].most);
    }
  }
  EXPECT_GT(tried, 300);
}

TEST(SplitBatch, DividesTheLargestBatchAmongAThousandExactly) {
  std::mt19937_64 random(2);
  for (const int32_t batch : {1000, 1001, 54321, 1 << 20}) {
    std::vector<Runner> runners;
    for (int i = 0; i < 1000; ++i) {
      runners.push_back(Fast(std::uniform_real_distribution<>(0.01, 10)(random)));
    }
    const Sequences split = *SplitBatch(batch, runners);
    EXPECT_EQ(std::accumulate(split.begin(), split.end(), int64_t{0}), batch);
    EXPECT_GE(*std::min_element(split.begin(), split.end()), 1);
  }
}

TEST(SplitBatch, BearsSpeedsThatDifferByTwentyPowersOfTen) {
  EXPECT_THAT(*SplitBatch(100, {Fast(1e-10), Fast(1e10)}), ElementsAre(99, 1));
  EXPECT_THAT(*SplitBatch(100, {Fast(1e-10, 1e9), Fast(1e9)}), ElementsAre(99, 1));
}

}  // namespace
}  // namespace espalier
