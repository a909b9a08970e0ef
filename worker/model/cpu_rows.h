// The element-wise kernels of the CPU path, one row at a time, vectorised for the processor that
// runs them. Used by cpu_attention.cc and cpu_ops.cc, which spread rows over threads. Any thread.
#pragma once

#include <cstdint>

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

// out = x * weight * r with r = 1 / sqrt(mean(x^2) + eps); returns r.
float RmsNormRow(const float* x, const float* weight, float* out, int64_t n, float eps);
// Adds to dweight; writes dx.
void RmsNormGradientRow(const float* x, const float* weight, const float* dy, float r, float* dx,
                        float* dweight, int64_t n);

// out = silu(gate) * up.
void SwiGluRow(const float* gate, const float* up, float* out, int64_t n);
// Gradients of the same, computed from the inputs.
void SwiGluGradientRow(const float* gate, const float* up, const float* dy, float* dgate,
                       float* dup, int64_t n);

// Rotates (x[i], x[i + half]) by the angle whose cosine and sine are given; sign -1 rotates back.
void RopeRow(const float* x, const float* cosine, const float* sine, float sign, float* out,
             int64_t half);

}  // namespace espalier::cpu
