// What is dropped: the right share, at places that depend on keys, site, position and channel
// alone.
#include "worker/ops/dropout.h"

#include <gtest/gtest.h>

#include "tests/worker/support/tiny_model.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

DropoutKeys Keys(double rate, std::vector<int64_t> of_row) {
  return {rate, torch::tensor(of_row, torch::kInt64)};
}

TEST(Dropout, KeepsTheShareItSaysAndTheMean) {
  const Tensor ones = torch::ones({4, 256, 512});
  for (const double rate : {0.1, 0.5, 0.9}) {
    const Tensor y = Dropout(ones, Keys(rate, {1, 2, 3, 4}), 0);
    const double kept = y.ne(0).to(torch::kFloat).mean().item<double>();
    EXPECT_NEAR(kept, 1 - rate, 0.003);  // five standard deviations of 524288 values: 0.0035
    EXPECT_NEAR(y.max().item<double>(), 1 / (1 - rate), 1e-3);
    EXPECT_NEAR(y.mean().item<double>(), 1, 0.01 + rate * 0.02);
  }
}

TEST(Dropout, IsTheSameByTheOperatorsOfOtherDevices) {
  const DropoutKeys keys = Keys(0.3, {-5, 0, int64_t{1} << 62});
  for (const int64_t channels : {1, 6, 8, 13}) {
    for (const torch::ScalarType type : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
      const Tensor like = torch::empty({3, 5, channels}, type);
      const Tensor mask = DropoutMask(like, keys, 7);
      EXPECT_EQ(mask.scalar_type(), type);
      EXPECT_TRUE(torch::equal(mask, internal::GenericDropoutMask(like, keys, 7))) << channels;
    }
  }
}

// A key for each row, or for each column of rows that examples share, with their own positions.
TEST(Dropout, KeepsOnEveryDeviceWhatTheCpuKeeps) {
  const auto longs = [](std::vector<int64_t> values) {
    return torch::tensor(values, torch::kLong).view({3, 6});
  };
  DropoutKeys shared = Keys(0.4, {});
  shared.of_row = longs({10, 10, 10, 10, 11, 11, 20, 20, 21, 21, 21, 21, 30, 30, 30, 30, 30, 30});
  shared.positions = longs({0, 1, 2, 3, 0, 1, 0, 1, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5});
  const Tensor ones = torch::ones({3, 6, 8});
  for (const torch::Device device : {torch::Device(torch::kCPU), torch::Device(torch::kCUDA)}) {
    if (device.is_cuda() && !HasCuda()) continue;
    for (const torch::ScalarType type : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
      for (const DropoutKeys& keys : {Keys(0.4, {10, 20, 30}), shared}) {
        DropoutKeys there = keys;
        there.of_row = keys.of_row.to(device);
        if (keys.positions.defined()) there.positions = keys.positions.to(device);
        const Tensor expected = KeptOf(ones, keys, 3), x = ones.to(device, type);
        EXPECT_TRUE(torch::equal(KeptOf(x, there, 3).cpu().to(torch::kFloat), expected));
        const Tensor sum = x.clone();
        AddKept(sum, x.clone(), there, 3);
        EXPECT_TRUE(torch::equal(sum.cpu().to(torch::kFloat), expected + 1));
      }
    }
  }
}

// More values than are made at a time (64 MiB of words).
TEST(Dropout, IsTheSameMadeInParts) {
  const DropoutKeys keys = Keys(0.3, {1, 2, 3});
  const Tensor like = torch::empty({3, 6000, 1001}, torch::kBFloat16);
  EXPECT_TRUE(
      torch::equal(DropoutMask(like, keys, 7), internal::GenericDropoutMask(like, keys, 7)));
}

TEST(Dropout, DependsOnSequenceSitePositionAndChannel) {
  const Tensor like = torch::empty({2, 64, 64});
  const Tensor mask = DropoutMask(like, Keys(0.5, {10, 11}), 0);
  const auto differs = [](const Tensor& a, const Tensor& b) {
    const double share = a.ne(b).to(torch::kFloat).mean().item<double>();
    return share > 0.4 && share < 0.6;  // as often as independent coins
  };
  EXPECT_TRUE(differs(mask[0], mask[1]));
  EXPECT_TRUE(differs(mask, DropoutMask(like, Keys(0.5, {10, 11}), 1)));
  EXPECT_TRUE(differs(mask.narrow(1, 0, 63), mask.narrow(1, 1, 63)));
  EXPECT_TRUE(differs(mask.narrow(2, 0, 63), mask.narrow(2, 1, 63)));
  EXPECT_TRUE(torch::equal(mask[1], DropoutMask(like, Keys(0.5, {11, 12}), 0)[0]))
      << "a row does not depend on its neighbours";
}

TEST(Dropout, PassesTheGradientOfKeptValuesOnly) {
  const Tensor x = torch::randn({1, 4, 8}).set_requires_grad(true);
  const DropoutKeys keys = Keys(0.5, {3});
  Dropout(x, keys, 2).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), DropoutMask(x, keys, 2) * 2));
}

// 1 / 0.95 is none of the numbers of 16 bits: rounded once for all values it would be 0.2 % off.
TEST(Dropout, MultipliesByTheSameInEveryType) {
  torch::manual_seed(3);
  const DropoutKeys keys = Keys(0.05, {1, 2, 3, 4});
  for (const torch::ScalarType type : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    const Tensor x = torch::rand({4, 256, 512}).add_(1).to(type).set_requires_grad(true);
    const Tensor kept = DropoutMask(x.detach(), keys, 0);
    EXPECT_TRUE(torch::logical_or(kept == 0, kept == 1).all().item<bool>());
    const Tensor y = Dropout(x, keys, 0), dy = torch::rand({4, 256, 512}).add_(1).to(type);
    const Tensor dx = torch::autograd::grad({y}, {x}, {dy})[0];
    const auto factor = [&](const Tensor& to, const Tensor& from) {
      return (to.detach().to(torch::kDouble).sum() /
              (from.detach().to(torch::kDouble) * kept.to(torch::kDouble)).sum())
          .item<double>();
    };
    EXPECT_NEAR(factor(y, x), 1 / 0.95, 5e-4);
    EXPECT_NEAR(factor(dx, dy), 1 / 0.95, 5e-4);
    EXPECT_NEAR(KeptFactor(0.05), 1 / 0.95, 1e-5);
  }
}

TEST(Dropout, ActsInTrainingPassesOnly) {
  TinyModel model(TinyModelConfig());
  const Tensor ids = SomeIds(2, 9, 23), targets = (ids + 1).remainder(23);
  const double whole = model.decoder->LossSum(ids, targets).item<double>();
  EXPECT_NE(model.decoder->LossSum(ids, targets, {}, {.dropout = Keys(0.3, {1, 2})}).item<double>(),
            whole);
  EXPECT_EQ(model.decoder->LossSum(ids, targets).item<double>(), whole);
}

}  // namespace
}  // namespace espalier
