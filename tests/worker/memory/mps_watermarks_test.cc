// LibTorch's limits on MPS are below what a Mac has, so that what does not fit throws.
#include "worker/memory/mps_watermarks.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace espalier {
namespace {

constexpr int64_t kGb = int64_t{1} << 30;

TEST(MpsWatermarks, AreWhatTheDeviceRecommendsAtMost) {
  const MpsWatermarks all = MpsWatermarksFor(37 * kGb, 48 * kGb, 0, 1);
  EXPECT_DOUBLE_EQ(all.high, 1);
  EXPECT_LT(all.low, all.high);
  EXPECT_DOUBLE_EQ(MpsWatermarksFor(37 * kGb, 48 * kGb, 200 * kGb, 1).high, 1);
}

TEST(MpsWatermarks, FollowTheLimitOfTheNode) {
  EXPECT_DOUBLE_EQ(MpsWatermarksFor(128 * kGb, 192 * kGb, 32 * kGb, 1).high, 0.25);
  EXPECT_DOUBLE_EQ(MpsWatermarksFor(0, 64 * kGb, 24 * kGb, 1).high, 0.5) << "of three quarters";
}

TEST(MpsWatermarks, AreSharedByTheWorkersOfAMachine) {
  EXPECT_DOUBLE_EQ(MpsWatermarksFor(128 * kGb, 192 * kGb, 0, 2).high, 0.5);
}

TEST(MpsWatermarks, OfAPersonStay) {
  const char* high = "PYTORCH_MPS_HIGH_WATERMARK_RATIO";
  const char* low = "PYTORCH_MPS_LOW_WATERMARK_RATIO";
  unsetenv(low);
  setenv(high, "0.0", 1);
  SetMpsWatermarks({.high = 0.5, .low = 0.4});
  EXPECT_STREQ(std::getenv(high), "0.0");
  EXPECT_EQ(std::getenv(low), nullptr);
  unsetenv(high);
  SetMpsWatermarks({.high = 0.5, .low = 0.4});
  EXPECT_STREQ(std::getenv(high), "0.5");
  EXPECT_STREQ(std::getenv(low), "0.4");
  unsetenv(high);
  unsetenv(low);
}

}  // namespace
}  // namespace espalier
