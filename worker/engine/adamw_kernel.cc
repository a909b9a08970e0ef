#include "worker/engine/adamw_kernel.h"

#include <cmath>

#include "common/base/simd.h"

namespace espalier::cpu {

ESPALIER_SIMD_CLONES void AdamWUpdate(const AdamWBlock& block, const AdamWFactors& factors) {
  float* __restrict value = block.value;
  float* __restrict gradient = block.gradient;
  float* __restrict first = block.first;
  float* __restrict second = block.second;
  const AdamWFactors f = factors;
  const float new1 = 1 - f.beta1, new2 = 1 - f.beta2;
  const int64_t size = block.size;
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const float g = gradient[i] * f.gradient_scale;
    const float m = f.beta1 * first[i] + new1 * g;
    const float v = f.beta2 * second[i] + new2 * (g * g);
    first[i] = m;
    second[i] = v;
    value[i] = value[i] * f.keep - f.step_size * m / (std::sqrt(v) * f.second_root + f.eps);
    gradient[i] = 0;
  }
}

// The square of a float is exact in a double, so only the order of the additions matters: lane j
// takes elements j, j + kLanes and so on.
ESPALIER_SIMD_CLONES double SumOfSquares(const float* x, int64_t n) {
  constexpr int64_t kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int64_t j = 0; j < kLanes; ++j) {
      const double v = x[i + j];
      lanes[j] += v * v;
    }
  }
  for (int64_t j = 0; i + j < n; ++j) {
    const double v = x[i + j];
    lanes[j] += v * v;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace espalier::cpu
