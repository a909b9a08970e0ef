// The element-wise kernels of the CPU path, one row at a time, vectorised for the processor that
// runs them. Used by cpu_attention.cc, gemm_bf16.cc, worker/ops and worker/optimizer, which spread
// rows over threads. Any thread.
#pragma once

#include <cstdint>

#include "worker/kernels/bf16.h"

namespace espalier::cpu {

struct SoftmaxRow {
  float max;
  float sum;  // of exp(x - max)
};

// What turns a row of scores and of gradients of its probabilities into gradients of the scores.
struct SoftmaxRowGradient {
  float scale;
  float log_sum;  // of exp(scale * x)
  float delta;    // sum of probability * gradient
};

struct CentredRow {
  float mean;
  float r;  // 1 / sqrt(variance + eps)
};

// Gradients that rows add up.
struct NormSums {
  float* weight;
  float* bias;
};

// For float and Bf16: numbers are read and written as such and computed as float.
#define ESPALIER_DECLARE_NORM_ROWS(In, Out)                                                 \
  /* out = x * weight * r with r = 1 / sqrt(mean(x^2) + eps); returns r. */                 \
  float RmsNormRow(const In* x, const float* weight, Out* out, int64_t n, float eps);       \
  /* Adds to dweight; writes dx plus `other`, unless that is null. */                       \
  void RmsNormGradientRow(const In* x, const float* weight, const Out* dy, float r,         \
                          const In* other, In* dx, float* dweight, int64_t n);              \
  /* out = (x - mean) * weight * r + bias with r = 1 / sqrt(variance + eps). */             \
  CentredRow LayerNormRow(const In* x, const float* weight, const float* bias, Out* out,    \
                          int64_t n, float eps);                                            \
  /* Adds to dweight and dbias; writes dx plus `other`, unless that is null. */             \
  void LayerNormGradientRow(const In* x, const float* weight, const Out* dy, CentredRow of, \
                            const In* other, In* dx, NormSums sums, int64_t n)
ESPALIER_DECLARE_NORM_ROWS(float, float);
ESPALIER_DECLARE_NORM_ROWS(Bf16, Bf16);
ESPALIER_DECLARE_NORM_ROWS(float, Bf16);
#undef ESPALIER_DECLARE_NORM_ROWS

#define ESPALIER_DECLARE_SOFTMAX_ROWS(Real)                                                      \
  /* to = exp(scale * x - max), where max is the largest scale * x; to may be x. */              \
  SoftmaxRow ExpRow(const float* x, Real* to, int64_t n, float scale);                           \
  /* p = exp(scale * x - log_sum), s = scale * p * (d - delta); p may be x, s may be d. */       \
  void SoftmaxGradientRow(const float* x, const float* d, const SoftmaxRowGradient& of, Real* p, \
                          Real* s, int64_t n);                                                   \
  float DotRow(const Real* a, const Real* b, int64_t n);                                         \
  /* to = factor * x; to may be x. */                                                            \
  void ScaledRow(const float* x, float factor, Real* to, int64_t n)
ESPALIER_DECLARE_SOFTMAX_ROWS(float);
ESPALIER_DECLARE_SOFTMAX_ROWS(Bf16);
#undef ESPALIER_DECLARE_SOFTMAX_ROWS

// In place.
inline SoftmaxRow ExpRow(float* x, int64_t n, float scale) { return ExpRow(x, x, n, scale); }

#define ESPALIER_DECLARE_ROWS(Real)                                                                \
  /* out = silu(gate) * up. */                                                                     \
  void SwiGluRow(const Real* gate, const Real* up, Real* out, int64_t n);                          \
  /* Gradients of the same, computed from the inputs; dup may be dy. */                            \
  void SwiGluGradientRow(const Real* gate, const Real* up, const Real* dy, Real* dgate, Real* dup, \
                         int64_t n);                                                               \
  /* out = gelu(x), by its approximation with tanh. */                                             \
  void GeluRow(const Real* x, Real* out, int64_t n);                                               \
  /* dx may be dy. */                                                                              \
  void GeluGradientRow(const Real* x, const Real* dy, Real* dx, int64_t n);                        \
  /* Rotates (x[i], x[i + half]) by the angle whose cosine and sine are given; sign -1: back. */   \
  void RopeRow(const Real* x, const float* cosine, const float* sine, float sign, Real* out,       \
               int64_t half);                                                                      \
  /* to[i] += x[i]. */                                                                             \
  void AddRow(const Real* x, float* to, int64_t n);                                                \
  void ToFloatRow(const Real* x, float* to, int64_t n);                                            \
  void FromFloatRow(const float* x, Real* to, int64_t n)
ESPALIER_DECLARE_ROWS(float);
ESPALIER_DECLARE_ROWS(Bf16);
#undef ESPALIER_DECLARE_ROWS

}  // namespace espalier::cpu
