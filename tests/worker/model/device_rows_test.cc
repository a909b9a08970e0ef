// Any number of rows, of any width, comes to what the CPU comes to in fp32 on every device of this
// machine, whichever of its kernels takes them.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "tests/worker/support/device_cases.h"
#include "worker/ops/ops.h"

namespace espalier {
namespace {

using torch::Tensor;

class RowsOnEveryDevice : public testing::TestWithParam<DeviceCase> {};

// Few rows, which have kernels of their own where no gradient is wanted.
TEST_P(RowsOnEveryDevice, MultipliesAnyNumberOfRows) {
  const auto& [device, type, tolerance] = GetParam();
  torch::NoGradGuard no_grad;
  torch::manual_seed(6);
  const Tensor weights = torch::randn({2 * 128, 192}), back = torch::randn({40, 128}) / 8,
               norm = torch::rand({192}) + 0.5;
  for (const int64_t rows : {1, 2, 5, 8, 9, 16, 17}) {
    const Tensor x = torch::randn({1, rows, 192}), residual = torch::randn({1, rows, 40});
    const auto run = [&](torch::Device on, torch::ScalarType in) {
      const Tensor all = weights.to(on, in), w = back.to(on, in);
      const ops::Branches out = ops::NormLinears(x.to(on, in), {norm.to(on), {}, 1e-5},
                                                 {{all.narrow(0, 128, 128).variable_data(), {}},
                                                  {all.narrow(0, 0, 128).variable_data(), {}}});
      const Tensor y =
          ops::SwiGluLinearAdd(out.products[0], out.products[1], {w, {}}, residual.to(on, in));
      const Tensor z = ops::LinearAdd(out.products[0].contiguous(), {w, {}}, y);
      return torch::cat({out.products[0].flatten(), out.products[1].flatten(), y.flatten() / 100,
                         z.flatten() / 100})
          .to(torch::kFloat)
          .cpu();
    };
    const Tensor expected = run(torch::kCPU, torch::kFloat);
    EXPECT_LT((run(torch::Device(device), type) - expected).norm().item<double>(),
              tolerance * expected.norm().item<double>())
        << rows;
  }
}

// Of which a thread has one to four parts; the last has more columns than a block sums up at once.
TEST_P(RowsOnEveryDevice, MultipliesOneRowOfAnyLength) {
  torch::NoGradGuard no_grad;
  for (const auto& [in, out] :
       {std::pair(8, 5), {200, 33}, {4104, 9}, {8192, 30}, {12280, 17}, {16392, 3}, {64, 80000}}) {
    torch::manual_seed(6);
    const Tensor x = torch::randn({1, in}), weight = torch::randn({out, in}),
                 ones = torch::ones(in);
    const auto run = [&](torch::Device on, torch::ScalarType type) {
      const ops::Norm norm{ones.to(on), {}, 1e-5};
      const ops::Branches y = ops::NormLinears(x.to(on, type), norm, {{weight.to(on, type), {}}});
      return y.products[0].to(torch::kFloat).cpu();
    };
    const Tensor expected = run(torch::kCPU, torch::kFloat);
    const Tensor got = run(torch::Device(GetParam().device), GetParam().type);
    EXPECT_LT((got - expected).norm().item<double>(),
              GetParam().tolerance * expected.norm().item<double>());
  }
}

// So many rows that a device may have a kernel for the case without gradients; columns fill its
// tiles or not.
TEST_P(RowsOnEveryDevice, GatesWithAndWithoutGradients) {
  const auto& [device, type, tolerance] = GetParam();
  for (const auto& [in, inner] : {std::pair(64, 96), {72, 200}, {32, 1000}}) {
    SCOPED_TRACE(inner);
    torch::manual_seed(8);
    const Tensor x = torch::randn({2, 8500, in}), residual = torch::randn({2, 8500, 24}),
                 gate_up = torch::randn({2 * inner, in}) / std::sqrt(in),
                 down = torch::randn({24, inner}) / std::sqrt(inner);
    // The sum, and with gradients those of all operands.
    const auto run = [&](torch::Device on, torch::ScalarType as, bool gradients) {
      const torch::AutoGradMode mode(gradients);
      std::vector<Tensor> of;
      for (const Tensor& one : {x, gate_up, down, residual}) {
        of.push_back(one.to(on, as).detach().set_requires_grad(gradients));
      }
      const Tensor y = ops::GatedLinearAdd(of[0], {of[1], {}}, {of[2], {}}, of[3]);
      std::vector<Tensor> made = {y.detach()};
      if (gradients) y.backward(residual.flip(0).to(on, as));
      for (size_t i = 0; gradients && i < of.size(); ++i) made.push_back(of[i].grad());
      for (Tensor& one : made) one = one.to(torch::kFloat).cpu();
      return made;
    };
    const std::vector<Tensor> expected = run(torch::kCPU, torch::kFloat, true);
    for (const bool gradients : {false, true}) {
      const std::vector<Tensor> all = run(torch::Device(device), type, gradients);
      ASSERT_EQ(all.size(), gradients ? 5u : 1u);
      for (size_t i = 0; i < all.size(); ++i) {
        const Tensor& want = expected[i];
        const Tensor difference = all[i] - want;
        EXPECT_LT(difference.norm().item<double>(), tolerance * want.norm().item<double>())
            << gradients << " " << i;
        EXPECT_LT(difference.abs().max().item<double>(),
                  8 * tolerance * want.abs().max().item<double>())
            << gradients << " " << i;
      }
    }
  }
}

// So many rows that a device may have a kernel of its own for short ones.
TEST_P(RowsOnEveryDevice, MultipliesManyShortRows) {
  const auto& [device, type, tolerance] = GetParam();
  for (const auto& [in, out] : {std::pair(64, 1536), {72, 1032}}) {
    torch::manual_seed(9);
    const Tensor x = torch::randn({1, 3000, in}), weight = torch::randn({out, in});
    const auto run = [&](torch::Device on, torch::ScalarType as) {
      return ops::Linear(x.to(on, as), {weight.to(on, as), {}}).to(torch::kFloat).cpu();
    };
    const Tensor expected = run(torch::kCPU, torch::kFloat);
    EXPECT_LT((run(torch::Device(device), type) - expected).abs().max().item<double>(),
              8 * tolerance * expected.abs().max().item<double>())
        << out;
  }
}

// A device may round once.
TEST_P(RowsOnEveryDevice, AddsToNormalisedRowsOfAnyWidth) {
  const auto& [device, type, tolerance] = GetParam();
  for (const int64_t width : {96, 256, 512, 1024, 1032}) {
    torch::manual_seed(11);
    const Tensor values = torch::randn({3, 2, 9, width}), weight = torch::rand({width}) + 0.5;
    const auto run = [&](torch::Device on, torch::ScalarType as, auto&& sum) {
      const Tensor x = values[0].to(on, as).detach().set_requires_grad(true),
                   plus = values[1].to(on, as).detach().set_requires_grad(true);
      const Tensor y = sum(x, ops::Norm{weight.to(on), {}, 1e-5}, plus);
      y.backward(values[2].to(on, as));
      return torch::stack({y.detach(), x.grad(), plus.grad()}).to(torch::kFloat).cpu();
    };
    const Tensor expected = run(
        torch::kCPU, torch::kFloat, [](const Tensor& x, const ops::Norm& norm, const Tensor& plus) {
          return x * (x.square().mean(-1, /*keepdim=*/true) + norm.eps).rsqrt() * norm.weight +
                 plus;
        });
    const Tensor got = run(torch::Device(device), type, ops::NormalizeAdd);
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_LT((got[i] - expected[i]).norm().item<double>(),
                tolerance * expected[i].norm().item<double>())
          << width << " " << i;
    }
  }
}

// So few rows that a device may sum up by a product, and more.
TEST_P(RowsOnEveryDevice, SumsTheGradientsOfAnyNumberOfWords) {
  const auto& [device, type, tolerance] = GetParam();
  for (const int64_t words : {1, 11, 64, 65, 500}) {
    torch::manual_seed(10);
    const Tensor ids = torch::randint(words, {3, 700}), table = torch::randn({words, 72}),
                 upstream = torch::randn({3, 700, 72});
    const auto run = [&](torch::Device on, torch::ScalarType as) {
      const Tensor rows = table.to(on, as).detach().set_requires_grad(true);
      ops::Embedding(ids.to(on), rows).backward(upstream.to(on, as));
      return rows.grad().to(torch::kFloat).cpu();
    };
    const Tensor expected = run(torch::kCPU, torch::kFloat);
    EXPECT_LT((run(torch::Device(device), type) - expected).norm().item<double>(),
              tolerance * expected.norm().item<double>())
        << words;
  }
}

// Rows of one round of loads or several, which they fill or not.
TEST_P(RowsOnEveryDevice, NormalisesRowsOfAnyWidth) {
  const auto& [device, type, tolerance] = GetParam();
  for (const int64_t width : {32, 96, 1024, 1536, 2048, 3072, 5120, 7168, 8192, 8200}) {
    SCOPED_TRACE(width);
    const auto run = [&](torch::Device on, torch::ScalarType in) {
      torch::manual_seed(5);
      Tensor x = torch::randn({7, width}).to(on, in).set_requires_grad(true);
      Tensor weight = torch::rand({width}).to(on).set_requires_grad(true);
      const Tensor y = ops::Normalize(x, {weight, {}, 1e-5}, in);
      y.backward(torch::randn({7, width}).to(on, in));
      return torch::cat({y.flatten().to(torch::kFloat), x.grad().flatten().to(torch::kFloat),
                         weight.grad()})
          .detach()
          .cpu();
    };
    const Tensor expected = run(torch::kCPU, torch::kFloat);
    EXPECT_LT((run(torch::Device(device), type) - expected).norm().item<double>(),
              tolerance * expected.norm().item<double>());
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RowsOnEveryDevice, testing::ValuesIn(DeviceCases()), NameOfCase);

}  // namespace
}  // namespace espalier
