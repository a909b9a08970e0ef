#include "worker/model/cpu_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "worker/model/simd.h"

namespace espalier::cpu {
namespace {

// exp(x) to 2 units in the last place, without branches so that loops vectorise: x = n ln 2 + r,
// |r| <= ln 2 / 2, exp(r) by its Taylor polynomial of degree 6 (remainder below 1e-8).
inline __attribute__((always_inline)) float Exp(float x) {
  x = std::min(std::max(x, -87.0F), 88.0F);
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = (x * 1.44269504F + kRound) - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
  return p * std::bit_cast<float>(exponent);
}

inline __attribute__((always_inline)) float Sigmoid(float x) { return 1.0F / (1.0F + Exp(-x)); }

}  // namespace

ESPALIER_SIMD_CLONES SoftmaxRow ExpRow(float* x, int64_t n, float scale) {
  float max = -INFINITY;
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; ++i) max = std::max(max, x[i]);
  max *= scale;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    x[i] = Exp(scale * x[i] - max);
    sum += x[i];
  }
  return {.max = max, .sum = sum};
}

ESPALIER_SIMD_CLONES void ProbabilityRow(float* x, int64_t n, float scale, float log_sum) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = Exp(scale * x[i] - log_sum);
}

ESPALIER_SIMD_CLONES void ScaleRow(float* x, int64_t n, float factor) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

ESPALIER_SIMD_CLONES void SoftmaxGradientRow(const float* p, float* d, int64_t n, float delta,
                                             float scale) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) d[i] = scale * p[i] * (d[i] - delta);
}

ESPALIER_SIMD_CLONES float DotRow(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

ESPALIER_SIMD_CLONES float RmsNormRow(const float* x, const float* weight, float* out, int64_t n,
                                      float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  const float r = 1.0F / std::sqrt(sum / static_cast<float>(n) + eps);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * r * weight[i];
  return r;
}

// With g = dy * weight: dx = r g - x r^3 mean(g x); dweight += dy x r.
ESPALIER_SIMD_CLONES void RmsNormGradientRow(const float* x, const float* weight, const float* dy,
                                             float r, float* dx, float* dweight, int64_t n) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < n; ++i) dot += dy[i] * weight[i] * x[i];
  const float pull = dot * r * r * r / static_cast<float>(n);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    dweight[i] += dy[i] * x[i] * r;
    dx[i] = r * dy[i] * weight[i] - x[i] * pull;
  }
}

ESPALIER_SIMD_CLONES void SwiGluRow(const float* gate, const float* up, float* out, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = gate[i] * Sigmoid(gate[i]) * up[i];
}

ESPALIER_SIMD_CLONES void SwiGluGradientRow(const float* gate, const float* up, const float* dy,
                                            float* dgate, float* dup, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float s = Sigmoid(gate[i]), d = dy[i];
    dup[i] = d * gate[i] * s;
    dgate[i] = d * up[i] * s * (1.0F + gate[i] * (1.0F - s));
  }
}

ESPALIER_SIMD_CLONES void RopeRow(const float* x, const float* cosine, const float* sine,
                                  float sign, float* out, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half], s = sign * sine[i];
    out[i] = a * cosine[i] - b * s;
    out[i + half] = b * cosine[i] + a * s;
  }
}

}  // namespace espalier::cpu
