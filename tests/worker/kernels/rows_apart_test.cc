#include "worker/kernels/rows_apart.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace espalier::cpu {
namespace {

template <typename Real>
std::vector<Real> Numbers(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Real> numbers(static_cast<size_t>(count));
  for (Real& number : numbers) number = FromFloat<Real>(normal(random));
  return numbers;
}

struct Case {
  int64_t m, n, k;
  Op op;
  bool add;
};

const Case kCases[] = {{1, 1, 1, Op::kTranspose, false},   {1, 7, 33, Op::kTranspose, true},
                       {4, 16, 64, Op::kTranspose, false}, {5, 31, 130, Op::kTranspose, true},
                       {19, 65, 257, Op::kPlain, false},   {3, 200, 40, Op::kPlain, true}};

template <typename Real, typename Out>
std::vector<Out> Product(const Case& c, int64_t rows, int64_t first = 0) {
  const std::vector<Real> x = Numbers<Real>(c.m * c.k, 1), w = Numbers<Real>(c.n * c.k, 2);
  std::vector<Out> y = Numbers<Out>(c.m * c.n, 3);
  const int64_t stride = c.op == Op::kTranspose ? c.k : c.n;
  RowProduct({rows, c.n, c.k}, x.data() + first * c.k, {w.data(), stride, c.op}, c.add,
             y.data() + first * c.n);
  return {y.begin() + first * c.n, y.begin() + (first + rows) * c.n};
}

template <typename Real, typename Out>
void ExpectTheFormula(double tolerance) {
  for (const Case& c : kCases) {
    const std::vector<Real> x = Numbers<Real>(c.m * c.k, 1), w = Numbers<Real>(c.n * c.k, 2);
    const std::vector<Out> before = Numbers<Out>(c.m * c.n, 3), y = Product<Real, Out>(c, c.m);
    for (int64_t i = 0; i < c.m * c.n; ++i) {
      double sum = c.add ? ToFloat(before[static_cast<size_t>(i)]) : 0;
      for (int64_t k = 0; k < c.k; ++k) {
        const int64_t j = i % c.n, place = c.op == Op::kTranspose ? j * c.k + k : k * c.n + j;
        sum += static_cast<double>(ToFloat(x[static_cast<size_t>(i / c.n * c.k + k)])) *
               ToFloat(w[static_cast<size_t>(place)]);
      }
      EXPECT_NEAR(ToFloat(y[static_cast<size_t>(i)]), sum,
                  tolerance * (1 + std::sqrt(static_cast<double>(c.k))))
          << c.m << " x " << c.n << " x " << c.k << " at " << i;
    }
  }
}

TEST(RowProduct, IsTheProduct) {
  ExpectTheFormula<float, float>(1e-5);
  ExpectTheFormula<Bf16, float>(1e-5);
  ExpectTheFormula<Bf16, Bf16>(1e-2);
}

TEST(RowProduct, ARowHasTheSameBitsWhateverRowsGoAlong) {
  for (const Case& c : kCases) {
    const std::vector<float> all = Product<float, float>(c, c.m);
    for (int64_t row = 0; row < c.m; ++row) {
      for (int64_t rows = 1; rows <= c.m - row; ++rows) {
        const std::vector<float> some = Product<float, float>(c, rows, row);
        EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + row * c.n))
            << rows << " rows from " << row << " of " << c.m;
      }
    }
  }
}

TEST(RowsApart, HoldsWhileOneLives) {
  EXPECT_FALSE(RowsApart::Here());
  {
    const RowsApart apart;
    const RowsApart inner(false);
    EXPECT_TRUE(RowsApart::Here());
  }
  EXPECT_FALSE(RowsApart::Here());
}

}  // namespace
}  // namespace espalier::cpu
