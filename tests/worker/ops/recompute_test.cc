// Computing layers again in the backward pass changes no bit of the gradient, whatever is frozen
// and whatever is dropped, and keeps the promise of PassInputs::gradients_final.
#include "worker/ops/recompute.h"

#include <functional>

#include "tests/worker/support/tiny_model.h"

namespace espalier {
namespace {

using torch::Tensor;

struct Case {
  const char* name;
  torch::ScalarType type;
  double dropout;
  std::function<bool(const ParameterShape&)> frozen;
  Architecture architecture = Architecture::kLlama;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

bool Nothing(const ParameterShape&) { return false; }
bool IsEmbedding(const ParameterShape& shape) { return shape.is_embedding(); }
bool IsFirstLayerOrEmbedding(const ParameterShape& shape) {
  return shape.layer == 0 || IsEmbedding(shape);
}
bool IsMatrix(const ParameterShape& shape) { return shape.decay; }

DecoderConfig Config(Architecture architecture = Architecture::kLlama) {
  const bool gpt2 = architecture == Architecture::kGpt2;
  DecoderConfig config = gpt2 ? TinyGpt2Config() : TinyModelConfig();
  config.tie_word_embeddings = false;
  if (gpt2) return config;
  config.qk_norm = config.attention_bias = true;
  return config;
}

struct Passed {
  double loss;
  Tensor gradient;
  std::vector<int64_t> ends;
};

// One pass over six sequences of twelve tokens.
Passed Pass(const Case& c, std::vector<bool> recompute) {
  Parameters::Options options = Trained(EmbeddingGradient::kDense, torch::kCPU, c.type);
  options.trained = [&c](const ParameterShape& shape) { return !c.frozen(shape); };
  TinyModel model(Config(c.architecture), options);
  model.decoder->set_recompute(std::move(recompute));
  Passed result;
  const Tensor ids = SomeIds(6, 12, 23), targets = (ids * 3 + 1).remainder(23);
  const PassInputs inputs{.dropout = {c.dropout, torch::arange(6, torch::kLong) * 7919},
                          .gradients_final = [&](int64_t end) { result.ends.push_back(end); }};
  const Tensor loss = model.decoder->LossSum(ids, targets, {}, inputs);
  result.loss = loss.item<double>();
  loss.backward();
  result.gradient = model.parameters.flat_gradient().Only();
  return result;
}

class Recomputation : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    All, Recomputation,
    testing::Values(Case{"Fp32", torch::kFloat, 0, Nothing},
                    Case{"Bf16", torch::kBFloat16, 0, Nothing},
                    Case{"Dropout", torch::kFloat, 0.3, Nothing},
                    Case{"DropoutInBf16", torch::kBFloat16, 0.3, Nothing},
                    Case{"FrozenEmbedding", torch::kFloat, 0.3, IsEmbedding},
                    Case{"FrozenFirstLayer", torch::kFloat, 0.3, IsFirstLayerOrEmbedding},
                    Case{"FrozenMatrices", torch::kBFloat16, 0, IsMatrix},
                    Case{"Gpt2", torch::kFloat, 0.3, Nothing, Architecture::kGpt2},
                    Case{"Gpt2FrozenMatrices", torch::kBFloat16, 0, IsMatrix, Architecture::kGpt2}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(Recomputation, ChangesNoBit) {
  const Passed kept = Pass(GetParam(), {});
  EXPECT_GT(kept.gradient.norm().item<double>(), 0);
  for (const std::vector<bool>& layers :
       {std::vector<bool>{true, true, true}, {true, false, true}, {false, true, false}}) {
    const Passed again = Pass(GetParam(), layers);
    EXPECT_EQ(again.loss, kept.loss);
    EXPECT_TRUE(torch::equal(again.gradient, kept.gradient));
    EXPECT_EQ(again.ends, kept.ends);
  }
}

// A prefix that was told to be final does not change any more.
TEST(RecomputedLayers, TellOfTheirGradientsWhenTheyAreFinal) {
  TinyModel model(Config());
  model.decoder->set_recompute({true, true, true});
  std::vector<Tensor> seen;
  const PassInputs inputs{.gradients_final = [&](int64_t end) {
    seen.push_back(model.parameters.flat_gradient().Only().narrow(0, 0, end).clone());
  }};
  const Tensor ids = SomeIds(2, 9, 23);
  model.decoder->LossSum(ids, (ids + 1).remainder(23), {}, inputs).backward();
  ASSERT_EQ(seen.size(), 11U);
  for (const Tensor& prefix : seen) {
    EXPECT_TRUE(
        torch::equal(prefix, model.parameters.flat_gradient().Only().narrow(0, 0, prefix.numel())));
  }
}

// Between forward and backward a recomputed part keeps its input only.
TEST(RecomputedLayers, KeepNoIntermediateValues) {
  const Tensor x = torch::randn({4, 8}).set_requires_grad(true);
  c10::weak_intrusive_ptr<at::TensorImpl> middle(x.getIntrusivePtr());
  int calls = 0;
  const auto body = [&](const std::vector<Tensor>& in) {
    ++calls;
    const Tensor squared = in[0] * in[0];
    middle = c10::weak_intrusive_ptr<at::TensorImpl>(squared.getIntrusivePtr());
    return squared * squared;
  };
  const Tensor y = Recompute(body, {x}, {});
  EXPECT_TRUE(middle.expired()) << "the square is kept";
  EXPECT_EQ(calls, 1);
  y.sum().backward();
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(torch::allclose(x.grad(), 4 * x.detach().pow(3)));
}

TEST(RecomputedLayers, GiveEachInputItsGradient) {
  const Tensor x = torch::randn({3}).set_requires_grad(true), fixed = torch::randn({3}),
               plus = torch::randn({3}).set_requires_grad(true);
  const auto body = [](const std::vector<Tensor>& in) { return in[0] * in[1] + in[2] * in[2]; };
  Recompute(body, {x, fixed, plus}, {}).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), fixed));
  EXPECT_TRUE(torch::equal(plus.grad(), 2 * plus.detach()));
  EXPECT_FALSE(fixed.grad().defined());
}

// Weights without a gradient buffer get theirs through autograd.
TEST(RecomputedLayers, GiveUnboundWeightsTheirGradients) {
  const Tensor x = torch::randn({3}), weight = torch::randn({3}).set_requires_grad(true);
  const Tensor y =
      Recompute([&](const std::vector<Tensor>& in) { return in[0] * weight; }, {x}, {weight});
  const auto gradient = torch::autograd::grad({y.sum()}, {weight});
  EXPECT_TRUE(torch::equal(gradient[0], x));
  EXPECT_FALSE(weight.grad().defined());
}

}  // namespace
}  // namespace espalier
