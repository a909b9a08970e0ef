#include <algorithm>
#include <array>

#include "common/base/simd.h"
#include "worker/kernels/parallel.h"
#include "worker/kernels/rows_apart.h"

namespace espalier::cpu {
namespace {

// A tile is always computed whole, rows that are not there standing in for each other: loops of
// another size might add up in another order. 4 x 2 sums fill the registers of AVX2.
constexpr int64_t kRows = 4, kColumns = 2;
using Tile = std::array<float, kRows * kColumns>;
template <typename Real>
using RowPointers = std::array<const Real*, kRows>;

// Sums of x[i] . w[j] over k.
template <typename Real>
inline __attribute__((always_inline)) void Dots(const RowPointers<Real>& x, const Real* w0,
                                                const Real* w1, int64_t k, Tile& tile) {
  const Real *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
  float a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
#pragma omp simd reduction(+ : a0, a1, a2, a3, b0, b1, b2, b3)
  for (int64_t i = 0; i < k; ++i) {
    const float v0 = ToFloat(w0[i]), v1 = ToFloat(w1[i]);
    a0 += ToFloat(x0[i]) * v0;
    a1 += ToFloat(x1[i]) * v0;
    a2 += ToFloat(x2[i]) * v0;
    a3 += ToFloat(x3[i]) * v0;
    b0 += ToFloat(x0[i]) * v1;
    b1 += ToFloat(x1[i]) * v1;
    b2 += ToFloat(x2[i]) * v1;
    b3 += ToFloat(x3[i]) * v1;
  }
  tile = {a0, b0, a1, b1, a2, b2, a3, b3};
}

// Columns of weights [k, n]: sums of x[i][k] w[k][j], from the first k to the last.
constexpr int64_t kPlainColumns = 64;
using PlainTile = std::array<float, kRows * kPlainColumns>;

template <typename Real>
inline __attribute__((always_inline)) void Sums(const RowPointers<Real>& x, const Matrix<Real>& w,
                                                int64_t k, int64_t columns, PlainTile& tile) {
  tile.fill(0);
  for (int64_t i = 0; i < k; ++i) {
    const Real* row = w.data + i * w.stride;
    for (int64_t r = 0; r < kRows; ++r) {
      const float factor = ToFloat(x[r][i]);
      float* sum = tile.data() + r * kPlainColumns;
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) sum[j] += factor * ToFloat(row[j]);
    }
  }
}

#define ESPALIER_DEFINE_TILES(Real)                                                              \
  ESPALIER_SIMD_CLONES void DotsOf(const RowPointers<Real>& x, const Real* w0, const Real* w1,   \
                                   int64_t k, Tile& tile) {                                      \
    Dots(x, w0, w1, k, tile);                                                                    \
  }                                                                                              \
  ESPALIER_SIMD_CLONES void SumsOf(const RowPointers<Real>& x, const Matrix<Real>& w, int64_t k, \
                                   int64_t columns, PlainTile& tile) {                           \
    Sums(x, w, k, columns, tile);                                                                \
  }
ESPALIER_DEFINE_TILES(float)
ESPALIER_DEFINE_TILES(Bf16)
#undef ESPALIER_DEFINE_TILES

template <typename Out>
void Store(float sum, bool add, Out& y) {
  y = FromFloat<Out>(add ? ToFloat(y) + sum : sum);
}

template <typename Real>
RowPointers<Real> RowsFrom(const GemmShape& shape, const Real* x, int64_t begin) {
  RowPointers<Real> rows;
  for (int64_t r = 0; r < kRows; ++r) rows[r] = x + std::min(begin + r, shape.m - 1) * shape.k;
  return rows;
}

template <typename Real, typename Out>
struct Work {
  GemmShape shape;
  const Real* x;
  Matrix<Real> w;
  bool add;
  Out* y;

  // Columns [begin, end).
  void Transposed(int64_t begin, int64_t end) const {
    Tile tile;
    for (int64_t j = begin; j < end; j += kColumns) {
      const Real* w0 = w.data + j * w.stride;
      const Real* w1 = w.data + std::min(j + 1, shape.n - 1) * w.stride;
      for (int64_t i = 0; i < shape.m; i += kRows) {
        DotsOf(RowsFrom(shape, x, i), w0, w1, shape.k, tile);
        for (int64_t r = 0; r < std::min(kRows, shape.m - i); ++r) {
          for (int64_t c = 0; c < std::min(kColumns, end - j); ++c) {
            Store(tile[r * kColumns + c], add, y[(i + r) * shape.n + j + c]);
          }
        }
      }
    }
  }
  void Plain(int64_t begin, int64_t end) const {
    PlainTile tile;
    for (int64_t i = 0; i < shape.m; i += kRows) {
      SumsOf(RowsFrom(shape, x, i), {w.data + begin, w.stride}, shape.k, end - begin, tile);
      for (int64_t r = 0; r < std::min(kRows, shape.m - i); ++r) {
        for (int64_t j = begin; j < end; ++j) {
          Store(tile[r * kPlainColumns + j - begin], add, y[(i + r) * shape.n + j]);
        }
      }
    }
  }

  void Run() const {
    if (shape.m == 0 || shape.n == 0) return;
    const bool plain = w.op == Op::kPlain;
    const int64_t step = plain ? kPlainColumns : 16, parts = (shape.n + step - 1) / step;
    const auto part = [&](int64_t i) {
      const int64_t begin = i * step, end = std::min(begin + step, shape.n);
      plain ? Plain(begin, end) : Transposed(begin, end);
    };
    constexpr int64_t kWorthThreads = 1 << 15;  // what waking them costs
    if (shape.m * shape.n * shape.k >= kWorthThreads) return ParallelFor(parts, part);
    for (int64_t i = 0; i < parts; ++i) part(i);
  }
};

}  // namespace

void RowProduct(const GemmShape& shape, const float* x, const Matrix<float>& w, bool add,
                float* y) {
  Work<float, float>{shape, x, w, add, y}.Run();
}
void RowProduct(const GemmShape& shape, const Bf16* x, const Matrix<Bf16>& w, bool add, float* y) {
  Work<Bf16, float>{shape, x, w, add, y}.Run();
}
void RowProduct(const GemmShape& shape, const Bf16* x, const Matrix<Bf16>& w, bool add, Bf16* y) {
  Work<Bf16, Bf16>{shape, x, w, add, y}.Run();
}

}  // namespace espalier::cpu
