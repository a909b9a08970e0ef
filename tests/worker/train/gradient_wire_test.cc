// Training with gradients that travel in fewer bits: it learns, ranks agree, and a resumed run has
// the bits of one that was not stopped.
#include <gtest/gtest.h>

#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"

namespace espalier {
namespace {

// With a tied embedding, and with one of its own, which travels as rows alone.
class GradientWire : public testing::TestWithParam<bool> {
 protected:
  static WorldOptions Options(v1::GradientDtype dtype, int ranks, int64_t steps,
                              const std::string& folder);
  static double LastLoss(v1::GradientDtype dtype);
};
INSTANTIATE_TEST_SUITE_P(Tables, GradientWire, testing::Bool(),
                         [](const auto& info) { return info.param ? "Tied" : "Untied"; });

WorldOptions GradientWire::Options(v1::GradientDtype dtype, int ranks, int64_t steps,
                                   const std::string& folder) {
  WorldOptions options;
  options.tied = GetParam();
  options.ranks = ranks;
  options.spec = TinySpec(steps);
  options.spec.mutable_parallel()->set_gradient_dtype(dtype);
  options.checkpoints = folder;
  return options;
}

// One result per rank, all of them equal.
std::vector<RankResult> Train(const WorldOptions& options) {
  std::vector<RankResult> results = TrainWorld(options);
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.fingerprint, results[0].fingerprint) << "replicas differ";
    EXPECT_EQ(result.losses, results[0].losses);
  }
  return results;
}

double GradientWire::LastLoss(v1::GradientDtype dtype) {
  const TestFolder folder;
  const std::vector<RankResult> results = Train(Options(dtype, 3, 80, folder.path()));
  return results[0].losses.back();
}

TEST_P(GradientWire, EveryTypeLearnsAsFp32Does) {
  const double fp32 = LastLoss(v1::GRADIENT_DTYPE_FP32);
  EXPECT_NEAR(LastLoss(v1::GRADIENT_DTYPE_BF16), fp32, 0.01 * fp32);
  EXPECT_NEAR(LastLoss(v1::GRADIENT_DTYPE_INT8), fp32, 0.01 * fp32);
}

TEST_P(GradientWire, TheSameSplitGivesTheSameBits) {
  EXPECT_EQ(LastLoss(v1::GRADIENT_DTYPE_INT8), LastLoss(v1::GRADIENT_DTYPE_INT8));
}

// A power of two changes no bit, unless what is owed stays in units of the former scale.
TEST_P(GradientWire, WhatIsOwedFollowsTheLossScale) {
  const auto weights = [](int64_t doubles_after) {
    const TestFolder folder;
    WorldOptions options = Options(v1::GRADIENT_DTYPE_INT8, 2, 6, folder.path());
    options.wrap = [doubles_after](int, Replica& replica, std::unique_ptr<SampleSource> samples) {
      replica.counters().loss_scale = {
          .dynamic = 1, .exponent = 0, .finite_in_a_row = LossScale::kGrowAfter - doubles_after};
      return samples;
    };
    const std::vector<RankResult> results = Train(options);
    EXPECT_EQ(results[0].replica->counters().loss_scale.exponent, doubles_after < 6 ? 1 : 0);
    return results[0].replica->parameters().flat().Only().clone();
  };
  EXPECT_TRUE(torch::equal(weights(/*doubles_after=*/3), weights(/*doubles_after=*/100)));
}

TEST_P(GradientWire, ARunResumedWithInt8HasTheBitsOfTheUninterruptedOne) {
  const TestFolder straight_folder, stopped_folder;
  WorldOptions straight = Options(v1::GRADIENT_DTYPE_INT8, 3, 20, straight_folder.path());
  straight.spec.mutable_checkpoint()->set_every_steps(10);
  WorldOptions stopped = straight;
  stopped.checkpoints = stopped_folder.path();
  stopped.script = StopAfter(10, StopKeeps::kCheckpoint);
  const std::vector<RankResult> expected = Train(straight);
  EXPECT_EQ(Train(stopped)[0].replica->step(), Step(10));
  stopped.script = {};
  const std::vector<RankResult> resumed = Train(stopped);
  EXPECT_EQ(resumed[0].losses.size(), 10u);
  EXPECT_EQ(resumed[0].fingerprint, expected[0].fingerprint);
  const torch::Tensor residual = resumed[0].replica->residual().values();
  EXPECT_GT(residual.abs().max().item<float>(), 0) << "nothing was left to restore";
  EXPECT_TRUE(torch::equal(residual, expected[0].replica->residual().values()));
}

TEST_P(GradientWire, WhatIsOwedSurvivesAnotherWorldSizeAndAnotherType) {
  const TestFolder folder;
  WorldOptions options = Options(v1::GRADIENT_DTYPE_INT8, 3, 30, folder.path());
  options.script = StopAfter(10, StopKeeps::kCheckpoint);
  const std::vector<RankResult> first = Train(options);
  const torch::Tensor owed = first[0].replica->residual().values();
  options.ranks = 2;
  options.script = {};  // nothing is left to train
  options.spec.mutable_train()->set_steps(10);
  const std::vector<RankResult> second = Train(options);
  EXPECT_TRUE(torch::equal(second[1].replica->residual().values(), owed));
  options.spec.mutable_train()->set_steps(30);
  options.spec.mutable_parallel()->set_gradient_dtype(v1::GRADIENT_DTYPE_FP32);
  EXPECT_EQ(Train(options)[0].losses.size(), 20u);
}

TEST_P(GradientWire, ARankAloneAddsWhatIsOwed) {
  const TestFolder folder;
  WorldOptions options = Options(v1::GRADIENT_DTYPE_INT8, 3, 30, folder.path());
  options.script = StopAfter(10, StopKeeps::kCheckpoint);
  const torch::Tensor owed = Train(options)[0].replica->residual().values();
  EXPECT_GT(owed.abs().max().item<float>(), 0);
  options.ranks = 1;
  options.script = {};
  options.spec.mutable_train()->set_steps(11);
  EXPECT_EQ(Train(options)[0].replica->residual().values().abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace espalier
