#include "worker/collective/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/base/random.h"

namespace espalier {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Some(int64_t n, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<float> values(n);
  for (float& value : values) value = static_cast<float>(random.Uniform() - 0.5);
  return values;
}

std::vector<float> Carried(WireType type, std::vector<float> values) {
  EncodeInPlace(type, absl::MakeSpan(values), {});
  DecodeInPlace(type, absl::MakeSpan(values));
  return values;
}

TEST(Wire, TheEncodedFormFitsTheMemoryOfItsValues) {
  for (const WireType type : {WireType::kFp32, WireType::kBf16, WireType::kInt8}) {
    for (int64_t n = 0; n < 1000; ++n) EXPECT_LE(WireBytes(type, n), 4 * n);
  }
}

TEST(Wire, Fp32ArrivesAsItIs) { EXPECT_EQ(Carried(WireType::kFp32, Some(1000, 1)), Some(1000, 1)); }

TEST(Wire, Bf16RoundsToNearestEven) {
  // bf16 has 8 bits of precision: the steps above 1 are 2^-7.
  const float step = std::ldexp(1.0F, -7);
  EXPECT_EQ(
      Carried(WireType::kBf16, {1, 1 + step / 2, 1 + 3 * step / 2, 1 + step * 0.51F, -1, kInfinity,
                                -kInfinity, 3.4e38F}),
      (std::vector<float>{1, 1, 1 + 2 * step, 1 + step, -1, kInfinity, -kInfinity, kInfinity}));
  EXPECT_TRUE(std::isnan(Carried(WireType::kBf16, {kNan})[0]));
}

TEST(Wire, Int8ErrsByAtMostHalfOfItsScale) {
  for (const int64_t n : {1, 2, 255, 256, 257, 5000}) {
    const std::vector<float> values = Some(n, 2), carried = Carried(WireType::kInt8, values);
    for (int64_t begin = 0; begin < n; begin += kWireBlock) {
      const int64_t end = std::min(n, begin + kWireBlock);
      float largest = 0;
      for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
      const float scale = largest / 127 * (1 + std::ldexp(1.0F, -7));
      for (int64_t i = begin; i < end; ++i) ASSERT_NEAR(carried[i], values[i], scale * 0.5001F);
    }
  }
}

TEST(Wire, WhatInt8LeavesOutIsInTheResidualToTheBit) {
  const std::vector<float> values = Some(1001, 3), before = Some(1001, 4);
  std::vector<float> carried = values, residual = before;
  EncodeInPlace(WireType::kInt8, absl::MakeSpan(carried), absl::MakeSpan(residual));
  DecodeInPlace(WireType::kInt8, absl::MakeSpan(carried));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(residual[i], (values[i] + before[i]) - carried[i]) << i;
  }
}

// Without error feedback, values far below the largest of their block would never arrive.
TEST(Wire, ErrorFeedbackDeliversSmallValuesInTime) {
  std::vector<float> residual(256), total(256);
  constexpr int kTimes = 1000;
  for (int time = 0; time < kTimes; ++time) {
    std::vector<float> values(256, 1e-4F);
    values[0] = 1;
    EncodeInPlace(WireType::kInt8, absl::MakeSpan(values), absl::MakeSpan(residual));
    DecodeInPlace(WireType::kInt8, absl::MakeSpan(values));
    for (size_t i = 0; i < values.size(); ++i) total[i] += values[i];
  }
  for (size_t i = 1; i < total.size(); ++i) ASSERT_NEAR(total[i], kTimes * 1e-4F, 0.5 / 127 + 1e-4);
}

TEST(Wire, WhatIsNotFiniteStaysSoAndLeavesNoResidual) {
  for (const float bad : {kInfinity, -kInfinity, kNan}) {
    std::vector<float> values = Some(600, 5), residual(600, 0.25F);
    values[300] = bad;
    EncodeInPlace(WireType::kInt8, absl::MakeSpan(values), absl::MakeSpan(residual));
    DecodeInPlace(WireType::kInt8, absl::MakeSpan(values));
    EXPECT_FALSE(std::isfinite(values[300]));
    for (const float left : residual) EXPECT_TRUE(std::isfinite(left));
  }
}

TEST(Wire, ValuesTooSmallForAScaleWaitInTheResidual) {
  std::vector<float> values(3, 1e-32F), residual(3);
  EncodeInPlace(WireType::kInt8, absl::MakeSpan(values), absl::MakeSpan(residual));
  DecodeInPlace(WireType::kInt8, absl::MakeSpan(values));
  EXPECT_EQ(values, std::vector<float>(3));
  EXPECT_EQ(residual, std::vector<float>(3, 1e-32F));
}

}  // namespace
}  // namespace espalier
