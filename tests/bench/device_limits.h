// What a device can do at most, measured on it: bytes that it copies and products that it makes.
// Used by generation_bench.cc and grpo_bench.cc. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/clock.h"
#include "worker/ops/cuda_ops.h"
#include "worker/tensor/torch.h"

namespace espalier::bench {

inline double Seconds(const std::function<void()>& work) {
  const absl::Duration begin = RealClock().Monotonic();
  work();
  return absl::ToDoubleSeconds(RealClock().Monotonic() - begin);
}

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Bytes per second, read and written together, of the best of some large copies.
inline double CopyRate(torch::Device device) {
  constexpr int64_t kBytes = int64_t{4} << 30;
  const auto bytes = torch::TensorOptions().dtype(torch::kByte).device(device);
  const torch::Tensor from = torch::ones({kBytes}, bytes), to = torch::empty({kBytes}, bytes);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    cuda::Synchronize();
    const double seconds = Seconds([&] {
      to.copy_(from);
      cuda::Synchronize();
    });
    best = std::max(best, 2.0 * kBytes / seconds);
  }
  return best;
}

// Floating-point operations per second of the best of some large products of random numbers.
inline double ProductRate(torch::Device device, torch::ScalarType type) {
  constexpr int64_t kSide = 8192;
  constexpr int kProducts = 10;
  const auto options = torch::TensorOptions().dtype(type).device(device);
  const torch::Tensor a = torch::randn({kSide, kSide}, options),
                      b = torch::randn({kSide, kSide}, options);
  torch::Tensor c = torch::empty({kSide, kSide}, options);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    cuda::Synchronize();
    const double seconds = Seconds([&] {
      for (int i = 0; i < kProducts; ++i) torch::mm_out(c, a, b);
      cuda::Synchronize();
    });
    best = std::max(best, kProducts * 2.0 * kSide * kSide * kSide / seconds);
  }
  return best;
}

}  // namespace espalier::bench
