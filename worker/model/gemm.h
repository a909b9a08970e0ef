// Gemm: single-precision matrix product on the CPU, by the fastest library of the platform: oneDNN
// where CMake finds it for this processor (gemm_dnnl.cc), else LibTorch's BLAS (gemm_torch.cc; on
// macOS that is Accelerate). Used by the CPU kernels of this folder. Any thread; inside a parallel
// region it runs on the calling thread alone.
#pragma once

#include <cstdint>

namespace espalier::cpu {

enum class Op : char { kPlain = 'N', kTranspose = 'T' };

// A row-major matrix of floats; `stride` elements from one row to the next.
struct MatrixView {
  const float* data;
  int64_t stride;
  Op op = Op::kPlain;
};

struct GemmShape {
  int64_t m;  // rows of the product
  int64_t n;  // columns of the product
  int64_t k;  // inner dimension
};

// c[m, n] = alpha * op(a)[m, k] * op(b)[k, n] + beta * c. With beta 0, c need not be initialised.
void Gemm(const GemmShape& shape, const MatrixView& a, const MatrixView& b, float beta, float* c,
          int64_t c_stride, float alpha = 1.0F);

}  // namespace espalier::cpu
