// The element-wise kernels of the CPU path, one row at a time, vectorised for the processor that
// runs them. Used by cpu_attention.cc and fused_ops.cc, which spread rows over threads. Any thread.
#pragma once

#include <cstdint>

#include "worker/kernels/bf16.h"

namespace espalier::cpu {

struct SoftmaxRow {
  float max;
  float sum;  // of exp(x - max)
};

// x[i] = exp(scale * x[i] - max) for i < n, where max is the row's largest scale * x[i].
SoftmaxRow ExpRow(float* x, int64_t n, float scale);
// x[i] = exp(scale * x[i] - log_sum): probabilities from a saved log of the sum.
void ProbabilityRow(float* x, int64_t n, float scale, float log_sum);
void ScaleRow(float* x, int64_t n, float factor);
// s[i] = scale * p[i] * (d[i] - delta): the gradient of softmax (p: probabilities).
void SoftmaxGradientRow(const float* p, float* d, int64_t n, float delta, float scale);
float DotRow(const float* a, const float* b, int64_t n);

// For float and Bf16: numbers are read and written as such and computed as float.
#define ESPALIER_DECLARE_NORM_ROWS(In, Out)                                           \
  /* out = x * weight * r with r = 1 / sqrt(mean(x^2) + eps); returns r. */           \
  float RmsNormRow(const In* x, const float* weight, Out* out, int64_t n, float eps); \
  /* Adds to dweight; writes dx plus `other`, unless that is null. */                 \
  void RmsNormGradientRow(const In* x, const float* weight, const Out* dy, float r,   \
                          const In* other, In* dx, float* dweight, int64_t n)
ESPALIER_DECLARE_NORM_ROWS(float, float);
ESPALIER_DECLARE_NORM_ROWS(Bf16, Bf16);
ESPALIER_DECLARE_NORM_ROWS(float, Bf16);
#undef ESPALIER_DECLARE_NORM_ROWS

#define ESPALIER_DECLARE_ROWS(Real)                                                                \
  /* out = silu(gate) * up. */                                                                     \
  void SwiGluRow(const Real* gate, const Real* up, Real* out, int64_t n);                          \
  /* Gradients of the same, computed from the inputs; dup may be dy. */                            \
  void SwiGluGradientRow(const Real* gate, const Real* up, const Real* dy, Real* dgate, Real* dup, \
                         int64_t n);                                                               \
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
