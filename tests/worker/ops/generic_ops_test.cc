// The operations in LibTorch's operators: values against the formulas, gradients against finite
// differences, both in double precision; gradients land in the flat buffer where there is one.
#include "worker/ops/generic_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "tests/worker/ops/finite_differences.h"
#include "worker/ops/ops.h"

namespace espalier::generic_ops {
namespace {

using torch::Tensor;

class GenericOps : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(5); }
};

TEST_F(GenericOps, LinearGradients) {
  ExpectGradients(
      [](const Inputs& in) {
        return ops::Linear(in[0], {in[1], in[2]});
      },
      {Random({2, 3, 5}), Random({4, 5}), Random({4})});
  ExpectGradients(
      [](const Inputs& in) {
        return ops::Linear(in[0], {in[1], {}});
      },
      {Random({3, 5}), Random({4, 5})});
}

// Beyond what MPS multiplies rightly: made in parts, forward in the input and back in the output.
TEST_F(GenericOps, LinearOfALongCommonDimensionIsMadeInParts) {
  constexpr int64_t kLong = 2 * kMostReduction + 5;
  for (const auto& [in, out] : {std::pair{kLong, int64_t{3}}, {int64_t{3}, kLong}}) {
    const Tensor x = Random({2, 3, in}).set_requires_grad(true), residual = Random({2, 3, out}),
                 weight = Random({out, in}), bias = Random({out});
    for (const bool transposed : {false, true}) {
      const ops::Projection projection{transposed ? weight.t().contiguous() : weight, bias,
                                       transposed};
      const Tensor expected = torch::linear(x, weight, bias), dy = torch::randn_like(expected);
      const Tensor dx = torch::autograd::grad({expected}, {x}, {dy})[0];
      const auto near = [](const Tensor& a, const Tensor& b) {
        return (a - b).abs().max().item<double>() < 1e-9;
      };
      const Tensor y = ops::Linear(x, projection), sum = ops::LinearAdd(x, projection, residual);
      EXPECT_TRUE(near(y, expected)) << in << " " << transposed;
      EXPECT_TRUE(near(sum, expected + residual)) << in << " " << transposed;
      EXPECT_TRUE(near(torch::autograd::grad({y}, {x}, {dy})[0], dx)) << in << " " << transposed;
    }
  }
}

TEST_F(GenericOps, RmsNormValuesAndGradients) {
  const Tensor x = Random({2, 3, 6}), weight = Random({6});
  const Tensor expected = x * weight / (x.pow(2).mean(-1, true) + 1e-3).sqrt();
  EXPECT_TRUE(
      torch::allclose(ops::Normalize(x, {weight, {}, 1e-3}, torch::kDouble), expected, 1e-12));
  ExpectGradients(
      [](const Inputs& in) {
        return ops::Normalize(in[0], {in[1], {}, 1e-3}, torch::kDouble);
      },
      {x, weight});
}

TEST_F(GenericOps, LayerNormValuesAndGradients) {
  const Inputs inputs = {Random({2, 3, 6}), Random({6}), Random({6}), Random({6, 5}), Random({5})};
  const auto norm = [](const Inputs& in) {
    return ops::Normalize(in[0], {in[1], in[2], 1e-3}, torch::kDouble);
  };
  const Tensor centred = inputs[0] - inputs[0].mean(-1, true);
  const Tensor expected =
      centred * inputs[1] / (centred.pow(2).mean(-1, true) + 1e-3).sqrt() + inputs[2];
  EXPECT_TRUE(torch::allclose(norm(inputs), expected, 1e-12));
  ExpectGradients(norm, {inputs.begin(), inputs.begin() + 3});
  const auto products = [](const Inputs& in) {
    const ops::Branches out =
        ops::NormLinears(in[0], {in[1], in[2], 1e-3}, {{in[3], in[4], /*transposed=*/true}});
    const std::vector<Tensor> parts = ops::Split(out.products[0], {3, 2});
    return torch::cat({out.residual, parts[1], parts[0]}, -1);
  };
  const Tensor y = expected.matmul(inputs[3]) + inputs[4];
  EXPECT_TRUE(torch::allclose(products(inputs),
                              torch::cat({inputs[0], y.narrow(-1, 3, 2), y.narrow(-1, 0, 3)}, -1),
                              1e-12));
  ExpectGradients(products, inputs);
}

TEST_F(GenericOps, TransposedProductsAfterGelu) {
  const Inputs inputs = {Random({2, 3, 4}), Random({4, 5}), Random({5}), Random({2, 3, 5})};
  const auto gelu = [](const Inputs& in) {
    return ops::GeluLinearAdd(in[0], {in[1], in[2], /*transposed=*/true}, in[3]);
  };
  const Tensor inner = std::sqrt(2 / M_PI) * (inputs[0] + 0.044715 * inputs[0].pow(3));
  const Tensor expected =
      (0.5 * inputs[0] * (1 + inner.tanh())).matmul(inputs[1]) + inputs[2] + inputs[3];
  EXPECT_TRUE(torch::allclose(gelu(inputs), expected, 1e-12));
  ExpectGradients(gelu, inputs);
  ExpectGradients(
      [](const Inputs& in) {
        return ops::LinearAdd(in[0], {in[1], in[2], /*transposed=*/true}, in[3]);
      },
      inputs);
}

TEST_F(GenericOps, PositionsAreAddedToEverySequence) {
  const Inputs inputs = {Random({2, 3, 4}), Random({7, 4})};
  const auto add = [](const Inputs& in) { return ops::AddPositions(in[0], in[1], 2); };
  const Tensor y = add(inputs);
  EXPECT_TRUE(torch::equal(y[1][2], inputs[0][1][2] + inputs[1][4]));
  ExpectGradients(add, inputs);
  const Tensor table = Random({7, 4}).set_requires_grad(true);
  table.mutable_grad() = torch::ones({7, 4}, torch::kDouble);
  ops::AddPositions(inputs[0], table, 2).sum().backward();
  EXPECT_TRUE(torch::equal(table.grad().sum(1),
                           torch::tensor({4., 4., 12., 12., 12., 4., 4.}, torch::kDouble)));
}

TEST_F(GenericOps, SwiGluLinearAddValuesAndGradients) {
  const Inputs inputs = {Random({3, 4}), Random({3, 4}), Random({2, 4}), Random({2}),
                         Random({3, 2})};
  const auto function = [](const Inputs& in) {
    return ops::SwiGluLinearAdd(in[0], in[1], {in[2], in[3]}, in[4]);
  };
  const Tensor expected =
      inputs[4] +
      torch::linear(inputs[0] * torch::sigmoid(inputs[0]) * inputs[1], inputs[2], inputs[3]);
  EXPECT_TRUE(torch::allclose(function(inputs), expected, 1e-12));
  ExpectGradients(function, inputs);
}

TEST_F(GenericOps, NormLinearsValuesAndGradients) {
  const Inputs inputs = {Random({2, 3, 5}), Random({5}), Random({4, 5}), Random({4}),
                         Random({2, 5})};
  const auto function = [](const Inputs& in) {
    const ops::Branches out =
        ops::NormLinears(in[0], {in[1], {}, 1e-3}, {{in[2], in[3]}, {in[4], {}}});
    return torch::cat({out.residual, out.products[0], out.products[1]}, -1);
  };
  const Tensor normal = ops::Normalize(inputs[0], {inputs[1], {}, 1e-3}, torch::kDouble);
  const Tensor expected = torch::cat(
      {inputs[0], torch::linear(normal, inputs[2], inputs[3]), torch::linear(normal, inputs[4])},
      -1);
  EXPECT_TRUE(torch::allclose(function(inputs), expected, 1e-12));
  ExpectGradients(function, inputs);
}

// As the flat buffers have them, last first.
Inputs Neighbours(const std::vector<int64_t>& rows, int64_t columns) {
  const Tensor flat = Random({std::accumulate(rows.begin(), rows.end(), int64_t{0}), columns});
  Inputs neighbours;
  int64_t end = flat.size(0);
  for (const int64_t count : rows) {
    neighbours.push_back(flat.narrow(0, end -= count, count));
  }
  return neighbours;
}

TEST_F(GenericOps, NeighboursAreOneProductWithTheirOwnGradients) {
  const Tensor x = Random({2, 3, 5}).set_requires_grad(true), norm = Random({5});
  Inputs weights = Neighbours({4, 3, 2}, 5), gradients = Neighbours({4, 3, 2}, 5), before, alone;
  for (size_t i = 0; i < 3; ++i) {
    before.push_back(gradients[i].clone());
    alone.push_back(weights[i].clone().set_requires_grad(true));
    weights[i].set_requires_grad(true).mutable_grad() = gradients[i];
  }
  const auto products = [&](const Inputs& w) {
    const ops::Branches out =
        ops::NormLinears(x, {norm, {}, 1e-3}, {{w[0], {}}, {w[1], {}}, {w[2], {}}});
    return out.products;
  };
  const Inputs joined = products(weights), apart = products(alone);
  EXPECT_TRUE(joined[0].is_alias_of(joined[2])) << "not one product";
  EXPECT_FALSE(apart[0].is_alias_of(apart[2]));
  const auto sum = [](const Inputs& y) {
    return (y[0].square().sum() + y[1].square().sum() + y[2].square().sum()) / 2;
  };
  const Tensor dx =
      torch::autograd::grad({sum(joined)}, {x, weights[0], weights[1], weights[2]}, {},
                            /*retain_graph=*/{}, /*create_graph=*/false,
                            /*allow_unused=*/true)[0];
  const Inputs expected = torch::autograd::grad({sum(apart)}, {x, alone[0], alone[1], alone[2]});
  EXPECT_TRUE(torch::allclose(dx, expected[0], 1e-10));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(torch::allclose(gradients[i], before[i] + expected[i + 1], 1e-10)) << i;
  }
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

// A product of 16-bit numbers would round what a pass adds, here 257 to 256.
TEST_F(GenericOps, WeightGradientsAreSummedInFp32) {
  Tensor weight = torch::ones({1, 1}, torch::kBFloat16).set_requires_grad(true);
  weight.mutable_grad() = torch::zeros({1, 1});
  const Tensor ones = torch::ones({257, 1}, torch::kBFloat16);
  WeightGradient(weight, ones, ones);
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
    Tensor x = ops::Normalize(Embedding(ids, weights[0]), {weights[1], {}, 1e-5}, torch::kDouble);
    x = ops::Linear(x, {weights[2], weights[3]});
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
