#include "tests/bench/step_limit.h"

#include <gtest/gtest.h>

namespace espalier::bench {
namespace {

DecoderConfig Small() {
  DecoderConfig config;
  config.vocab_size = 40;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.layers = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 4;
  return config;
}

TEST(StepLimit, CountsSixOperationsAWeightAndTokenAndHalfTheSquareOfAttention) {
  const double batch = 2, time = 8, tokens = batch * time;
  const double layer = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24;
  const double weights = 3 * layer + 16 * 40;
  // Two products forward and four backward, a half of each under the mask.
  const double attention = 3 * 0.5 * 6 * 2 * (batch * 4) * time * time * 4;
  double flops = 0;
  for (const StepProduct& product : ProductsOfStep(Small(), 2, 8)) {
    flops += product.times * product.Flops();
  }
  EXPECT_DOUBLE_EQ(flops, 6 * weights * tokens + attention);
}

TEST(StepLimit, IsTheTimeOfEachProductAtItsBest) {
  for (const bool bf16 : {false, true}) {
    const StepLimit limit = MeasureStepLimit(Small(), 2, 8, bf16, absl::ZeroDuration());
    double seconds = 0;
    for (const MeasuredProduct& measured : limit.products) {
      EXPECT_LE(measured.seconds, measured.engine_seconds);
      EXPECT_FALSE(measured.best.empty());
      seconds += measured.product.times * measured.seconds;
    }
    EXPECT_DOUBLE_EQ(limit.seconds, seconds);
  }
}

}  // namespace
}  // namespace espalier::bench
