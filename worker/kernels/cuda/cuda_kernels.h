// Element-wise kernels and row reductions of the CUDA path, launched on a stream. Pointers are the
// device's, matrices are dense and row-major, 16-bit numbers are computed with as fp32. Implemented
// in the cuda_*kernels.cu, called by cuda_ops_device.cc. Used by
// worker/kernels/cuda and worker/ops.
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
// The same y plus `plus`, of 16 bits, rounded once; false, having done nothing, where rows are not
// of 256, 512, 768 or 1,024 columns at multiples of 16 bytes.
bool ShortRmsNormAdd(Type type, const RowShape& shape, const void* x, const float* weight,
                     float eps, const void* plus, void* y, float* inverse, Stream stream);
// dx from dy (dx may be dy), plus `other` unless that is null; partial [NormBlocks(columns),
// columns] sums up to the weight's gradient, or is null. dy has y's type, dx and `other` x's.
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
// negative; losses[row] = -weight * log softmax[target], or 0. weights null: 1. right[row], unless
// null: whether no logit is larger than the target's.
void CrossEntropy(Type type, const RowShape& shape, void* logits, const int64_t* targets,
                  const float* weights, float* losses, bool* right, Stream stream);

// The product of one row with a weight [columns, inner]: y = input weight' + residual.
struct OneRow {
  enum class Input {
    kPlain,
    kNormal,  // x / sqrt(mean(x^2) + eps) * norm
    kSwiGlu,  // silu(x) * up
  };
  Input input = Input::kPlain;
  int64_t columns = 0, inner = 0;
  const void* x = nullptr;
  const void* up = nullptr;
  const float* norm = nullptr;
  float eps = 0;
};
// Whether it can be done: in 16 bits, an inner dimension of whole steps of 64, for which there is
// room in shared memory. Addresses are multiples of 16 bytes.
bool TakesOneRow(Type type, const OneRow& f);
// The weight must not be written by the kernel right before. residual null: none.
void OneRowProduct(Type type, const OneRow& f, const void* weight, const void* residual, void* y,
                   Stream stream);

// One new position of each sequence, which is kept, and sees those that are kept.
struct KeptAttentionShape {
  int rows, heads, kv_heads, head_dim;  // head_dim a multiple of 16, at most 256
  int64_t stride;                       // of the rows of q, k and v
  int64_t capacity;                     // positions of a row of keys
  int64_t window;                       // 0: all
  int splits;                           // KeptAttentionSplits
  float scale;                          // of scores, times log2(e)
};
struct KeptAttentionPointers {
  const void *q, *k, *v;       // [rows, heads or kv_heads, head_dim]
  const float *cosine, *sine;  // [rows, head_dim / 2] by which q and k are turned; null: not
  void *keys, *values;         // [rows, kv_heads, capacity, head_dim]
  const int64_t* positions;    // [rows]: where the new ones are
  void* out;                   // [rows, heads, head_dim]
  float* parts;                // [rows, heads, splits, head_dim + 2]
  int* finished;               // [rows, heads], zeros, as they are afterwards
};
int KeptAttentionSplits(int64_t rows, int64_t kv_heads);
void KeptAttention(Type type, const KeptAttentionShape& shape,
                   const KeptAttentionPointers& pointers, Stream stream);

// Draws an id from each row of logits: ids[row] by by[row][0], the temperature
// (0: the likeliest), and by[row][1] in [0, 1), what falls on a weight; -1 where logits are no
// numbers. `work`: DrawBytes, aligned to 8.
int64_t DrawBytes(const RowShape& shape);
void Draw(Type type, const RowShape& shape, const void* logits, const double* by, void* work,
          int64_t* ids, Stream stream);

// y = x with values dropped, or added to y: those of rows [sequences, time, channels] that
// worker/ops/dropout.h says. `keys` are of so many rows each, `time` or 1; `positions` of each row,
// null: their numbers in a sequence.
struct DropShape {
  int64_t rows, time, channels, rows_of_key;
  uint64_t site;
  uint32_t threshold;
};
void Drop(Type type, const DropShape& shape, const int64_t* keys, const int64_t* positions,
          const void* x, bool add, void* y, Stream stream);

// One update of `elements` values and, where `copy` is not null, of their copy in `type`; the
// gradient becomes zero.
void AdamW(Type type, int64_t elements, const AdamWStep& step, float* value, float* gradient,
           float* first, float* second, void* copy, Stream stream);
// The same with 8-bit optimizer state.
void AdamW8(Type type, int64_t elements, const AdamWStep& step, float* value, float* gradient,
            const Moments8& moments, const RandomPlace& random, void* copy, Stream stream);

}  // namespace espalier::cuda
