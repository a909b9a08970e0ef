#include <vector>

#include "worker/kernels/cpu_rows.h"
#include "worker/kernels/gemm.h"
#include "worker/kernels/parallel.h"

namespace espalier::cpu {
namespace {

// The stored matrix as floats, without gaps between its rows. `rows` and `columns` are
// op(matrix)'s.
Matrix<float> Widened(const Matrix<Bf16>& matrix, int64_t rows, int64_t columns,
                      std::vector<float>& memory) {
  if (matrix.op == Op::kTranspose) std::swap(rows, columns);
  memory.resize(rows * columns);
  ParallelFor(rows, [&](int64_t i) {
    ToFloatRow(matrix.data + i * matrix.stride, memory.data() + i * columns, columns);
  });
  return {memory.data(), columns, matrix.op};
}

}  // namespace

void Gemm(const GemmShape& shape, const Matrix<Bf16>& a, const Matrix<Bf16>& b, float beta,
          float* c, int64_t c_stride) {
  if (shape.m == 0 || shape.n == 0 || FastGemm(shape, a, b, beta, c, c_stride)) return;
  thread_local std::vector<float> wide_a, wide_b;
  Gemm(shape, Widened(a, shape.m, shape.k, wide_a), Widened(b, shape.k, shape.n, wide_b), beta, c,
       c_stride);
}

void Gemm(const GemmShape& shape, const Matrix<Bf16>& a, const Matrix<Bf16>& b, float beta, Bf16* c,
          int64_t c_stride) {
  if (shape.m == 0 || shape.n == 0 || FastGemm(shape, a, b, beta, c, c_stride)) return;
  thread_local std::vector<float> wide_c;
  if (beta == 0) {
    wide_c.resize(shape.m * shape.n);
  } else {
    Widened({c, c_stride}, shape.m, shape.n, wide_c);
  }
  Gemm(shape, a, b, beta, wide_c.data(), shape.n);
  const float* sums = wide_c.data();
  ParallelFor(shape.m,
              [&](int64_t i) { FromFloatRow(sums + i * shape.n, c + i * c_stride, shape.n); });
}

}  // namespace espalier::cpu
