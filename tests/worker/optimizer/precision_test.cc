#include "worker/optimizer/precision.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(ComputeType, Fp16OnTheCpuIsRefusedAndNeverReplaced) {
  const auto type = ComputeType(v1::PRECISION_FP16, torch::kCPU);
  EXPECT_EQ(type.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(type.status().message().find("choose bf16 or fp32"), std::string::npos);
  EXPECT_EQ(*ComputeType(v1::PRECISION_BF16, torch::kCPU), torch::kBFloat16);
  EXPECT_EQ(*ComputeType(v1::PRECISION_FP32, torch::kCPU), torch::kFloat);
  EXPECT_EQ(*ComputeType(v1::PRECISION_FP16, torch::kCUDA), torch::kHalf);
}

TEST(LossScale, HalvesOnOverflowAndDoublesAfterManyFiniteSteps) {
  LossScale scale = LossScale::For(v1::PRECISION_FP16);
  const double first = scale.value();
  EXPECT_TRUE(scale.Adjust(false));
  EXPECT_EQ(scale.value(), first / 2);
  for (int64_t i = 0; i < LossScale::kGrowAfter - 1; ++i) EXPECT_TRUE(scale.Adjust(true));
  EXPECT_EQ(scale.value(), first / 2);
  EXPECT_TRUE(scale.Adjust(true));
  EXPECT_EQ(scale.value(), first);
}

TEST(LossScale, AnOverflowStartsTheCountAnew) {
  LossScale scale = LossScale::For(v1::PRECISION_FP16);
  for (int64_t i = 0; i < LossScale::kGrowAfter - 1; ++i) scale.Adjust(true);
  scale.Adjust(false);
  const double value = scale.value();
  scale.Adjust(true);
  EXPECT_EQ(scale.value(), value);
}

TEST(LossScale, AtTheSmallestScaleAnOverflowIsTheNumbersFault) {
  LossScale scale = LossScale::For(v1::PRECISION_FP16);
  for (int64_t i = 0; i < LossScale::kFirstExponent; ++i) EXPECT_TRUE(scale.Adjust(false));
  EXPECT_EQ(scale.value(), 1);
  EXPECT_FALSE(scale.Adjust(false));
  EXPECT_EQ(scale.value(), 1);
}

TEST(LossScale, OtherPrecisionsNeverScale) {
  LossScale scale = LossScale::For(v1::PRECISION_BF16);
  EXPECT_FALSE(scale.Adjust(false));
  for (int64_t i = 0; i < 2 * LossScale::kGrowAfter; ++i) EXPECT_TRUE(scale.Adjust(true));
  EXPECT_EQ(scale.value(), 1);
}

}  // namespace
}  // namespace espalier
