// BlasCall: a product of gemm.h as cblas_sgemm takes it, row-major, with 32-bit sizes. Used by
// accelerate_darwin.cc. Any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "worker/kernels/gemm.h"

namespace espalier::cpu {

struct BlasCall {
  int m = 0, n = 0, k = 0;
  int lda = 0, ldb = 0, ldc = 0;
};

// Sizes of a matrix as it is stored, whatever is done to it: BLAS asks for rows that do not
// overlap, even where there is one.
inline int64_t LeadingDimension(const Matrix<float>& matrix, int64_t rows, int64_t columns) {
  const bool plain = matrix.op == Op::kPlain;
  const int64_t stored_rows = plain ? rows : columns, stored_columns = plain ? columns : rows;
  const int64_t least = std::max<int64_t>(1, stored_columns);
  if (stored_rows > 1 && matrix.stride < least) {
    throw std::invalid_argument("rows of a factor overlap: " + std::to_string(matrix.stride) +
                                " apart, and " + std::to_string(stored_columns) + " long");
  }
  return stored_rows > 1 ? matrix.stride : least;
}

inline int BlasSize(int64_t size) {
  if (size < 0 || size > std::numeric_limits<int>::max()) {
    throw std::invalid_argument("a matrix has a side or rows of " + std::to_string(size) +
                                ", and BLAS takes 2^31 - 1 at most; make the micro-batch smaller");
  }
  return static_cast<int>(size);
}

inline BlasCall MakeBlasCall(const GemmShape& shape, const Matrix<float>& a, const Matrix<float>& b,
                             int64_t c_stride) {
  if (c_stride < shape.n) throw std::invalid_argument("rows of a product overlap");
  return {.m = BlasSize(shape.m),
          .n = BlasSize(shape.n),
          .k = BlasSize(shape.k),
          .lda = BlasSize(LeadingDimension(a, shape.m, shape.k)),
          .ldb = BlasSize(LeadingDimension(b, shape.k, shape.n)),
          .ldc = BlasSize(std::max<int64_t>(1, c_stride))};
}

}  // namespace espalier::cpu
