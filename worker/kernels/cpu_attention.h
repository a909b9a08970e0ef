// Causal attention on the CPU without a T x T tensor: scores exist for one block of query rows of
// one head at a time, forward and backward (the blocking of Dao et al. 2022, with full rows, since
// a row of scores fits the cache). Grouped key/value heads, a sliding window and where an example
// begins in a row that several share are loop bounds.
// Used by fused_ops.cc. Called from one thread; spreads the work over OpenMP threads.
#pragma once

#include <cstdint>

#include "worker/kernels/bf16.h"

namespace espalier::cpu {

struct AttentionShape {
  int64_t batch;
  int64_t time;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t window;  // positions seen, the own one included; 0: all
  // [B, T]: the first position that each sees at most, which never falls along a row; null: 0.
  const int64_t* begins = nullptr;
};

// q, out [B, T, H, D]; k, v [B, T, K, D]; log_sum [B, H, T] (natural log of each row's sum of
// exponentials of the scaled scores, for the backward pass). Bf16 numbers are multiplied as such
// where the processor can, with float sums and a softmax of floats; probabilities and the gradients
// of scores are rounded to Bf16 then. Elsewhere a head is widened while it is worked on.
void AttentionForward(const AttentionShape& shape, const float* q, const float* k, const float* v,
                      float* out, float* log_sum);
void AttentionForward(const AttentionShape& shape, const Bf16* q, const Bf16* k, const Bf16* v,
                      Bf16* out, float* log_sum);

template <typename Real>
struct AttentionInputs {
  const Real* q;
  const Real* k;
  const Real* v;
  const Real* out;
  const float* log_sum;
  const Real* dout;
};
template <typename Real>
struct AttentionGradients {
  Real* dq;  // each written, not added to
  Real* dk;
  Real* dv;
};
void AttentionBackward(const AttentionShape& shape, const AttentionInputs<float>& in,
                       const AttentionGradients<float>& gradients);
void AttentionBackward(const AttentionShape& shape, const AttentionInputs<Bf16>& in,
                       const AttentionGradients<Bf16>& gradients);

}  // namespace espalier::cpu
