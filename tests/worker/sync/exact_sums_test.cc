// Exact sums: the same bits in any order, as near as floats are, and nothing lost in silence.
#include "worker/sync/exact_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "common/base/random.h"

namespace espalier {
namespace {

constexpr ExactSums::Batch kBatch{.addends = 32, .tokens = 32 * 256};

// Gradients of one sequence: of all magnitudes.
std::vector<float> Addend(uint64_t seed, size_t n) {
  SplitMix64 random(seed);
  std::vector<float> values(n);
  for (float& value : values) {
    value = static_cast<float>((random.Uniform() - 0.5) *
                               std::exp2(static_cast<double>(random.Below(40)) - 30));
  }
  return values;
}

std::vector<float> SumOf(const std::vector<uint64_t>& seeds, size_t n, double factor = 1) {
  ExactSums sums;
  EXPECT_TRUE(sums.Keep(static_cast<int64_t>(n), kBatch).ok());
  for (const uint64_t seed : seeds) {
    std::vector<float> addend = Addend(seed, n);
    for (float& value : addend) value *= static_cast<float>(factor);
    sums.Add(0, absl::MakeSpan(addend), factor);
    EXPECT_EQ(std::count(addend.begin(), addend.end(), 0.0F), static_cast<int64_t>(n));
  }
  std::vector<float> sum(n);
  sums.Take(0, absl::MakeSpan(sum), 1);
  return sum;
}

TEST(ExactSums, DoNotDependOnTheOrderOfTheAddends) {
  std::vector<uint64_t> seeds(32);
  std::iota(seeds.begin(), seeds.end(), 1);
  const std::vector<float> forwards = SumOf(seeds, 100'000);
  std::reverse(seeds.begin(), seeds.end());
  EXPECT_EQ(SumOf(seeds, 100'000), forwards);
}

TEST(ExactSums, AreTheSameForEveryLossScale) {
  EXPECT_EQ(SumOf({1, 2, 3}, 1000, 1024), SumOf({1, 2, 3}, 1000));
}

TEST(ExactSums, ErrByHalfAUnitForEachAddendAndByOneRounding) {
  const size_t n = 10'000;
  const std::vector<float> sum = SumOf({1, 2, 3}, n);
  const double unit = kBatch.tokens * std::exp2(-ExactSums::kFractionBits);
  for (size_t i = 0; i < n; ++i) {
    double expected = 0;
    for (const uint64_t seed : {1, 2, 3}) expected += Addend(seed, n)[i];
    EXPECT_NEAR(sum[i], expected, 1.5 * unit + std::fabs(expected) * std::exp2(-24)) << i;
    if (i == 100) break;  // each element makes the addends anew
  }
}

TEST(ExactSums, MakeTheStepNotFiniteWhenAnAddendIsNotOrIsTooLarge) {
  const float most = 16384.0F * kBatch.tokens / kBatch.addends;
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), most * 1.01F, -most * 1.01F}) {
    ExactSums sums;
    ASSERT_TRUE(sums.Keep(4, kBatch).ok());
    std::vector<float> addend = {1, bad, 1, 1}, sum(4);
    sums.Add(0, absl::MakeSpan(addend), 1);
    sums.Take(0, absl::MakeSpan(sum), 1);
    for (const float value : sum) EXPECT_TRUE(std::isnan(value)) << bad;
    sums.Restart();
    addend = {1, most, 1, 1};  // the next step is another one
    sums.Add(0, absl::MakeSpan(addend), 1);
    sums.Take(0, absl::MakeSpan(sum), 1);
    EXPECT_EQ(sum, (std::vector<float>{1, most, 1, 1}));
  }
}

TEST(ExactSums, HoldAWholeBatchOfTheLargestAddends) {
  const float most = 16384.0F * kBatch.tokens / kBatch.addends;
  ExactSums sums;
  ASSERT_TRUE(sums.Keep(1, kBatch).ok());
  for (int64_t i = 0; i < kBatch.addends; ++i) {
    std::vector<float> addend = {most};
    sums.Add(0, absl::MakeSpan(addend), 1);
  }
  std::vector<float> sum(1);
  sums.Take(0, absl::MakeSpan(sum), 1);
  EXPECT_EQ(sum[0], most * kBatch.addends);
}

TEST(ExactSums, RoundedLossesAddUpTheSameInAnyOrder) {
  SplitMix64 random(7);
  std::vector<double> losses(10'000);
  for (double& loss : losses) loss = RoundedForSum(random.Uniform() * 3000);
  const double forwards = std::accumulate(losses.begin(), losses.end(), 0.0);
  std::reverse(losses.begin(), losses.end());
  EXPECT_EQ(std::accumulate(losses.begin(), losses.end(), 0.0), forwards);
}

}  // namespace
}  // namespace espalier
