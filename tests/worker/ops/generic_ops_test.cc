// The operations in LibTorch's operators: values against the formulas, gradients against finite
// differences, both in double precision; gradients land in the flat buffer where there is one.
#include "worker/ops/generic_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "worker/ops/ops.h"

namespace espalier::generic_ops {
namespace {

using torch::Tensor;
using Inputs = std::vector<Tensor>;
using Function = std::function<Tensor(const Inputs&)>;

Tensor Random(std::vector<int64_t> shape) { return torch::randn(shape, torch::kDouble); }

double WeightedSum(const Function& function, const Inputs& inputs, const Tensor& weights) {
  torch::NoGradGuard no_grad;
  return (function(inputs) * weights).sum().item<double>();
}

// Central differences of sum(weights * function(inputs)) by every element of every input.
void ExpectGradients(const Function& function, const Inputs& inputs) {
  for (const Tensor& input : inputs) input.set_requires_grad(true);
  const Tensor out = function(inputs);
  const Tensor weights = torch::randn_like(out);
  const auto gradients = torch::autograd::grad({out}, inputs, {weights});
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor flat = inputs[i].detach().view(-1), gradient = gradients[i].reshape(-1);
    for (int64_t j = 0; j < flat.numel(); ++j) {
      const double value = flat[j].item<double>();
      flat[j] = value + kStep;
      const double above = WeightedSum(function, inputs, weights);
      flat[j] = value - kStep;
      const double below = WeightedSum(function, inputs, weights);
      flat[j] = value;
      EXPECT_NEAR(gradient[j].item<double>(), (above - below) / (2 * kStep), 1e-6)
          << "input " << i << ", element " << j;
    }
  }
}

class GenericOps : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(5); }
};

TEST_F(GenericOps, LinearGradients) {
  ExpectGradients(
      [](const Inputs& in) {
        return Linear(in[0], {in[1], in[2]});
      },
      {Random({2, 3, 5}), Random({4, 5}), Random({4})});
  ExpectGradients(
      [](const Inputs& in) {
        return Linear(in[0], {in[1], {}});
      },
      {Random({3, 5}), Random({4, 5})});
}

TEST_F(GenericOps, RmsNormValuesAndGradients) {
  const Tensor x = Random({2, 3, 6}), weight = Random({6});
  const Tensor expected = x * weight / (x.pow(2).mean(-1, true) + 1e-3).sqrt();
  EXPECT_TRUE(torch::allclose(RmsNorm(x, weight, 1e-3, torch::kDouble), expected, 1e-12));
  ExpectGradients([](const Inputs& in) { return RmsNorm(in[0], in[1], 1e-3, torch::kDouble); },
                  {x, weight});
}

TEST_F(GenericOps, SwiGluValuesAndGradients) {
  const Tensor gate = Random({3, 4}), up = Random({3, 4});
  EXPECT_TRUE(torch::allclose(SwiGlu(gate, up), gate * torch::sigmoid(gate) * up, 1e-12));
  ExpectGradients([](const Inputs& in) { return SwiGlu(in[0], in[1]); }, {gate, up});
}

TEST_F(GenericOps, EmbeddingAddsRepeatedIds) {
  const Tensor ids = torch::tensor({1, 3, 1, 1}, torch::kLong).view({2, 2});
  ExpectGradients([ids](const Inputs& in) { return Embedding(ids, in[0]); }, {Random({4, 3})});
}

TEST_F(GenericOps, RopeRotatesHalvesByTheAngleOfThePosition) {
  DecoderConfig config;
  config.head_dim = 4;
  const RopeTable table = MakeRopeTable(config, 9, torch::kCPU);
  const Tensor x = Random({1, 9, 1, 4}), y = Rope(x, table);
  for (const auto& [pair, frequency] : {std::pair{0, 1.0}, std::pair{1, 0.01}}) {
    const double a = x[0][7][0][pair].item<double>(), b = x[0][7][0][pair + 2].item<double>();
    const double angle = 7 * frequency;
    EXPECT_NEAR(y[0][7][0][pair].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-6);
    EXPECT_NEAR(y[0][7][0][pair + 2].item<double>(), b * std::cos(angle) + a * std::sin(angle),
                1e-6);
  }
  ExpectGradients([&table](const Inputs& in) { return Rope(in[0], table); }, {x});
}

// softmax(q k' / sqrt(D)) v with explicit loops over what each position sees.
Tensor NaiveAttention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t window) {
  Tensor out = torch::zeros_like(q);
  const int64_t offset = k.size(1) - q.size(1), group = q.size(2) / k.size(2);
  for (int64_t b = 0; b < q.size(0); ++b) {
    for (int64_t t = 0; t < q.size(1); ++t) {
      for (int64_t h = 0; h < q.size(2); ++h) {
        const int64_t end = offset + t + 1;
        const int64_t begin = window > 0 ? std::max<int64_t>(0, end - window) : 0;
        const Tensor keys = k[b].slice(0, begin, end).select(1, h / group);
        const Tensor values = v[b].slice(0, begin, end).select(1, h / group);
        const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
        out[b][t][h] = torch::softmax(keys.mv(q[b][t][h]) * scale, 0).matmul(values);
      }
    }
  }
  return out;
}

struct AttentionCase {
  const char* name;
  int64_t query_time, key_time, heads, kv_heads, window;
};

class GenericAttention : public testing::TestWithParam<AttentionCase> {};

TEST_P(GenericAttention, EqualsTheFormulaForwardAndBackward) {
  const AttentionCase& c = GetParam();
  torch::manual_seed(3);
  const Inputs inputs = {Random({2, c.query_time, c.heads, 4}),
                         Random({2, c.key_time, c.kv_heads, 4}),
                         Random({2, c.key_time, c.kv_heads, 4})};
  const auto attention = [&](const Inputs& in) {
    return CausalAttention(in[0], in[1], in[2], c.window);
  };
  const Tensor expected = NaiveAttention(inputs[0], inputs[1], inputs[2], c.window);
  EXPECT_TRUE(torch::allclose(attention(inputs), expected, 1e-10, 1e-12));
  if (c.key_time <= 8) ExpectGradients(attention, inputs);
}

INSTANTIATE_TEST_SUITE_P(Shapes, GenericAttention,
                         testing::Values(AttentionCase{"OnePosition", 1, 1, 2, 2, 0},
                                         AttentionCase{"AllPositions", 6, 6, 2, 2, 0},
                                         AttentionCase{"GroupedHeads", 5, 5, 4, 2, 0},
                                         AttentionCase{"Window", 7, 7, 2, 1, 3},
                                         AttentionCase{"WindowOfOne", 4, 4, 2, 2, 1},
                                         AttentionCase{"LastPositionsOnly", 2, 7, 4, 2, 0},
                                         AttentionCase{"LastPositionsInAWindow", 3, 8, 2, 2, 4},
                                         AttentionCase{"SeveralBlocks", 300, 300, 2, 1, 0},
                                         AttentionCase{"SeveralBlocksAndWindow", 300, 310, 2, 2,
                                                       150}),
                         [](const auto& info) { return std::string(info.param.name); });

// Parts of the batch, blocks of fewer rows, single rows: what MPS needs of large batches.
TEST_P(GenericAttention, IsTheSameHoweverFewScoresExistAtATime) {
  const AttentionCase& c = GetParam();
  torch::manual_seed(3);
  const Inputs inputs = {Random({3, c.query_time, c.heads, 4}).set_requires_grad(true),
                         Random({3, c.key_time, c.kv_heads, 4}).set_requires_grad(true),
                         Random({3, c.key_time, c.kv_heads, 4}).set_requires_grad(true)};
  const Tensor whole = CausalAttention(inputs[0], inputs[1], inputs[2], c.window);
  const Tensor upstream = torch::randn_like(whole);
  const auto expected = torch::autograd::grad({whole}, inputs, {upstream});
  const int64_t row_bytes = c.heads * c.key_time * 8;
  for (const int64_t bound : {2 * c.query_time * row_bytes, 7 * row_bytes, int64_t{1}}) {
    const Tensor out = CausalAttention(inputs[0], inputs[1], inputs[2], c.window, bound);
    EXPECT_TRUE(torch::allclose(out, whole, 1e-12)) << bound;
    const auto found = torch::autograd::grad({out}, inputs, {upstream});
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-10, 1e-13)) << bound << ", " << i;
    }
  }
}

struct PartCase {
  const char* name;
  AttentionSize size;
  AttentionPart part;
};

class AttentionParts : public testing::TestWithParam<PartCase> {};

TEST_P(AttentionParts, StayBelowTheBound) {
  const PartCase& c = GetParam();
  const AttentionPart part = AttentionPartOf(c.size, 1024, kMostOperandBytes);
  EXPECT_EQ(part.rows, c.part.rows);
  EXPECT_EQ(part.batch, c.part.batch);
  EXPECT_LE(part.batch * part.rows * c.size.heads * c.size.keys * c.size.score_bytes,
            kMostOperandBytes);
  EXPECT_LE(part.rows * c.size.group, kMostReduction);
}

INSTANTIATE_TEST_SUITE_P(Sizes, AttentionParts,
                         testing::Values(PartCase{"Small", {2, 4, 2, 64, 4}, {2, 1024}},
                                         // 17 sequences passed 2^32 bytes.
                                         PartCase{"LargeBatch", {17, 32, 4, 2048, 4}, {4, 1024}},
                                         PartCase{"LongSequence", {8, 32, 4, 65536, 4}, {1, 128}},
                                         PartCase{
                                             "ManyHeadsShareKeys", {1, 64, 64, 1024, 4}, {1, 256}}),
                         [](const auto& info) { return std::string(info.param.name); });

// Scores near 500 are 2 apart in bfloat16: rounded to it they would choose other values.
TEST_F(GenericOps, AttentionDoesNotRoundScoresTo16Bits) {
  torch::manual_seed(4);
  Inputs narrow, wide;
  for (int i = 0; i < 3; ++i) {
    const double magnitude = i < 2 ? 4 : 1;
    narrow.push_back((Random({1, 40, 2, 64}) * magnitude).to(torch::kBFloat16));
    wide.push_back(narrow.back().to(torch::kDouble).set_requires_grad(true));
    narrow.back().set_requires_grad(true);
  }
  const Tensor out = CausalAttention(narrow[0], narrow[1], narrow[2], 0);
  const Tensor expected = CausalAttention(wide[0], wide[1], wide[2], 0);
  const Tensor upstream = torch::randn_like(out);
  out.backward(upstream);
  expected.backward(upstream.to(torch::kDouble));
  const auto error = [](const Tensor& a, const Tensor& b) {
    return ((a.to(torch::kDouble) - b).abs().max() / b.abs().max()).item<double>();
  };
  EXPECT_LT(error(out, expected), 5e-3);
  for (size_t i = 0; i < 3; ++i) EXPECT_LT(error(narrow[i].grad(), wide[i].grad()), 2e-2) << i;
}

// A product of 16-bit numbers would round what a pass adds, here 257 to 256.
TEST_F(GenericOps, WeightGradientsAreSummedInFp32) {
  Tensor weight = torch::ones({1, 1}, torch::kBFloat16).set_requires_grad(true);
  weight.mutable_grad() = torch::zeros({1, 1});
  const Tensor ones = torch::ones({257, 1}, torch::kBFloat16);
  Linear(ones, {weight, {}}).backward(ones);
  EXPECT_EQ(weight.grad().item<float>(), 257);
}

TEST_F(GenericOps, SumsOfHalfNumbersMayPassTheirRange) {
  const Tensor rows = torch::full({257, 1}, 300, torch::kHalf), sum = torch::zeros({1, 1});
  AddOuterProducts(sum, rows, rows);
  EXPECT_EQ(sum.item<float>(), 257 * 300 * 300);
}

TEST_F(GenericOps, HeadGradientsAreSummedInFp32) {
  const Tensor hidden = torch::zeros({257, 2}, torch::kBFloat16);
  hidden.select(1, 0).fill_(1);
  Tensor head = torch::zeros({2, 2}, torch::kBFloat16).set_requires_grad(true);
  head.mutable_grad() = torch::zeros({2, 2});
  LossSum(hidden, head, torch::zeros({257}, torch::kLong), {}).backward();
  EXPECT_EQ(head.grad()[1][0].item<float>(), 128.5F);  // each row: its probability of 0.5
}

// More rows than are added at a time, and a common dimension that is cut.
TEST_F(GenericOps, ProductsInPartsEqualTheWhole) {
  const Tensor dy = Random({40000, 3}), x = Random({40000, 2});
  const Tensor sum = torch::ones({3, 2}, torch::kDouble);
  AddOuterProducts(sum, dy, x);
  EXPECT_TRUE(torch::allclose(sum, dy.t().mm(x) + 1, 1e-10));
  EXPECT_TRUE(torch::allclose(BoundedProduct(dy.t(), x), dy.t().mm(x), 1e-10));
  const Tensor ones = torch::ones({2, 40000}, torch::kBFloat16);
  EXPECT_EQ(BoundedProduct(ones, ones.t()).scalar_type(), torch::kBFloat16);
}

TEST_F(GenericOps, CrossEntropyIgnoresMarkedTargets) {
  const Tensor hidden = Random({5, 4}), head = Random({7, 4});
  const Tensor targets = torch::tensor({3, -100, 0, 6, -100}, torch::kLong);
  const Tensor all = torch::log_softmax(hidden.mm(head.t()), 1);
  const double expected = -(all[0][3] + all[2][0] + all[3][6]).item<double>();
  EXPECT_NEAR(LossSum(hidden, head, targets, {}).item<double>(), expected, 1e-10);
  const Tensor rows = TargetLogProbabilities(hidden, head, targets);
  EXPECT_NEAR(rows[2].item<double>(), all[2][0].item<double>(), 1e-10);
  EXPECT_EQ(rows[1].item<double>(), 0);
  ExpectGradients([&](const Inputs& in) { return LossSum(in[0], in[1], targets, {}); },
                  {hidden, head});
}

// More rows than one chunk of logits holds.
TEST_F(GenericOps, CrossEntropyInChunksEqualsTheWhole) {
  const Tensor hidden = Random({40, 2}), head = Random({300000, 2});
  const Tensor targets = (torch::arange(40) * 1237).remainder(300000);
  const Tensor expected =
      torch::nll_loss(torch::log_softmax(hidden.mm(head.t()), 1), targets, {}, at::Reduction::Sum);
  EXPECT_NEAR(LossSum(hidden, head, targets, {}).item<double>(), expected.item<double>(), 1e-8);
}

// Gradients accumulate into the flat buffer, in place.
TEST_F(GenericOps, WeightGradientsAreAddedToTheBoundBuffer) {
  const Tensor ids = torch::tensor({0, 2}, torch::kLong).view({1, 2});
  const Tensor targets = torch::tensor({1, 0}, torch::kLong);
  Inputs weights = {Random({3, 4}), Random({4}), Random({4, 4}), Random({4}), Random({3, 4})};
  const auto loss = [&] {
    Tensor x = RmsNorm(Embedding(ids, weights[0]), weights[1], 1e-5, torch::kDouble);
    x = Linear(x, {weights[2], weights[3]});
    return LossSum(x.view({2, 4}), weights[4], targets, {}) * 0.5;
  };
  for (Tensor& weight : weights) weight.set_requires_grad(true);
  const auto expected = torch::autograd::grad({loss()}, weights);
  std::vector<void*> buffers;
  for (Tensor& weight : weights) {
    weight.mutable_grad() = torch::ones_like(weight);
    buffers.push_back(weight.grad().data_ptr());
  }
  loss().backward();
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_EQ(weights[i].grad().data_ptr(), buffers[i]) << "weight " << i;
    EXPECT_TRUE(torch::allclose(weights[i].grad(), expected[i] + 1, 1e-10)) << "weight " << i;
  }
}

}  // namespace
}  // namespace espalier::generic_ops
