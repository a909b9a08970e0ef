#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/simd.h"
#include "worker/kernels/cpu_rows.h"
#include "worker/kernels/parallel.h"
#include "worker/kernels/rows_apart.h"

namespace espalier::cpu {
namespace {

// Scores of the queries of a group with the keys of their head: [group, count].
template <typename Real>
inline __attribute__((always_inline)) void ScoresInline(const Real* q, int64_t group,
                                                        const Real* keys, int64_t count,
                                                        int64_t dim, float* scores) {
  for (int64_t j = 0; j < count; ++j) {
    const Real* key = keys + j * dim;
    for (int64_t g = 0; g < group; ++g) {
      const Real* query = q + g * dim;
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < dim; ++i) sum += ToFloat(query[i]) * ToFloat(key[i]);
      scores[g * count + j] = sum;
    }
  }
}

// Sums of values by what each query takes of them: [group, dim].
template <typename Real>
inline __attribute__((always_inline)) void MixInline(const float* taken, int64_t group,
                                                     const Real* values, int64_t count, int64_t dim,
                                                     float* sums) {
  std::fill_n(sums, group * dim, 0.0F);
  for (int64_t j = 0; j < count; ++j) {
    const Real* value = values + j * dim;
    for (int64_t g = 0; g < group; ++g) {
      const float weight = taken[g * count + j];
      float* sum = sums + g * dim;
#pragma omp simd
      for (int64_t i = 0; i < dim; ++i) sum[i] += weight * ToFloat(value[i]);
    }
  }
}

#define ESPALIER_DEFINE_ROW_ATTENTION(Real)                                                       \
  ESPALIER_SIMD_CLONES void Scores(const Real* q, int64_t group, const Real* keys, int64_t count, \
                                   int64_t dim, float* scores) {                                  \
    ScoresInline(q, group, keys, count, dim, scores);                                             \
  }                                                                                               \
  ESPALIER_SIMD_CLONES void Mix(const float* taken, int64_t group, const Real* values,            \
                                int64_t count, int64_t dim, float* sums) {                        \
    MixInline(taken, group, values, count, dim, sums);                                            \
  }
ESPALIER_DEFINE_ROW_ATTENTION(float)
ESPALIER_DEFINE_ROW_ATTENTION(Bf16)
#undef ESPALIER_DEFINE_ROW_ATTENTION

template <typename Real>
void Attend(const RowAttentionShape& shape, const Real* q, const Real* keys, const Real* values,
            const int64_t* lengths, Real* out) {
  const int64_t dim = shape.head_dim, group = shape.heads / shape.kv_heads;
  const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
  ParallelForUneven(shape.rows * shape.kv_heads, [&](int64_t task) {
    const int64_t length = lengths[task / shape.kv_heads];
    const int64_t count = shape.window > 0 ? std::min(length, shape.window) : length;
    const int64_t from = (task * shape.capacity + length - count) * dim;
    std::vector<float> scratch(group * (count + dim));
    float *scores = scratch.data(), *sums = scores + group * count;
    Scores(q + task * group * dim, group, keys + from, count, dim, scores);
    std::vector<float> total(group);
    for (int64_t g = 0; g < group; ++g) total[g] = ExpRow(scores + g * count, count, scale).sum;
    Mix(scores, group, values + from, count, dim, sums);
    for (int64_t g = 0; g < group; ++g) {
      ScaledRow(sums + g * dim, 1 / total[g], out + (task * group + g) * dim, dim);
    }
  });
}

}  // namespace

void RowAttention(const RowAttentionShape& shape, const float* q, const float* keys,
                  const float* values, const int64_t* lengths, float* out) {
  Attend(shape, q, keys, values, lengths, out);
}
void RowAttention(const RowAttentionShape& shape, const Bf16* q, const Bf16* keys,
                  const Bf16* values, const int64_t* lengths, Bf16* out) {
  Attend(shape, q, keys, values, lengths, out);
}

}  // namespace espalier::cpu
