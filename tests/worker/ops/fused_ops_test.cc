// The CPU kernels compute what the textbook formulas compute, forward and backward.
#include "worker/ops/fused_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "worker/tensor/torch.h"

namespace espalier::fused_ops {
namespace {

using torch::Tensor;
using Inputs = std::vector<Tensor>;
using Function = std::function<Tensor(const Inputs&)>;

Tensor Random(std::vector<int64_t> shape) { return torch::randn(shape); }

// Largest |a - b| relative to the largest |b| (or to 0.1, where b vanishes).
double Error(const Tensor& a, const Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(0.1)).item<double>();
}

using Places = std::vector<size_t>;  // in a list of inputs

// Values and gradients of both functions on the same inputs, for a random upstream gradient. The
// inputs at `in_full` stay fp32.
void ExpectSameIn(torch::ScalarType type, double tolerance, const Function& kernel,
                  const Function& formula, const Inputs& inputs, const Places& in_full) {
  SCOPED_TRACE(torch::toString(type));
  Inputs mine, theirs;
  for (const Tensor& input : inputs) {
    const bool full = std::count(in_full.begin(), in_full.end(), mine.size()) > 0;
    mine.push_back(
        input.detach().to(full ? torch::kFloat : type, /*non_blocking=*/false, /*copy=*/true));
    mine.back().set_requires_grad(true);
    theirs.push_back(mine.back().detach().to(torch::kDouble).set_requires_grad(true));
  }
  const Tensor out = kernel(mine), expected = formula(theirs);
  EXPECT_LT(Error(out.to(torch::kDouble), expected), tolerance);
  const Tensor upstream = torch::randn_like(out);
  out.backward(upstream);
  expected.backward(upstream.to(torch::kDouble));
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_TRUE(mine[i].grad().defined()) << "input " << i;
    EXPECT_LT(Error(mine[i].grad().to(torch::kDouble), theirs[i].grad()), tolerance)
        << "input " << i;
  }
}

// bfloat16 has 8 bits of mantissa, and intermediate results are rounded to it.
void ExpectSame(const Function& kernel, const Function& formula, const Inputs& inputs,
                const Places& in_full = {}) {
  ExpectSameIn(torch::kFloat, 1e-5, kernel, formula, inputs, {});
  ExpectSameIn(torch::kBFloat16, 2e-2, kernel, formula, inputs, in_full);
}

// softmax(q k^T / sqrt(D) + mask) v with the whole T x T matrix, in the layout [B, T, H, D].
Tensor NaiveAttention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t window) {
  const int64_t time = q.size(1), group = q.size(2) / k.size(2);
  const Tensor kk = k.repeat_interleave(group, 2).transpose(1, 2);
  const Tensor vv = v.repeat_interleave(group, 2).transpose(1, 2);
  Tensor scores = torch::matmul(q.transpose(1, 2), kk.transpose(2, 3)) /
                  std::sqrt(static_cast<double>(q.size(3)));
  const Tensor i = torch::arange(time).unsqueeze(1), j = torch::arange(time).unsqueeze(0);
  Tensor hidden = j > i;
  if (window > 0) hidden = hidden | (j <= i - window);
  scores = scores.masked_fill(hidden, -1e300);
  return torch::matmul(torch::softmax(scores, -1), vv).transpose(1, 2);
}

struct AttentionCase {
  const char* name;
  int64_t batch, time, heads, kv_heads, head_dim, window;
};

class CpuAttention : public testing::TestWithParam<AttentionCase> {};

TEST_P(CpuAttention, EqualsTheNaiveFormula) {
  const AttentionCase& c = GetParam();
  torch::manual_seed(1);
  ExpectSame([&](const Inputs& in) { return CausalAttention(in[0], in[1], in[2], c.window); },
             [&](const Inputs& in) { return NaiveAttention(in[0], in[1], in[2], c.window); },
             {Random({c.batch, c.time, c.heads, c.head_dim}),
              Random({c.batch, c.time, c.kv_heads, c.head_dim}),
              Random({c.batch, c.time, c.kv_heads, c.head_dim})});
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuAttention,
                         testing::Values(AttentionCase{"OnePosition", 2, 1, 2, 2, 8, 0},
                                         AttentionCase{"OddLength", 2, 37, 3, 3, 10, 0},
                                         AttentionCase{"SeveralBlocks", 1, 200, 2, 2, 16, 0},
                                         AttentionCase{"GroupedHeads", 2, 70, 6, 2, 8, 0},
                                         AttentionCase{"OneKeyHead", 1, 65, 4, 1, 8, 0},
                                         AttentionCase{"Window", 2, 150, 4, 2, 8, 20},
                                         AttentionCase{"WindowOfOne", 1, 70, 2, 2, 8, 1},
                                         AttentionCase{"WindowWiderThanText", 1, 30, 2, 2, 8, 99}),
                         [](const auto& info) { return info.param.name; });

TEST(FusedOps, LinearsEqualMatrixProducts) {
  const Function formula = [](const Inputs& in) {
    return torch::cat({torch::linear(in[0], in[1], in[2]), torch::linear(in[0], in[3], in[4])}, -1);
  };
  const Function kernel = [](const Inputs& in) {
    return torch::cat(NormLinears(in[0], {}, {{in[1], in[2]}, {in[3], in[4]}}).products, -1);
  };
  ExpectSame(kernel, formula,
             {Random({3, 5, 7}), Random({11, 7}), Random({11}), Random({4, 7}), Random({4})});
}

TEST(FusedOps, LinearsAddToTheGradientThatIsThere) {
  const Tensor x = Random({4, 6}), w = Random({5, 6}).set_requires_grad(true);
  NormLinears(x, {}, {{w, {}}}).products[0].sum().backward();
  const Tensor once = w.grad().clone();
  const void* place = w.grad().data_ptr();
  NormLinears(x, {}, {{w, {}}}).products[0].sum().backward();
  EXPECT_TRUE(torch::allclose(w.grad(), 2 * once));
  EXPECT_EQ(w.grad().data_ptr(), place) << "the flat gradient must stay in place";
}

// Libraries divide sums over many rows among threads.
TEST(FusedOps, WeightGradientsOfManyRowsAreTheirSums) {
  torch::manual_seed(4);
  const Tensor x = torch::randn({2500, 24}), dy = torch::randn({2500, 40});
  const Tensor expected = dy.to(torch::kDouble).t().mm(x.to(torch::kDouble));
  for (const bool bound : {false, true}) {
    Tensor w = torch::zeros({40, 24}).set_requires_grad(true);
    if (bound) w.mutable_grad() = torch::ones_like(w);
    NormLinears(x, {}, {{w, {}}}).products[0].backward(dy);
    const Tensor sums = (w.grad() - (bound ? 1 : 0)).to(torch::kDouble);
    EXPECT_LT((sums - expected).abs().max().item<double>(), 1e-3) << "bound " << bound;
  }
}

TEST(FusedOps, GradientsOfBf16WeightsAddUpInFp32) {
  const Tensor x = torch::ones({4, 6}, torch::kBFloat16);
  const Tensor w = Random({5, 6}).to(torch::kBFloat16).set_requires_grad(true);
  w.mutable_grad() = torch::full({5, 6}, 1000.0, torch::kFloat);
  NormLinears(x, {}, {{w, {}}}).products[0].sum().backward();
  EXPECT_TRUE(w.grad().eq(1004).all().item<bool>()) << "bfloat16 would have lost the 4";
}

TEST(FusedOps, RmsNormEqualsItsFormula) {
  const Inputs inputs = {Random({3, 19, 33}), Random({33})};
  const Function formula = [](const Inputs& in) {
    return in[0] * in[1] * torch::rsqrt(in[0].pow(2).mean(-1, true) + 1e-5);
  };
  ExpectSame(
      [](const Inputs& in) {
        return Normalize(in[0], {in[1], {}, 1e-5}, in[0].scalar_type());
      },
      formula, inputs, {1});
  ExpectSameIn(torch::kBFloat16, 2e-2,
               [](const Inputs& in) {
                 return Normalize(in[0], {in[1], {}, 1e-5}, torch::kBFloat16);
               },
               formula, inputs, {0, 1});
}

TEST(FusedOps, NormLinearsEqualTheirFormula) {
  const auto normal = [](const Inputs& in) {
    return in[0] * in[1] * torch::rsqrt(in[0].pow(2).mean(-1, true) + 1e-5);
  };
  // The residual too, whose gradient is added to that which comes through the products.
  const Function kernel = [](const Inputs& in) {
    const ops::Branches branches =
        NormLinears(in[0], {in[1], {}, 1e-5}, {{in[2], in[4]}, {in[3], {}}});
    EXPECT_EQ(branches.products[0].scalar_type(), in[2].scalar_type());
    EXPECT_EQ(branches.residual.scalar_type(), in[0].scalar_type());
    return torch::cat({branches.residual, branches.products[0], branches.products[1]}, -1);
  };
  const Function formula = [&](const Inputs& in) {
    const Tensor x = normal(in);
    return torch::cat({in[0], torch::linear(x, in[2], in[4]), torch::linear(x, in[3])}, -1);
  };
  const Inputs inputs = {Random({3, 19, 33}), Random({33}), Random({11, 33}), Random({4, 33}),
                         Random({11})};
  ExpectSame(kernel, formula, inputs, {1});
  ExpectSameIn(torch::kBFloat16, 2e-2, kernel, formula, inputs, {0, 1});
}

TEST(FusedOps, ABranchWhoseProductsAreNotUsedPassesTheGradientOn) {
  const Tensor x = Random({4, 6}).set_requires_grad(true), norm = torch::ones({6});
  NormLinears(x, {norm, {}, 1e-5}, {{Random({5, 6}), {}}}).residual.mul(3).sum().backward();
  EXPECT_TRUE(x.grad().eq(3).all().item<bool>());
}

TEST(FusedOps, LinearAddEqualsItsFormula) {
  ExpectSame(
      [](const Inputs& in) {
        return LinearAdd(in[0], {in[1], in[2]}, in[3]);
      },
      [](const Inputs& in) { return in[3] + torch::linear(in[0], in[1], in[2]); },
      {Random({3, 7, 33}), Random({5, 33}), Random({5}), Random({3, 7, 5})}, {3});
}

TEST(FusedOps, TheResidualStreamKeepsItsType) {
  const Tensor x = Random({7, 6}).to(torch::kBFloat16), w = Random({5, 6}).to(torch::kBFloat16);
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    const Tensor residual = Random({7, 5}).to(type);
    EXPECT_EQ(LinearAdd(x, {w, {}}, residual).scalar_type(), type);
    EXPECT_EQ(SwiGluLinearAdd(x, x, {w, {}}, residual).scalar_type(), type);
  }
  EXPECT_EQ(LinearAdd(x, {w, {}}, {}).scalar_type(), torch::kBFloat16);
}

TEST(FusedOps, SwiGluLinearAddEqualsItsFormula) {
  ExpectSame(
      [](const Inputs& in) {
        return SwiGluLinearAdd(in[0], in[1], {in[2], in[3]}, in[4]);
      },
      [](const Inputs& in) {
        return in[4] + torch::linear(in[0] * torch::sigmoid(in[0]) * in[1], in[2], in[3]);
      },
      {Random({3, 7, 33}) * 10, Random({3, 7, 33}), Random({5, 33}), Random({5}),
       Random({3, 7, 5})},
      {4});
}

TEST(FusedOps, LayerNormEqualsItsFormula) {
  const Inputs inputs = {Random({3, 19, 33}) + 2, Random({33}), Random({33})};
  const Function kernel = [](const Inputs& in) {
    return Normalize(in[0], {in[1], in[2], 1e-5}, in[0].scalar_type());
  };
  const Function formula = [](const Inputs& in) {
    const Tensor centred = in[0] - in[0].mean(-1, true);
    return centred * torch::rsqrt(centred.pow(2).mean(-1, true) + 1e-5) * in[1] + in[2];
  };
  ExpectSame(kernel, formula, inputs, {1, 2});
}

TEST(FusedOps, TransposedLinearsOfALayerNormEqualTheirFormula) {
  const Function kernel = [](const Inputs& in) {
    const ops::Branches out =
        NormLinears(in[0], {in[1], in[2], 1e-5}, {{in[3], in[4], /*transposed=*/true}});
    EXPECT_EQ(out.products[0].scalar_type(), in[3].scalar_type());
    const std::vector<Tensor> parts = Split(out.products[0], {4, 4, 3});
    return torch::cat({out.residual, parts[2], parts[0], parts[1] * 2}, -1);
  };
  const Function formula = [](const Inputs& in) {
    const Tensor y = torch::layer_norm(in[0], {33}, in[1], in[2], 1e-5).matmul(in[3]) + in[4];
    return torch::cat({in[0], y.narrow(-1, 8, 3), y.narrow(-1, 0, 4), y.narrow(-1, 4, 4) * 2}, -1);
  };
  const Inputs inputs = {Random({3, 19, 33}), Random({33}), Random({33}), Random({33, 11}),
                         Random({11})};
  ExpectSame(kernel, formula, inputs, {1, 2});
  ExpectSameIn(torch::kBFloat16, 2e-2, kernel, formula, inputs, {0, 1, 2});
}

TEST(FusedOps, TransposedLinearAddEqualsItsFormula) {
  ExpectSame(
      [](const Inputs& in) {
        return LinearAdd(in[0], {in[1], in[2], /*transposed=*/true}, in[3]);
      },
      [](const Inputs& in) { return in[3] + in[0].matmul(in[1]) + in[2]; },
      {Random({3, 7, 33}), Random({33, 5}), Random({5}), Random({3, 7, 5})}, {3});
}

TEST(FusedOps, TransposedGradientsAreAddedToTheGradientThatIsThere) {
  const Tensor x = Random({2, 9, 6}), w = Random({6, 4}).set_requires_grad(true);
  w.mutable_grad() = torch::ones({6, 4});
  LinearAdd(x, {w, {}, /*transposed=*/true}, {}).sum().backward();
  const Tensor expected = x.view({-1, 6}).sum(0).unsqueeze(1).expand({6, 4}) + 1;
  EXPECT_LT(Error(w.grad(), expected), 1e-5);
}

TEST(FusedOps, GeluLinearAddEqualsItsFormula) {
  for (const bool transposed : {false, true}) {
    ExpectSame(
        [&](const Inputs& in) {
          const Tensor w = transposed ? in[1] : in[1].t().contiguous();
          return GeluLinearAdd(in[0], {w, in[2], transposed}, in[3]);
        },
        [](const Inputs& in) { return in[3] + torch::gelu(in[0], "tanh").matmul(in[1]) + in[2]; },
        {Random({3, 7, 33}) * 3, Random({33, 5}), Random({5}), Random({3, 7, 5})}, {3});
  }
}

TEST(FusedOps, GeluOfLargeNumbersIsTheNumberOrNothing) {
  const Tensor x = torch::tensor({{-3e4F, -50.0F, 0.0F, 50.0F, 3e4F}}).set_requires_grad(true);
  const Tensor y = GeluLinearAdd(x, {torch::eye(5), {}}, {});
  EXPECT_TRUE(torch::allclose(y.detach(), torch::tensor({{0.0F, 0.0F, 0.0F, 50.0F, 3e4F}})));
  y.sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), torch::tensor({{0.0F, 0.0F, 0.5F, 1.0F, 1.0F}})));
}

TEST(FusedOps, RopeEqualsComplexRotationOfQueriesAndKeys) {
  const Tensor angle = torch::rand({9, 4}) * 6;
  const RopeTable table{.cosine = torch::cos(angle), .sine = torch::sin(angle)};
  ExpectSame(
      [&](const Inputs& in) {
        const ops::Heads heads = Rope({in[0], in[1], in[2]}, table);
        return torch::cat({heads.q, heads.k, heads.v}, 2);
      },
      [&](const Inputs& in) {
        const auto halves = torch::cat({in[0], in[1]}, 2).chunk(2, -1);
        const Tensor c = table.cosine.unsqueeze(1), s = table.sine.unsqueeze(1);
        const Tensor turned =
            torch::cat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1);
        return torch::cat({turned, in[2]}, 2);
      },
      {Random({2, 9, 3, 8}), Random({2, 9, 2, 8}), Random({2, 9, 2, 8})});
}

TEST(FusedOps, EmbeddingGradientAddsRepeatedIds) {
  const Tensor ids = torch::tensor({{1, 4, 1}, {0, 1, 4}}, torch::kLong);
  ExpectSame([&](const Inputs& in) { return Embedding(ids, in[0]); },
             [&](const Inputs& in) { return torch::embedding(in[0], ids); }, {Random({6, 21})});
}

class CpuCrossEntropy : public testing::TestWithParam<double> {};

TEST_P(CpuCrossEntropy, EqualsLogSoftmaxForAnyUpstreamGradient) {
  Tensor targets = torch::randint(0, 50, {600}, torch::kLong);
  targets.index_put_({torch::tensor({0, 300, 599})}, -100);
  const double upstream = GetParam();
  ExpectSame([&](const Inputs& in) { return LossSum(in[0], in[1], targets, {}) * upstream; },
             [&](const Inputs& in) {
               return torch::nll_loss(torch::log_softmax(torch::linear(in[0], in[1]), -1), targets,
                                      {}, at::Reduction::Sum, -100) *
                      upstream;
             },
             {Random({600, 24}), Random({50, 24})});
}

TEST_P(CpuCrossEntropy, AddsToABoundHeadGradient) {
  const double upstream = GetParam();
  const Tensor targets = torch::randint(0, 50, {300}, torch::kLong);
  const Tensor hidden = Random({300, 24}).set_requires_grad(true);
  const Tensor head = Random({50, 24}).set_requires_grad(true);
  (LossSum(hidden, head, targets, {}) * upstream).backward();
  const Tensor expected = head.grad().clone();
  head.mutable_grad().fill_(1);
  (LossSum(hidden, head, targets, {}) * upstream).backward();
  EXPECT_LT(Error(head.grad() - 1, expected), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Upstream, CpuCrossEntropy, testing::Values(1.0, 0.25, -3.0));

TEST(FusedOps, ResultsDoNotDependOnTheNumberOfThreads) {
  const Tensor x = Random({64, 40}), w = Random({40});
  const auto gradient = [&](int threads) {
    torch::set_num_threads(threads);
    const Tensor weight = w.clone().set_requires_grad(true);
    Normalize(x, {weight, {}, 1e-5}, torch::kFloat).pow(2).sum().backward();
    return weight.grad();
  };
  const Tensor one = gradient(1), two = gradient(2);
  EXPECT_TRUE(torch::equal(one, two));
}

}  // namespace
}  // namespace espalier::fused_ops
