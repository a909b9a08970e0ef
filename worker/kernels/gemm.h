// Gemm: matrix product on the CPU, by the fastest library of the platform: oneDNN where CMake finds
// it for this processor (gemm_dnnl.cc), Accelerate on macOS (accelerate_darwin.cc), else LibTorch's
// BLAS (gemm_torch.cc). Used by cpu_attention.cc, worker/ops/fused_loss.cc and
// worker/ops/products.cc. Any thread; inside a parallel region it runs on the calling thread alone.
// What the library refuses, or has no memory for, is an exception.
#pragma once

#include <cstdint>

#include "worker/kernels/bf16.h"

namespace espalier::cpu {

enum class Op : char { kPlain = 'N', kTranspose = 'T' };

// A row-major matrix; `stride` elements from one row to the next.
template <typename Real>
struct Matrix {
  const Real* data;
  int64_t stride;
  Op op = Op::kPlain;
};

struct GemmShape {
  int64_t m;  // rows of the product
  int64_t n;  // columns of the product
  int64_t k;  // inner dimension
};

// c[m, n] = op(a)[m, k] * op(b)[k, n] + beta * c. With beta 0, c need not be initialised.
void Gemm(const GemmShape& shape, const Matrix<float>& a, const Matrix<float>& b, float beta,
          float* c, int64_t c_stride);

// The same of bfloat16 numbers with float sums, beta 0 or 1. On a processor without matrix units
// for them the numbers are widened first, which costs a little more than the product of floats.
void Gemm(const GemmShape& shape, const Matrix<Bf16>& a, const Matrix<Bf16>& b, float beta,
          float* c, int64_t c_stride);
void Gemm(const GemmShape& shape, const Matrix<Bf16>& a, const Matrix<Bf16>& b, float beta, Bf16* c,
          int64_t c_stride);

// Whether the processor and the library multiply bfloat16 numbers without widening them.
bool MultipliesBf16();

// What the platform's library does itself: true when it has written c. Of gemm_bf16.cc.
bool FastGemm(const GemmShape& shape, const Matrix<Bf16>& a, const Matrix<Bf16>& b, float beta,
              float* c, int64_t c_stride);
bool FastGemm(const GemmShape& shape, const Matrix<Bf16>& a, const Matrix<Bf16>& b, float beta,
              Bf16* c, int64_t c_stride);

}  // namespace espalier::cpu
