// Copies between the host and a device with one queue follow it by events: nothing is waited for
// but what is needed.
#include "worker/tensor/transfers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>

#include "tests/worker/mac/mac_device.h"
#include "worker/collective/in_process.h"
#include "worker/model/copy_tensor.h"
#include "worker/sync/gradient_exchange.h"
#include "worker/tensor/flat_tensor.h"

namespace espalier {
namespace {

using torch::Tensor;

torch::TensorOptions OnMac() { return torch::TensorOptions().device(MacDevice::device()); }

TEST(TransfersOnAMac, ACopyToTheHostComesWhenTheDeviceHasComeToIt) {
  const MacDevice mac;
  Transfers transfers(MacDevice::device());
  const Tensor there = torch::full({8}, 3.0, OnMac()), here = torch::zeros({8});
  const Transfers::Copy copy = transfers.ToHost(there, here);
  EXPECT_EQ(here.sum().item<float>(), 0);
  copy.Wait();
  EXPECT_EQ(here.sum().item<float>(), 24);
  EXPECT_TRUE(copy.Done());
  EXPECT_EQ(mac.tally().waits, 0);
  EXPECT_EQ(mac.tally().bytes_to_host, 32);
}

TEST(TransfersOnAMac, ACopyHoldsWhatWasThereWhenItWasAskedFor) {
  const MacDevice mac;
  Transfers transfers(MacDevice::device());
  const Tensor there = torch::full({8}, 3.0, OnMac()), here = torch::zeros({8});
  const Transfers::Copy copy = transfers.ToHost(there, here);
  there.fill_(7);
  copy.Wait();
  EXPECT_EQ(here.sum().item<float>(), 24);
}

TEST(TransfersOnAMac, ACopyThatLibTorchMakesInTwoStepsIsWaitedFor) {
  const MacDevice mac;
  Transfers transfers(MacDevice::device());
  const Tensor there = torch::full({4, 2}, 3.0, OnMac()), here = torch::zeros({2, 4});
  EXPECT_TRUE(transfers.ToHost(there.t(), here).Done());
  EXPECT_EQ(here.sum().item<float>(), 24);
  EXPECT_EQ(mac.tally().waits, 1);
}

TEST(TransfersOnAMac, WhatIsSentMayBeGivenUpAtOnce) {
  const MacDevice mac;
  Transfers transfers(MacDevice::device());
  std::vector<Tensor> sent;
  for (int i = 0; i < 3; ++i) {
    const Tensor from = torch::full({8}, i, torch::kLong);
    sent.push_back(transfers.ToDevice(from));
    from.fill_(99);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(sent[static_cast<size_t>(i)].sum().item<int64_t>(), 8 * i);
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
  EXPECT_EQ(mac.tally().waits, 0);
}

// A file promises no alignment, and the GPU's blits want places that 4 divides.
TEST(TransfersOnAMac, AFileMayHoldItsNumbersAnywhere) {
  const std::vector<c10::BFloat16> numbers = {1, 2, 3, 4, 5, 6, 7};
  alignas(8) std::array<std::byte, 24> memory{};
  for (const size_t begin : {0u, 2u, 4u, 6u}) {
    MacDevice mac;
    std::memcpy(memory.data() + begin, numbers.data(), 14);
    const TensorSpec spec{.name = "t", .type = TensorType::kBF16, .shape = {7}};
    const TensorView view{spec, absl::MakeConstSpan(memory).subspan(begin, 14)};
    Parameter to;
    to.shape.shape = {7};
    to.value = torch::zeros({7}, OnMac().dtype(torch::kBFloat16));
    ASSERT_TRUE(CopyTensor(Safetensors(), view, to).ok());
    EXPECT_EQ(to.value.cpu().to(torch::kFloat).sum().item<float>(), 28);
    EXPECT_THAT(mac.tally().violations, testing::IsEmpty()) << begin;
  }
}

// On two ranks, as the backward pass tells them of two buckets.
TEST(TransfersOnAMac, BucketsThatAreFinalWaitForNothingAndAreSummed) {
  constexpr int64_t kSize = 64;
  MacDevice mac;
  const auto group = InProcessGroup(2, absl::Seconds(60));
  std::vector<Tensor> sums(2);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      FlatTensor gradient = FlatTensor::Zeros({kSize}, OnMac().dtype(torch::kFloat));
      FlatTensor host = FlatTensor::Zeros({kSize}, torch::kFloat);
      gradient.Only().fill_(static_cast<double>(rank + 1));
      GradientExchange exchange(*group[rank], {gradient, host, /*stays=*/true}, {32, kSize}, {});
      exchange.GradientsFinal(32);
      exchange.GradientsFinal(kSize);
      EXPECT_TRUE(exchange.StartRest().ok());
      EXPECT_TRUE(exchange.Finish().ok());
      sums[rank] = host.Only().clone();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(mac.tally().waits, 0);
  EXPECT_EQ(mac.tally().bytes_to_host, 2 * kSize * 4);
  EXPECT_EQ(mac.tally().bytes_to_device, 0);
  for (const Tensor& sum : sums) EXPECT_EQ(sum.sum().item<float>(), 3 * kSize);
}

}  // namespace
}  // namespace espalier
