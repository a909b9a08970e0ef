// The loss of going on (halt_continue), written out: what a step after this one promises, of which
// a sample's last step has none.
#include <gtest/gtest.h>

#include "tests/worker/support/tiny_trm.h"
#include "tests/worker/support/training_world.h"
#include "worker/task/deep_supervision.h"

namespace espalier {
namespace {

using torch::Tensor;

constexpr int64_t kLength = 32, kRows = 2;

DecoderConfig Config(int64_t halt_max_steps, bool halt_continue) {
  DecoderConfig config = TinyTrmConfig(/*causal=*/true);
  config.vocab_size = 50;
  config.max_position_embeddings = kLength;
  config.recursion->halt_max_steps = halt_max_steps;
  config.recursion->halt_continue = halt_continue;
  return config;
}

// Nobody wants to halt, and all learn from going on.
class HaltContinue : public testing::TestWithParam<int64_t> {
 protected:
  HaltContinue()
      : task_(DeepSupervision::Kind::kText, kLength, TinyExamples(9), TinyExamples(9), /*seed=*/5),
        tiny_(Config(GetParam(), true)),
        without_(Config(GetParam(), false), tiny_.parameters) {
    torch::NoGradGuard no_grad;
    torch::manual_seed(3);
    Leaf("weight").copy_(0.1 * torch::randn({2, 16}));
    Leaf("bias").copy_(torch::tensor({-4.0F, 1.0F}));
    v1::JobSpec spec;
    spec.mutable_train()->set_global_batch(kRows);
    EXPECT_TRUE(slots_.Keep(task_.Keeps(spec, tiny_.model->config())).ok());
  }

  Tensor Leaf(const std::string& name) {
    return tiny_.parameters.Find("inner.q_head." + name)->leaf;
  }
  TokenBatch BatchOf(const Samples& samples) {
    return task_.Batch(samples, {0, samples.rows()}, transfers_);
  }
  Samples SamplesAt(Step step) {
    return *task_.Continue(step, {0, kRows}, *task_.training()->Read({2, 7}), slots_);
  }

  struct Learnt {
    double loss = 0;
    Tensor weight, bias;  // gradients
  };
  Learnt Learn(const Model& model, const TokenBatch& batch) {
    for (const char* name : {"weight", "bias"}) Leaf(name).mutable_grad() = Tensor();
    const Tensor loss = task_.LossSum(model, batch, {});
    loss.backward();
    return {loss.item<double>(), Leaf("weight").grad().clone(), Leaf("bias").grad().clone()};
  }
  void Keep(Step step, const Samples& samples, TokenBatch& batch) {
    const SlotRange rows{0, samples.rows()};
    task_.Send(step, samples, rows, batch.results, slots_, transfers_);
    task_.Keep(*tiny_.model, step, samples, rows, batch.results, slots_);
  }

  DeepSupervision task_;
  TinyTrm tiny_;
  RecursiveModel without_;
  SlotStates slots_;
  Transfers transfers_{torch::kCPU};
};

using AtEachStep = HaltContinue;

TEST_P(AtEachStep, TheTargetIsTheBestOfTheNextStepAndOfTheLastOneThatOfHalting) {
  const Tensor first = torch::zeros({kRows}, torch::kLong);
  RecursiveModel::State state;
  for (int64_t i = 0; i < GetParam(); ++i) {
    const Samples samples = SamplesAt(Step(i));
    TokenBatch batch = BatchOf(samples);
    ASSERT_EQ(samples.ids, (std::vector<int64_t>{2, 7})) << "they stay";
    const Learnt with = Learn(*tiny_.model, batch), without = Learn(without_, batch);
    {
      torch::NoGradGuard no_grad;
      if (i == 0) state = tiny_.model->Begin(kRows, batch.inputs.size(1));
      state = tiny_.model->Think(batch.inputs, state);
      const Tensor next = tiny_.model->Halting(tiny_.model->Think(batch.inputs, state).high, first);
      const Tensor halt = next.select(1, 0), going_on = next.select(1, 1);
      ASSERT_TRUE(going_on.gt(halt).all().item<bool>());
      const bool last = i + 1 == GetParam();
      const Tensor target = (last ? halt : torch::maximum(halt, going_on)).sigmoid();
      const Tensor logit = tiny_.model->Halting(state.high, first).select(1, 1);
      const Tensor p = logit.sigmoid();
      const Tensor loss = -(target * p.log() + (1 - target) * (1 - p).log()).sum();
      EXPECT_NEAR(with.loss - without.loss, 0.5 * loss.item<double>(), 1e-4) << "step " << i;
      const Tensor of_logit = 0.5 * (p - target);
      const Tensor weight = of_logit.unsqueeze(0).matmul(state.high.select(1, 0))[0];
      EXPECT_TRUE(torch::allclose((with.weight - without.weight)[1], weight, 1e-3, 1e-5))
          << "step " << i;
      EXPECT_NEAR((with.bias - without.bias)[1].item<double>(), of_logit.sum().item<double>(), 1e-5)
          << "step " << i;
      EXPECT_TRUE(torch::allclose(with.weight[0], without.weight[0])) << "of halting";
    }
    Keep(Step(i), samples, batch);
  }
}

// A step as long as the first: whoever waits for a worker has to see that it works.
TEST_P(AtEachStep, TheStepAfterThisOneShowsItsWorkToo) {
  const TokenBatch batch = BatchOf(SamplesAt(Step(0)));
  const auto shown = [&](const Model& model) {
    int calls = 0;
    task_.LossSum(model, batch, {.worked = [&](int64_t) { ++calls; }}).backward();
    return calls;
  };
  const DecoderConfig& config = tiny_.model->config();
  const int64_t passes = config.recursion->high_cycles * (config.recursion->low_cycles + 1);
  EXPECT_EQ(shown(*tiny_.model) - shown(without_), passes * config.layers);
}

INSTANTIATE_TEST_SUITE_P(Steps, AtEachStep, testing::Values(2, 3));

using NeverInVain = HaltContinue;

TEST_P(NeverInVain, AnEvaluationHasNoLossOfGoingOn) {
  const TokenBatch batch = BatchOf(*task_.validation()->Read({1, 4, 6}));
  torch::NoGradGuard no_grad;
  EXPECT_EQ(task_.LossSum(*tiny_.model, batch, {}).item<double>(),
            task_.LossSum(without_, batch, {}).item<double>());
  EXPECT_EQ(task_.EvaluationSums(*tiny_.model, batch, {}),
            task_.EvaluationSums(without_, batch, {}));
}

TEST_P(NeverInVain, TrainingWithOneSupervisionStepHasNone) {
  const TokenBatch batch = BatchOf(SamplesAt(Step(0)));
  const double with = Learn(*tiny_.model, batch).loss, without = Learn(without_, batch).loss;
  if (GetParam() == 1) {
    EXPECT_EQ(with, without);
  } else {
    EXPECT_GT(with, without + 0.1);
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, NeverInVain, testing::Values(1, 3));

}  // namespace
}  // namespace espalier
