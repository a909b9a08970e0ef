#include "worker/kernels/cpu_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/kernels/cpu_rows.h"
#include "worker/kernels/gemm.h"
#include "worker/kernels/parallel.h"

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

float ScaleOf(const AttentionShape& shape) {
  return 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
}

// The rows of one head as floats: all positions, `stride` elements apart.
struct HeadRows {
  float* data;
  int64_t stride;
  Matrix<float> From(int64_t row, Op op = Op::kPlain) const {
    return {data + row * stride, stride, op};
  }
};

// The rows of a head where they lie, or as floats in `memory`.
HeadRows Widened(const float* data, int64_t stride, const AttentionShape&, std::vector<float>&) {
  return {const_cast<float*>(data), stride};
}
HeadRows Widened(const Bf16* data, int64_t stride, const AttentionShape& shape,
                 std::vector<float>& memory) {
  memory.resize(shape.time * shape.head_dim);
  for (int64_t t = 0; t < shape.time; ++t) {
    ToFloatRow(data + t * stride, memory.data() + t * shape.head_dim, shape.head_dim);
  }
  return {memory.data(), shape.head_dim};
}

// Where a head's results are computed: in place, or in `memory` to be narrowed afterwards.
HeadRows Results(float* data, int64_t stride, const AttentionShape&, std::vector<float>&) {
  return {data, stride};
}
HeadRows Results(Bf16*, int64_t, const AttentionShape& shape, std::vector<float>& memory) {
  memory.resize(shape.time * shape.head_dim);
  return {memory.data(), shape.head_dim};
}
void Narrow(const HeadRows&, float*, int64_t, const AttentionShape&) {}
void Narrow(const HeadRows& rows, Bf16* data, int64_t stride, const AttentionShape& shape) {
  for (int64_t t = 0; t < shape.time; ++t) {
    FromFloatRow(rows.data + t * rows.stride, data + t * stride, shape.head_dim);
  }
}

void Zero(const HeadRows& rows, const AttentionShape& shape) {
  for (int64_t t = 0; t < shape.time; ++t) {
    std::fill_n(rows.data + t * rows.stride, shape.head_dim, 0.0F);
  }
}

// Where head `h` of sequence `b` begins, and how far its rows are apart.
struct Place {
  Place(const AttentionShape& shape, int64_t heads, int64_t b, int64_t h)
      : stride(heads * shape.head_dim), at(b * shape.time * stride + h * shape.head_dim) {}
  int64_t stride;
  int64_t at;
};

struct Scratch {
  std::vector<float> q, k, v, out, dout, dq, dk, dv;  // heads of Bf16 numbers, widened
  std::vector<float> p, d;                            // scores of a block, and their gradients
};
Scratch& ThreadScratch() {
  thread_local Scratch scratch;
  return scratch;
}

// One head, forward.
void HeadForward(const AttentionShape& shape, const HeadRows& q, const HeadRows& k,
                 const HeadRows& v, const HeadRows& out, float* log_sum) {
  std::vector<float>& scores = ThreadScratch().p;
  const int64_t D = shape.head_dim;
  for (int64_t begin = 0; begin < shape.time; begin += kBlockRows) {
    const Block block = BlockAt(shape, begin);
    const int64_t rows = block.rows(), columns = block.columns();
    scores.resize(rows * columns);
    Gemm({rows, columns, D}, q.From(begin), k.From(block.first, Op::kTranspose), 0, scores.data(),
         columns);
    for (int64_t i = 0; i < rows; ++i) {
      float* row = scores.data() + i * columns;
      const Seen seen = SeenBy(shape, block, begin + i);
      const SoftmaxRow softmax = ExpRow(row + seen.from, seen.to - seen.from, ScaleOf(shape));
      ScaleRow(row + seen.from, seen.to - seen.from, 1.0F / softmax.sum);
      ZeroUnseen(row, seen, columns);
      log_sum[begin + i] = softmax.max + std::log(softmax.sum);
    }
    Gemm({rows, D, columns}, Matrix<float>{scores.data(), columns}, v.From(block.first), 0,
         out.data + begin * out.stride, out.stride);
  }
}

// What the backward pass of one query head reads and writes.
struct HeadGradient {
  HeadRows q, k, v, out, dout;
  const float* log_sum;
  HeadRows dq, dk, dv;
};

// Adds the part of one block of query rows to dk and dv, and writes its rows of dq.
void BlockBackward(const AttentionShape& shape, const Block& block, const HeadGradient& head) {
  std::vector<float>&p = ThreadScratch().p, &d = ThreadScratch().d;
  const int64_t D = shape.head_dim, rows = block.rows(), columns = block.columns();
  const float scale = ScaleOf(shape);
  p.resize(rows * columns);
  d.resize(rows * columns);
  const Matrix<float> q = head.q.From(block.begin), dout = head.dout.From(block.begin);
  Gemm({rows, columns, D}, q, head.k.From(block.first, Op::kTranspose), 0, p.data(), columns);
  Gemm({rows, columns, D}, dout, head.v.From(block.first, Op::kTranspose), 0, d.data(), columns);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t t = block.begin + i;
    const Seen seen = SeenBy(shape, block, t);
    const int64_t n = seen.to - seen.from;
    float* pi = p.data() + i * columns;
    float* di = d.data() + i * columns;
    ProbabilityRow(pi + seen.from, n, scale, head.log_sum[t]);
    // sum_j p_j (dout . v_j) equals dout . out.
    const float delta = DotRow(head.dout.From(t).data, head.out.From(t).data, D);
    SoftmaxGradientRow(pi + seen.from, di + seen.from, n, delta, scale);
    ZeroUnseen(pi, seen, columns);
    ZeroUnseen(di, seen, columns);
  }
  const auto transposed = [&](const std::vector<float>& scores) {
    return Matrix<float>{scores.data(), columns, Op::kTranspose};
  };
  Gemm({rows, D, columns}, Matrix<float>{d.data(), columns}, head.k.From(block.first), 0,
       head.dq.data + block.begin * head.dq.stride, head.dq.stride);
  Gemm({columns, D, rows}, transposed(d), q, 1, head.dk.data + block.first * head.dk.stride,
       head.dk.stride);
  Gemm({columns, D, rows}, transposed(p), dout, 1, head.dv.data + block.first * head.dv.stride,
       head.dv.stride);
}

}  // namespace

template <typename Real>
void AttentionForward(const AttentionShape& shape, const Real* q, const Real* k, const Real* v,
                      Real* out, float* log_sum) {
  const int64_t group = shape.heads / shape.kv_heads;
  ParallelForUneven(shape.batch * shape.heads, [&](int64_t i) {
    const int64_t b = i / shape.heads, h = i % shape.heads;
    Scratch& scratch = ThreadScratch();
    const Place query(shape, shape.heads, b, h), key(shape, shape.kv_heads, b, h / group);
    const HeadRows result = Results(out + query.at, query.stride, shape, scratch.out);
    HeadForward(shape, Widened(q + query.at, query.stride, shape, scratch.q),
                Widened(k + key.at, key.stride, shape, scratch.k),
                Widened(v + key.at, key.stride, shape, scratch.v), result,
                log_sum + (b * shape.heads + h) * shape.time);
    Narrow(result, out + query.at, query.stride, shape);
  });
}

template <typename Real>
void AttentionBackward(const AttentionShape& shape, const Real* q, const Real* k, const Real* v,
                       const Real* out, const float* log_sum, const Real* dout,
                       const AttentionGradients<Real>& gradients) {
  const int64_t group = shape.heads / shape.kv_heads;
  // One thread takes all query heads of a key/value head, so no two threads add to one dk.
  ParallelForUneven(shape.batch * shape.kv_heads, [&](int64_t i) {
    const int64_t b = i / shape.kv_heads, g = i % shape.kv_heads;
    Scratch& scratch = ThreadScratch();
    const Place key(shape, shape.kv_heads, b, g);
    HeadGradient head;
    head.k = Widened(k + key.at, key.stride, shape, scratch.k);
    head.v = Widened(v + key.at, key.stride, shape, scratch.v);
    head.dk = Results(gradients.dk + key.at, key.stride, shape, scratch.dk);
    head.dv = Results(gradients.dv + key.at, key.stride, shape, scratch.dv);
    Zero(head.dk, shape);
    Zero(head.dv, shape);
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      const Place query(shape, shape.heads, b, h);
      head.q = Widened(q + query.at, query.stride, shape, scratch.q);
      head.out = Widened(out + query.at, query.stride, shape, scratch.out);
      head.dout = Widened(dout + query.at, query.stride, shape, scratch.dout);
      head.dq = Results(gradients.dq + query.at, query.stride, shape, scratch.dq);
      head.log_sum = log_sum + (b * shape.heads + h) * shape.time;
      for (int64_t begin = 0; begin < shape.time; begin += kBlockRows) {
        BlockBackward(shape, BlockAt(shape, begin), head);
      }
      Narrow(head.dq, gradients.dq + query.at, query.stride, shape);
    }
    Narrow(head.dk, gradients.dk + key.at, key.stride, shape);
    Narrow(head.dv, gradients.dv + key.at, key.stride, shape);
  });
}

template void AttentionForward(const AttentionShape&, const float*, const float*, const float*,
                               float*, float*);
template void AttentionForward(const AttentionShape&, const Bf16*, const Bf16*, const Bf16*, Bf16*,
                               float*);
template void AttentionBackward(const AttentionShape&, const float*, const float*, const float*,
                                const float*, const float*, const float*,
                                const AttentionGradients<float>&);
template void AttentionBackward(const AttentionShape&, const Bf16*, const Bf16*, const Bf16*,
                                const Bf16*, const float*, const Bf16*,
                                const AttentionGradients<Bf16>&);

}  // namespace espalier::cpu
