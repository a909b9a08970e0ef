#include "worker/model/cpu_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/model/cpu_rows.h"
#include "worker/model/gemm.h"

namespace espalier::cpu {
namespace {

constexpr int64_t kBlockRows = 64;

// Query rows [begin, end) of one head and the keys [first, end) that any of them sees.
struct Block {
  int64_t begin;
  int64_t end;
  int64_t first;
  int64_t rows() const { return end - begin; }
  int64_t columns() const { return end - first; }
};

Block BlockAt(const AttentionShape& shape, int64_t begin) {
  const int64_t end = std::min(begin + kBlockRows, shape.time);
  const int64_t first = shape.window == 0 ? 0 : std::max<int64_t>(0, begin - shape.window + 1);
  return {.begin = begin, .end = end, .first = first};
}

// Columns of a block that query row t sees: [from, to), relative to the block's first key.
struct Seen {
  int64_t from;
  int64_t to;
};
Seen SeenBy(const AttentionShape& shape, const Block& block, int64_t t) {
  const int64_t from = shape.window == 0 ? 0 : std::max<int64_t>(0, t - shape.window + 1);
  return {.from = std::max(from, block.first) - block.first, .to = t + 1 - block.first};
}

void ZeroUnseen(float* row, const Seen& seen, int64_t columns) {
  std::fill(row, row + seen.from, 0.0F);
  std::fill(row + seen.to, row + columns, 0.0F);
}

struct Strides {
  explicit Strides(const AttentionShape& s)
      : q_row(s.heads * s.head_dim), kv_row(s.kv_heads * s.head_dim) {}
  int64_t q_row;
  int64_t kv_row;
};

float ScaleOf(const AttentionShape& shape) {
  return 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
}

}  // namespace

void AttentionForward(const AttentionShape& shape, const float* q, const float* k, const float* v,
                      float* out, float* log_sum) {
  const Strides stride(shape);
  const int64_t D = shape.head_dim, group = shape.heads / shape.kv_heads;
  const float scale = ScaleOf(shape);
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      thread_local std::vector<float> scores;
      const float* qh = q + b * shape.time * stride.q_row + h * D;
      const float* kh = k + b * shape.time * stride.kv_row + (h / group) * D;
      const float* vh = v + b * shape.time * stride.kv_row + (h / group) * D;
      float* oh = out + b * shape.time * stride.q_row + h * D;
      float* sums = log_sum + (b * shape.heads + h) * shape.time;
      for (int64_t begin = 0; begin < shape.time; begin += kBlockRows) {
        const Block block = BlockAt(shape, begin);
        const int64_t rows = block.rows(), columns = block.columns();
        scores.resize(rows * columns);
        Gemm({rows, columns, D}, {qh + begin * stride.q_row, stride.q_row},
             {kh + block.first * stride.kv_row, stride.kv_row, Op::kTranspose}, 0, scores.data(),
             columns);
        for (int64_t i = 0; i < rows; ++i) {
          float* row = scores.data() + i * columns;
          const Seen seen = SeenBy(shape, block, begin + i);
          const SoftmaxRow softmax = ExpRow(row + seen.from, seen.to - seen.from, scale);
          ScaleRow(row + seen.from, seen.to - seen.from, 1.0F / softmax.sum);
          ZeroUnseen(row, seen, columns);
          sums[begin + i] = softmax.max + std::log(softmax.sum);
        }
        Gemm({rows, D, columns}, {scores.data(), columns},
             {vh + block.first * stride.kv_row, stride.kv_row}, 0, oh + begin * stride.q_row,
             stride.q_row);
      }
    }
  }
}

namespace {

// The pointers of one query head and its key/value head.
struct HeadGradient {
  const float *q, *k, *v, *out, *dout, *log_sum;
  float *dq, *dk, *dv;
};

// Adds the part of one block of query rows to dk and dv, and writes its rows of dq.
void BlockBackward(const AttentionShape& shape, const Block& block, const HeadGradient& head,
                   std::vector<float>& p, std::vector<float>& d) {
  const Strides stride(shape);
  const int64_t D = shape.head_dim, rows = block.rows(), columns = block.columns();
  const float scale = ScaleOf(shape);
  p.resize(rows * columns);
  d.resize(rows * columns);
  const MatrixView q{head.q + block.begin * stride.q_row, stride.q_row};
  const MatrixView dout{head.dout + block.begin * stride.q_row, stride.q_row};
  const MatrixView k{head.k + block.first * stride.kv_row, stride.kv_row};
  const MatrixView v{head.v + block.first * stride.kv_row, stride.kv_row};
  const auto transposed = [](MatrixView view) {
    view.op = Op::kTranspose;
    return view;
  };
  Gemm({rows, columns, D}, q, transposed(k), 0, p.data(), columns);
  Gemm({rows, columns, D}, dout, transposed(v), 0, d.data(), columns);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t t = block.begin + i;
    const Seen seen = SeenBy(shape, block, t);
    const int64_t n = seen.to - seen.from;
    float* pi = p.data() + i * columns;
    float* di = d.data() + i * columns;
    ProbabilityRow(pi + seen.from, n, scale, head.log_sum[t]);
    // sum_j p_j (dout . v_j) equals dout . out.
    const float delta = DotRow(head.dout + t * stride.q_row, head.out + t * stride.q_row, D);
    SoftmaxGradientRow(pi + seen.from, di + seen.from, n, delta, scale);
    ZeroUnseen(pi, seen, columns);
    ZeroUnseen(di, seen, columns);
  }
  const MatrixView ds{d.data(), columns};
  Gemm({rows, D, columns}, ds, k, 0, head.dq + block.begin * stride.q_row, stride.q_row);
  Gemm({columns, D, rows}, transposed(ds), q, 1, head.dk + block.first * stride.kv_row,
       stride.kv_row);
  Gemm({columns, D, rows}, transposed({p.data(), columns}), dout, 1,
       head.dv + block.first * stride.kv_row, stride.kv_row);
}

}  // namespace

void AttentionBackward(const AttentionShape& shape, const float* q, const float* k, const float* v,
                       const float* out, const float* log_sum, const float* dout,
                       const AttentionGradients& gradients) {
  const Strides stride(shape);
  const int64_t D = shape.head_dim, group = shape.heads / shape.kv_heads;
  const int64_t kv_elements = shape.batch * shape.time * stride.kv_row;
  std::fill(gradients.dk, gradients.dk + kv_elements, 0.0F);
  std::fill(gradients.dv, gradients.dv + kv_elements, 0.0F);
  // One thread takes all query heads of a key/value head, so no two threads add to one dk.
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t g = 0; g < shape.kv_heads; ++g) {
      thread_local std::vector<float> p, d;
      for (int64_t h = g * group; h < (g + 1) * group; ++h) {
        const int64_t q_at = b * shape.time * stride.q_row + h * D;
        const int64_t kv_at = b * shape.time * stride.kv_row + g * D;
        const HeadGradient head{.q = q + q_at,
                                .k = k + kv_at,
                                .v = v + kv_at,
                                .out = out + q_at,
                                .dout = dout + q_at,
                                .log_sum = log_sum + (b * shape.heads + h) * shape.time,
                                .dq = gradients.dq + q_at,
                                .dk = gradients.dk + kv_at,
                                .dv = gradients.dv + kv_at};
        for (int64_t begin = 0; begin < shape.time; begin += kBlockRows) {
          BlockBackward(shape, BlockAt(shape, begin), head, p, d);
        }
      }
    }
  }
}

}  // namespace espalier::cpu
