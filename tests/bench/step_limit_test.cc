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

double FlopsOf(const std::vector<StepProduct>& products) {
  double flops = 0;
  for (const StepProduct& product : products) flops += product.times * product.Flops();
  return flops;
}

TEST(StepLimit, CountsSixOperationsAWeightAndTokenAndHalfTheSquareOfAttention) {
  const double batch = 2, time = 8, tokens = batch * time;
  const double layer = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24;
  const double weights = 3 * layer + 16 * 40;
  // Two products forward and four backward, a half of each under the mask.
  const double attention = 3 * 0.5 * 6 * 2 * (batch * 4) * time * time * 4;
  EXPECT_DOUBLE_EQ(FlopsOf(ProductsOfStep(Small(), 2, 8)), 6 * weights * tokens + attention);
  // A frozen weight has no gradient; an adapter of rank 2 is one weight for each row and column.
  const double adapters = 3 * 2 * (2 * (16 + 16) + 2 * (16 + 8) + 3 * (16 + 24));
  EXPECT_DOUBLE_EQ(FlopsOf(ProductsOfStep(Small(), 2, 8, /*rank=*/2)),
                   (4 * weights + 6 * adapters) * tokens + attention);
}

TEST(StepLimit, IsTheTimeOfEachProductAtItsBest) {
  for (const bool bf16 : {false, true}) {
    const StepLimit limit =
        MeasureStepLimit(ProductsOfStep(Small(), 2, 8), bf16, absl::ZeroDuration());
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
