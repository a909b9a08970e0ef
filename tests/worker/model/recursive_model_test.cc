// Tiny recursive models: what a position sees, where gradients come from, and what begins how.
#include "worker/model/recursive_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/worker/support/tiny_trm.h"

namespace espalier {
namespace {

using torch::Tensor;

Tensor HighAfter(const TinyTrm& tiny, const Tensor& ids, int steps) {
  torch::NoGradGuard no_grad;
  RecursiveModel::State state = tiny.model->Begin(ids.size(0), ids.size(1));
  for (int step = 0; step < steps; ++step) state = tiny.model->Think(ids, state);
  return state.high;
}

Tensor Ids(int64_t positions) {
  return (torch::arange(2 * positions) * 5 + 3).remainder(23).view({2, positions});
}

// Which positions change when the token at `changed` does.
std::vector<bool> ChangedBy(const DecoderConfig& config, int64_t changed) {
  const TinyTrm tiny(config);
  const Tensor ids = Ids(6), others = ids.clone();
  others[0][changed] = 22 - others[0][changed];
  const Tensor difference = (HighAfter(tiny, ids, 2) - HighAfter(tiny, others, 2)).abs().amax(2);
  std::vector<bool> result;
  for (int64_t i = 0; i < 6; ++i) result.push_back(difference[0][i].item<double>() > 1e-7);
  EXPECT_EQ(difference[1].max().item<double>(), 0) << "another sequence";
  return result;
}

// In 16 bits: at whole 16 bytes, where products are fast.
TEST(RecursiveModel, ItsMatricesBeginWhereProductsAreFast) {
  const TinyTrm tiny(TinyTrmConfig(/*causal=*/true));
  for (const Parameter& one : tiny.parameters.all()) {
    const bool matrix =
        one.shape.role == ParameterRole::kMatrix || one.shape.role == ParameterRole::kHead;
    if (!matrix) continue;
    EXPECT_EQ(one.offset % 8, 0) << one.shape.name;
  }
}

TEST(RecursiveModel, OfTextSeesNothingOfWhatComesLater) {
  EXPECT_EQ(ChangedBy(TinyTrmConfig(/*causal=*/true), 3),
            (std::vector<bool>{false, false, false, true, true, true}));
}

TEST(RecursiveModel, OfPuzzlesSeesAllPlaces) {
  for (const bool mixes : {false, true}) {
    DecoderConfig config = TinyTrmConfig(/*causal=*/false);
    config.recursion->mix_positions = mixes;
    EXPECT_EQ(ChangedBy(config, 3), std::vector<bool>(6, true)) << mixes;
  }
}

TEST(RecursiveModel, PlacesDifferByTheirPositionsAlone) {
  using Positions = RecursionConfig::Positions;
  for (const Positions positions : {Positions::kRope, Positions::kLearned, Positions::kNone}) {
    DecoderConfig config = TinyTrmConfig(/*causal=*/false);
    config.recursion->positions = positions;
    const Tensor high = HighAfter(TinyTrm(config), torch::full({1, 6}, 4, torch::kLong), 1)[0];
    const double apart = (high[0] - high[5]).abs().max().item<double>();
    // Turned keys tell nothing where all values are equal.
    EXPECT_EQ(apart > 1e-5, positions == Positions::kLearned);
  }
}

TEST(RecursiveModel, WhatItComesToIsNormal) {
  const Tensor high = HighAfter(TinyTrm(TinyTrmConfig(true)), Ids(6), 3);
  const Tensor size = high.square().mean(2);
  EXPECT_TRUE(torch::allclose(size, torch::ones_like(size), 1e-3, 1e-3));
}

// The gradients of all uses of a weight, by LibTorch from the leaves themselves.
TEST(RecursiveModel, GradientsAreOfTheLastCycleAndAreAddedAtOnce) {
  TinyTrm tiny(TinyTrmConfig(/*causal=*/true));
  const Tensor ids = Ids(6), targets = ids.flip({1}).contiguous();
  const auto pass = [&](const RecursiveModel::State& from, const PassInputs& inputs) {
    const RecursiveModel::State state = tiny.model->Think(ids, from, inputs);
    tiny.model->LossSum(state.high, targets, {}, inputs).backward();
  };
  const RecursiveModel::State begin = tiny.model->Begin(2, 6);
  const Parameter& weight = *tiny.parameters.Find("inner.L_level.layers.0.mlp.down_proj.weight");
  const int64_t version = weight.leaf.grad()._version();
  std::vector<int64_t> ends;
  pass(begin, {.gradients_final = [&](int64_t end) { ends.push_back(end); }});
  EXPECT_EQ(weight.leaf.grad()._version(), version + 1);
  EXPECT_EQ(ends, (std::vector<int64_t>{tiny.parameters.trained_elements()}));
  const Tensor whole = weight.leaf.grad().clone();
  // One cycle from where the cycles before it have come to has the same.
  DecoderConfig config = TinyTrmConfig(/*causal=*/true);
  RecursiveModel::State before = begin;
  config.recursion->high_cycles = 1;
  const RecursiveModel one(config, tiny.parameters);
  {
    torch::NoGradGuard no_grad;
    for (int64_t i = 1; i < TinyTrmConfig(true).recursion->high_cycles; ++i) {
      before = one.Think(ids, before);
    }
  }
  tiny.parameters.ZeroGradients();
  one.LossSum(one.Think(ids, before).high, targets, {}).backward();
  EXPECT_TRUE(torch::equal(weight.leaf.grad(), whole));
}

TEST(RecursiveModel, PositionsBesideAFrozenEmbeddingAreAmongTheFinalGradients) {
  for (const bool frozen : {true, false}) {
    DecoderConfig config = TinyTrmConfig(/*causal=*/false);
    config.recursion->positions = RecursionConfig::Positions::kLearned;
    TinyTrm tiny(config);
    const auto leaf = [&](const char* name) { return tiny.parameters.Find(name)->leaf; };
    Tensor(leaf("inner.embed_tokens.embedding_weight")).set_requires_grad(!frozen);
    const Tensor positions = leaf("inner.embed_pos.embedding_weight"), ids = Ids(6);
    Tensor handed_over;
    const PassInputs inputs{.gradients_final = [&](int64_t end) {
      EXPECT_EQ(end, tiny.parameters.trained_elements());
      handed_over = positions.grad().clone();
    }};
    const RecursiveModel::State state = tiny.model->Think(ids, tiny.model->Begin(2, 6), inputs);
    tiny.model->LossSum(state.high, ids.flip({1}).contiguous(), {}, inputs).backward();
    ASSERT_TRUE(handed_over.defined()) << frozen;
    EXPECT_TRUE(torch::equal(handed_over, positions.grad())) << frozen;
    EXPECT_GT(handed_over.abs().max().item<double>(), 0) << frozen;
  }
}

TEST(RecursiveModel, GradientsAreThoseThatDifferencesShow) {
  for (const bool causal : {true, false}) {
    DecoderConfig config = TinyTrmConfig(causal);
    config.recursion->high_cycles = 1;  // others have no gradient
    config.recursion->positions = RecursionConfig::Positions::kLearned;
    TinyTrm tiny(config);
    const Tensor ids = Ids(6), targets = ids.flip({1}).contiguous();
    const auto loss = [&] {
      const RecursiveModel::State state = tiny.model->Think(ids, tiny.model->Begin(2, 6));
      const Tensor last = torch::tensor({int64_t{3}, int64_t{5}});
      return tiny.model->LossSum(state.high, targets, {}) +
             (tiny.model->Halting(state.high, last) * torch::tensor({2.0, -1.0})).sum();
    };
    loss().backward();
    torch::NoGradGuard no_grad;
    for (const Parameter& parameter : tiny.parameters.all()) {
      if (parameter.shape.role == ParameterRole::kState) {
        EXPECT_EQ(parameter.leaf.grad().abs().max().item<double>(), 0) << "it is not learnt";
        continue;
      }
      torch::manual_seed(1);
      const Tensor direction = torch::randn(parameter.shape.shape);
      constexpr double kStep = 2e-3;
      Tensor(parameter.value).add_(direction, kStep);
      const auto above = loss().item<double>();
      Tensor(parameter.value).sub_(direction, 2 * kStep);
      const auto below = loss().item<double>();
      Tensor(parameter.value).add_(direction, kStep);
      const auto slope = (parameter.leaf.grad() * direction).sum().item<double>();
      EXPECT_NEAR((above - below) / (2 * kStep), slope, 0.02 * std::abs(slope) + 0.02)
          << parameter.shape.name;
    }
  }
}

TEST(RecursiveModel, LayersThatAreComputedAgainGiveTheSameBits) {
  std::vector<Tensor> gradients;
  for (const bool again : {false, true}) {
    TinyTrm tiny(TinyTrmConfig(/*causal=*/false));
    if (again) tiny.model->set_recompute({true, true});
    const RecursiveModel::State state = tiny.model->Think(Ids(6), tiny.model->Begin(2, 6));
    tiny.model->LossSum(state.high, Ids(6), {}).backward();
    gradients.push_back(tiny.parameters.flat_gradient().Only().clone());
  }
  EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
}

TEST(RecursiveModel, HaltingIsReadWhereTheConfigSays) {
  for (const bool last : {false, true}) {
    DecoderConfig config = TinyTrmConfig(/*causal=*/true);
    config.recursion->halt_reads_last = last;
    TinyTrm tiny(config);
    torch::NoGradGuard no_grad;
    Tensor(tiny.parameters.Get("inner.q_head.weight")).normal_();
    const Tensor high = HighAfter(tiny, Ids(6), 1),
                 places = torch::tensor({int64_t{2}, int64_t{5}});
    const Tensor weight = tiny.parameters.Get("inner.q_head.weight");
    const Tensor read = last ? torch::stack({high[0][2], high[1][5]}) : high.select(1, 0);
    EXPECT_TRUE(torch::allclose(tiny.model->Halting(high, places), read.matmul(weight.t()) - 5,
                                1e-4, 1e-5));
  }
}

TEST(RecursiveModel, BeginsAsTheOriginalDoes) {
  DecoderConfig config = TinyTrmConfig(true);
  config.hidden_size = 64;
  config.head_dim = 32;
  config.intermediate_size = 512;
  const TinyTrm tiny(config);
  const auto deviation = [&](const char* name) {
    return tiny.parameters.Get(name).std().item<double>();
  };
  const auto largest = [&](const char* name) {
    return tiny.parameters.Get(name).abs().max().item<double>();
  };
  const char* down = "inner.L_level.layers.1.mlp.down_proj.weight";
  const double expected = 1 / std::sqrt(512.0);
  EXPECT_NEAR(deviation(down), expected, 0.02 * expected);
  EXPECT_LE(largest(down), 2 * expected / 0.8796 + 1e-6);
  EXPECT_GT(largest(down), 1.9 * expected / 0.8796);
  EXPECT_NEAR(deviation("inner.embed_tokens.embedding_weight"), 1.0 / 8, 0.01);
  EXPECT_NEAR(deviation("inner.H_init"), 1, 0.25);
  EXPECT_EQ(largest("inner.q_head.weight"), 0);
  EXPECT_EQ(tiny.parameters.Get("inner.q_head.bias")[0].item<double>(), -5);
}

}  // namespace
}  // namespace espalier
