// What a step of generation computes, a few rows of one position each, so that a row's results have
// the same bits whatever rows go along: every number by itself, in an order that depends on its own
// row and column alone. Products of BLAS do not promise that. Weights are read once for all rows.
// Used by worker/ops/kept_attention.cc, worker/ops/products.cc and worker/model/decoder.cc. Called
// from one thread; spreads the work over OpenMP threads.
#pragma once

#include <cstdint>

#include "worker/kernels/bf16.h"
#include "worker/kernels/gemm.h"

namespace espalier::cpu {

// y[m, n] = x[m, k] w, or added to y; x and y are dense. w is [n, k] with kTranspose, [k, n] with
// kPlain, its rows w.stride apart.
void RowProduct(const GemmShape& shape, const float* x, const Matrix<float>& w, bool add, float* y);
void RowProduct(const GemmShape& shape, const Bf16* x, const Matrix<Bf16>& w, bool add, float* y);
void RowProduct(const GemmShape& shape, const Bf16* x, const Matrix<Bf16>& w, bool add, Bf16* y);

// While one lives, products with weights that this thread asks for on the CPU are RowProducts.
class RowsApart {
 public:
  explicit RowsApart(bool apart = true) : before_(here_) { here_ = apart || before_; }
  ~RowsApart() { here_ = before_; }
  RowsApart(const RowsApart&) = delete;
  RowsApart& operator=(const RowsApart&) = delete;

  static bool Here() { return here_; }

 private:
  static inline thread_local bool here_ = false;
  const bool before_;
};

struct RowAttentionShape {
  int64_t rows;  // sequences
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t capacity;  // positions that there is room for
  int64_t window;    // positions seen, the own one included; 0: all
};

// Attention of one new position of each sequence over keys and values that are kept. q, out
// [rows, H, D]; keys, values [rows, K, capacity, D], of which row i holds lengths[i] positions, the
// own one included. Softmax and sums are of floats.
void RowAttention(const RowAttentionShape& shape, const float* q, const float* keys,
                  const float* values, const int64_t* lengths, float* out);
void RowAttention(const RowAttentionShape& shape, const Bf16* q, const Bf16* keys,
                  const Bf16* values, const int64_t* lengths, Bf16* out);

}  // namespace espalier::cpu
