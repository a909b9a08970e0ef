// What Accelerate is told of a product, held against a BLAS of the test that does as it is told.
#include "worker/kernels/blas_call.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace espalier::cpu {
namespace {

// cblas_sgemm, row-major, with alpha 1; `length` floats may be read of each factor.
struct Factor {
  const float* data;
  int leading;
  bool transpose;
  size_t length;
  float At(int row, int column) const {
    const size_t at = static_cast<size_t>(transpose ? column : row) * static_cast<size_t>(leading) +
                      static_cast<size_t>(transpose ? row : column);
    EXPECT_LT(at, length);
    return at < length ? data[at] : 0;
  }
};

void Sgemm(const BlasCall& call, const Factor& a, const Factor& b, float beta, float* c) {
  EXPECT_GE(a.leading, a.transpose ? call.m : call.k);
  EXPECT_GE(b.leading, b.transpose ? call.k : call.n);
  EXPECT_GE(call.ldc, call.n);
  for (int i = 0; i < call.m; ++i) {
    for (int j = 0; j < call.n; ++j) {
      float sum = 0;
      for (int l = 0; l < call.k; ++l) sum += a.At(i, l) * b.At(l, j);
      float& out = c[i * call.ldc + j];
      out = beta == 0 ? sum : sum + beta * out;
    }
  }
}

std::vector<float> Numbers(size_t count, float phase) {
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = std::sin(phase + 0.7f * static_cast<float>(i));
  return numbers;
}

struct Case {
  GemmShape shape;
  Op a, b;
  int64_t more;  // elements of a row beyond what it needs
  float beta;
};

class BlasCalls : public testing::TestWithParam<Case> {};

TEST_P(BlasCalls, ComeToTheSameAsGemm) {
  const Case& test = GetParam();
  const auto [m, n, k] = test.shape;
  const auto matrix = [&](Op op, int64_t rows, int64_t columns, std::vector<float>& memory,
                          float phase) {
    const int64_t stored_rows = op == Op::kPlain ? rows : columns;
    const int64_t stride = (op == Op::kPlain ? columns : rows) + test.more;
    memory = Numbers(static_cast<size_t>(stored_rows * stride), phase);
    return Matrix<float>{memory.data(), stride, op};
  };
  std::vector<float> of_a, of_b;
  const Matrix<float> a = matrix(test.a, m, k, of_a, 1), b = matrix(test.b, k, n, of_b, 2);
  const int64_t stride = n + test.more;
  std::vector<float> expected = Numbers(static_cast<size_t>(m * stride), 3), found = expected;
  Gemm(test.shape, a, b, test.beta, expected.data(), stride);
  const BlasCall call = MakeBlasCall(test.shape, a, b, stride);
  Sgemm(call, {a.data, call.lda, a.op == Op::kTranspose, of_a.size()},
        {b.data, call.ldb, b.op == Op::kTranspose, of_b.size()}, test.beta, found.data());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4) << i;
}

constexpr Op kPlain = Op::kPlain, kTranspose = Op::kTranspose;
INSTANTIATE_TEST_SUITE_P(Each, BlasCalls,
                         testing::Values(Case{{5, 7, 3}, kPlain, kPlain, 0, 0},
                                         Case{{5, 7, 3}, kTranspose, kPlain, 2, 1},
                                         Case{{5, 7, 3}, kPlain, kTranspose, 4, 0},
                                         Case{{5, 7, 3}, kTranspose, kTranspose, 1, 0.5f},
                                         Case{{1, 7, 3}, kPlain, kTranspose, 0, 1},
                                         Case{{4, 1, 1}, kTranspose, kPlain, 3, 0}));

TEST(BlasCall, ASingleRowMayHaveAnyDistanceToTheNext) {
  const float numbers[] = {1, 2, 3};
  const BlasCall call = MakeBlasCall({1, 1, 3}, {numbers, 0}, {numbers, 1}, 1);
  EXPECT_EQ(call.lda, 3);
  EXPECT_EQ(call.ldb, 1);
}

TEST(BlasCall, WhatBlasWouldReadWronglyIsRefused) {
  const float number = 1;
  EXPECT_THROW(MakeBlasCall({2, 2, 4}, {&number, 3}, {&number, 2}, 2), std::invalid_argument);
  EXPECT_THROW(MakeBlasCall({2, 2, 4}, {&number, 4}, {&number, 2}, 1), std::invalid_argument);
  EXPECT_THROW(MakeBlasCall({int64_t{1} << 31, 2, 4}, {&number, 4}, {&number, 2}, 2),
               std::invalid_argument);
}

}  // namespace
}  // namespace espalier::cpu
