// Element-wise kernels and row reductions of the CUDA path, launched on a stream. Pointers are the
// device's, matrices are dense and row-major, 16-bit numbers are computed with as fp32. Implemented
// in the cuda_*kernels.cu, called by cuda_ops_device.cc alone. Used by worker/kernels/cuda and
// worker/ops.
#pragma once

#include <cstdint>

#include "worker/kernels/adamw_math.h"

namespace espalier::cuda {

enum class Type { kFloat, kBf16, kHalf };
using Stream = void*;  // cudaStream_t

struct RowShape {
  int64_t rows;
  int64_t columns;
};

// Most columns of a norm.
constexpr int64_t kMostNormColumns = 8192;
// Rows of `partial` in RmsNormBackward.
int64_t NormBlocks(int64_t columns);

// Of x and of y in a norm: the same, or fp32 and a narrower one.
struct NormTypes {
  Type in;
  Type out;
};
// y = x * weight * r with r = 1 / sqrt(mean(x^2) + eps), which goes to inverse[row].
void RmsNorm(NormTypes types, const RowShape& shape, const void* x, const float* weight, float eps,
             void* y, float* inverse, Stream stream);
// dx from dy (dx may be dy), plus `other` unless that is null; partial [NormBlocks(columns),
// columns] sums up to the weight's gradient. dy has y's type, dx and `other` x's.
void RmsNormBackward(NormTypes types, const RowShape& shape, const void* x, const float* weight,
                     const float* inverse, const void* dy, const void* other, void* dx,
                     float* partial, Stream stream);

// Two matrices whose rows begin every `stride` elements: gate and up, or what is theirs.
template <typename Pointer>
struct GateUp {
  Pointer gate;
  Pointer up;
  int64_t stride;
};
// y = silu(gate) * up, dense.
void SwiGlu(Type type, const RowShape& shape, const GateUp<const void*>& x, void* y, Stream stream);
// dx.up holds the gradient of y. Writes dx.gate; turns dx.up into the gradient of up.
void SwiGluBackward(Type type, const RowShape& shape, const GateUp<const void*>& x,
                    const GateUp<void*>& dx, Stream stream);

struct RopeShape {
  int64_t rows;  // sequences * positions
  int64_t time;
  int64_t heads;
  int64_t half;                    // of the head's width
  int64_t from_stride, to_stride;  // elements between positions
};
// Rotates pairs (i, i + half) by the angle of the row's position; sign -1 rotates back.
void Rope(Type type, const RopeShape& shape, const void* x, const float* cosine, const float* sine,
          float sign, void* y, Stream stream);

// Turns each row of logits into weight * (softmax - one_hot(target)), or zero where the target is
// negative; losses[row] = -weight * log softmax[target], or 0. weights null: 1.
void CrossEntropy(Type type, const RowShape& shape, void* logits, const int64_t* targets,
                  const float* weights, float* losses, Stream stream);

// One update of `elements` values and, where `copy` is not null, of their copy in `type`; the
// gradient becomes zero.
void AdamW(Type type, int64_t elements, const AdamWStep& step, float* value, float* gradient,
           float* first, float* second, void* copy, Stream stream);
// The same with 8-bit optimizer state.
void AdamW8(Type type, int64_t elements, const AdamWStep& step, float* value, float* gradient,
            const Moments8& moments, const RandomPlace& random, void* copy, Stream stream);

}  // namespace espalier::cuda
