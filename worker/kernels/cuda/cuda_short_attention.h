// Attention of sequences of so few positions that all of a head lies in one block's shared memory:
// q and k are turned, multiplied, and forgotten without a way through memory. Pointers are the
// device's; numbers have 16 bits, sums are fp32. Implemented in the
// cuda_short_attention_*kernels.cu, called by worker/ops/cuda_short_attention.cc. Used by
// worker/ops. Any thread.
#pragma once

#include <cstdint>

#include "worker/kernels/cuda/cuda_kernels.h"

namespace espalier::cuda {

constexpr int64_t kShortHeadDim = 64;
constexpr int64_t kMostShortPositions = 128;

struct ShortAttentionShape {
  int64_t batch, time, heads;
  int64_t row;       // elements from one position to the next, of q, k and v
  int64_t grad_row;  // the same of their gradients
  bool causal;       // else each position sees all
};

struct ShortAttentionPointers {
  const void *q, *k, *v;       // [batch, time, heads, 64]: rows of `row` elements
  const float *cosine, *sine;  // [time, 32] by which q and k are turned; null: not
  void* out;                   // [batch, time, heads, 64], dense
  float* sums;  // [batch, heads, time]: log2 of what softmax divides by; null: not wanted
};

struct ShortAttentionGradients {
  const void* out;  // of out: as out
  void *q, *k, *v;  // rows of `grad_row` elements
};

// Whether the current device has the instructions, and the shared memory for so many positions.
bool TakesShortAttention(Type type, int64_t time);
void ShortAttention(Type type, const ShortAttentionShape& shape,
                    const ShortAttentionPointers& pointers, Stream stream);
// `pointers` as ShortAttention left them.
void ShortAttentionBackward(Type type, const ShortAttentionShape& shape,
                            const ShortAttentionPointers& pointers,
                            const ShortAttentionGradients& gradients, Stream stream);

}  // namespace espalier::cuda
