// Adapters in the operations: gradients are those that central differences show.
#include <gtest/gtest.h>

#include "tests/worker/ops/finite_differences.h"
#include "worker/ops/ops.h"

namespace espalier {
namespace {

using torch::Tensor;

ops::Adapter AdapterOf(const Tensor& a, const Tensor& b, double rate) {
  return {a, b, 1.5, {.rate = rate, .of_row = torch::tensor({3, 4})}, 7};
}

// Of a frozen weight, with and without what is dropped.
TEST(Adapters, OfALinearMapHaveTheGradientsOfDifferences) {
  const Tensor weight = Random({4, 3}), bias = Random({4});
  for (const double rate : {0.0, 0.4}) {
    ExpectGradients(
        [&](const Inputs& in) {
          return ops::Linear(in[0], {weight, bias, false, AdapterOf(in[1], in[2], rate)});
        },
        {Random({2, 5, 3}), Random({2, 3}), Random({4, 2})});
    ExpectGradients(
        [&](const Inputs& in) {
          return ops::LinearAdd(in[0], {weight, bias, false, AdapterOf(in[1], in[2], rate)}, in[3]);
        },
        {Random({2, 5, 3}), Random({2, 3}), Random({4, 2}), Random({2, 5, 4})});
  }
}

// Three of one norm, of which one has no adapter: side by side in memory, and each by itself.
TEST(Adapters, OfNeighboursHaveTheGradientsOfDifferences) {
  const Tensor all = Random({9, 3});
  for (const bool side_by_side : {true, false}) {
    std::vector<Tensor> weights;
    for (const int64_t at : {6, 3, 0}) {
      const Tensor part = all.narrow(0, at, 3).variable_data();
      weights.push_back(side_by_side ? part : part.clone());
    }
    for (const double rate : {0.0, 0.4}) {
      ExpectGradients(
          [&](const Inputs& in) {
            const ops::Branches out =
                ops::NormLinears(in[0], {in[1], {}, 1e-5},
                                 {{weights[0], {}, false, AdapterOf(in[2], in[3], rate)},
                                  {weights[1], {}},
                                  {weights[2], {}, false, AdapterOf(in[4], in[5], rate)}});
            return torch::cat({out.residual, out.products[0], out.products[1], out.products[2]}, 2);
          },
          {Random({2, 5, 3}), Random({3}), Random({2, 3}), Random({3, 2}), Random({2, 3}),
           Random({3, 2})});
    }
  }
}

TEST(Adapters, AfterAnActivationHaveTheGradientsOfDifferences) {
  const Tensor weight = Random({4, 3}), turned = Random({3, 4});
  for (const double rate : {0.0, 0.4}) {
    ExpectGradients(
        [&](const Inputs& in) {
          return ops::SwiGluLinearAdd(in[0], in[1],
                                      {weight, {}, false, AdapterOf(in[2], in[3], rate)}, {});
        },
        {Random({2, 5, 3}), Random({2, 5, 3}), Random({2, 3}), Random({4, 2})});
    ExpectGradients(
        [&](const Inputs& in) {
          return ops::GeluLinearAdd(in[0], {turned, {}, true, AdapterOf(in[1], in[2], rate)}, {});
        },
        {Random({2, 5, 3}), Random({2, 3}), Random({4, 2})});
  }
}

// What an adapter adds is the same in 16 bits and in 32 but for rounding, which goes both ways.
TEST(Adapters, DropAsMuchInSixteenBitsAsInMore) {
  torch::manual_seed(9);
  const auto narrow = [](const Tensor& x) { return x.to(torch::kBFloat16); };
  const Tensor x = narrow(torch::randn({2, 300, 64})), a = narrow(torch::randn({2, 64})),
               b = narrow(torch::randn({8, 2})), weight = torch::zeros({8, 64});
  std::vector<Tensor> found;
  for (const torch::ScalarType type : {torch::kBFloat16, torch::kFloat}) {
    const Tensor y = ops::Linear(
        x.to(type), {weight.to(type), {}, false, AdapterOf(a.to(type), b.to(type), /*rate=*/0.05)});
    found.push_back(y.to(torch::kFloat).flatten());
  }
  EXPECT_NEAR((found[0].dot(found[1]) / found[1].dot(found[1])).item<double>(), 1, 1e-3);
}

}  // namespace
}  // namespace espalier
