#include "worker/kernels/cpu_attention.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <vector>

#include "worker/kernels/cpu_rows.h"
#include "worker/kernels/gemm.h"
#include "worker/kernels/parallel.h"

namespace espalier::cpu {
namespace {

// Real: the numbers that come and go. Compute: those that products are made of, Real's where the
// processor multiplies them, else float. Products of 16-bit numbers get matrices without gaps
// between their rows: oneDNN takes up to twice as long for others.

// A product of 16-bit numbers takes so little time that it should be a large one.
template <typename Compute>
constexpr int64_t kBlockRows = std::is_same_v<Compute, float> ? 64 : 128;

// Query rows [begin, end) of one head and keys [first, last), all that they see among them.
struct Block {
  int64_t begin;
  int64_t end;
  int64_t first;
  int64_t last;
  int64_t rows() const { return end - begin; }
  int64_t columns() const { return last - first; }
};

// Prepared products are kept by shape (see gemm_dnnl.cc), so a long head has blocks of few widths.
template <typename Compute>
int64_t Width(const AttentionShape& shape, int64_t columns) {
  constexpr int64_t kRows = kBlockRows<Compute>, kWidths = 16;
  const bool by_shape = !std::is_same_v<Compute, float>;
  const int64_t step = by_shape ? kRows * (shape.time / kRows / kWidths + 1) : 1;
  return std::min((columns + step - 1) / step * step, shape.time);
}

// The same with the begins of one sequence.
AttentionShape OfSequence(AttentionShape shape, int64_t b) {
  if (shape.begins != nullptr) shape.begins += b * shape.time;
  return shape;
}

// The first position that position t of a sequence sees.
int64_t FirstSeen(const AttentionShape& of_sequence, int64_t t) {
  const int64_t begin = of_sequence.begins == nullptr ? 0 : of_sequence.begins[t];
  return of_sequence.window == 0 ? begin : std::max(begin, t - of_sequence.window + 1);
}

template <typename Compute>
Block BlockAt(const AttentionShape& shape, int64_t begin) {
  const int64_t end = std::min(begin + kBlockRows<Compute>, shape.time);
  const int64_t seen = FirstSeen(shape, begin);
  const int64_t width = Width<Compute>(shape, end - seen);
  const int64_t first = std::min(seen, shape.time - width);
  return {.begin = begin, .end = end, .first = first, .last = first + width};
}

// Columns of a block that query row t sees: [from, to), relative to the block's first key.
struct Seen {
  int64_t from;
  int64_t to;
  int64_t size() const { return to - from; }
};
Seen SeenBy(const AttentionShape& shape, const Block& block, int64_t t) {
  return {.from = std::max(FirstSeen(shape, t), block.first) - block.first,
          .to = t + 1 - block.first};
}

template <typename Compute>
void ZeroUnseen(Compute* row, const Seen& seen, int64_t columns) {
  std::fill(row, row + seen.from, Compute{});
  std::fill(row + seen.to, row + columns, Compute{});
}

float ScaleOf(const AttentionShape& shape) {
  return 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
}

// The rows of one head: all positions, `stride` elements apart.
template <typename Real>
struct HeadRows {
  Real* data;
  int64_t stride;
  Real* At(int64_t row) const { return data + row * stride; }
  Matrix<std::remove_const_t<Real>> From(int64_t row, Op op = Op::kPlain) const {
    return {At(row), stride, op};
  }
};

// Rows of head `h` of sequence `b` in [B, T, heads, D].
template <typename Real>
HeadRows<Real> HeadOf(Real* data, const AttentionShape& shape, int64_t heads, int64_t b,
                      int64_t h) {
  const int64_t stride = heads * shape.head_dim;
  return {data + b * shape.time * stride + h * shape.head_dim, stride};
}

// What one thread works in, allocated before the threads start.
template <typename Compute>
class Scratch {
 public:
  // For blocks of scores and, backward, of their gradients; for `heads` heads as products take
  // them and `sums` of floats.
  Scratch(const AttentionShape& shape, int64_t blocks, int64_t heads, int64_t sums)
      : pitch_(PitchOf(shape)),
        head_(shape.time * shape.head_dim),
        scores_(blocks * kBlockRows<Compute> * pitch_),
        numbers_(kFloat ? 0 : scores_.size()),
        tile_(kBlockRows<Compute> * shape.head_dim),
        heads_(heads * head_),
        sums_(sums * head_) {}

  // From one row of a block to the next.
  int64_t pitch(const Block& block) const { return kFloat ? pitch_ : block.columns(); }
  float* scores(int64_t block) { return scores_.data() + block * kBlockRows<Compute> * pitch_; }
  // What becomes of the scores; in their place where it can be.
  Compute* numbers(int64_t block) {
    if constexpr (kFloat) {
      return scores(block);
    } else {
      return numbers_.data() + block * kBlockRows<Compute> * pitch_;
    }
  }
  float* tile() { return tile_.data(); }  // kBlockRows rows of a head
  HeadRows<Compute> head(int64_t i, const AttentionShape& shape) {
    return {heads_.data() + i * head_, shape.head_dim};
  }
  HeadRows<float> sums(int64_t i, const AttentionShape& shape) {
    return {sums_.data() + i * head_, shape.head_dim};
  }

 private:
  static constexpr bool kFloat = std::is_same_v<Compute, float>;

  // Rows a power of two apart would compete for the same lines of the first-level cache.
  static int64_t PitchOf(const AttentionShape& shape) {
    constexpr int64_t kLine = 32;
    const int64_t seen = kBlockRows<Compute> + (shape.window == 0 ? shape.time : shape.window);
    const int64_t columns = Width<Compute>(shape, std::min(seen, shape.time));
    return (columns + kLine - 1) / kLine * kLine + kLine;
  }

  int64_t pitch_, head_;
  std::vector<float> scores_;
  std::vector<Compute> numbers_;
  std::vector<float> tile_;
  std::vector<Compute> heads_;
  std::vector<float> sums_;
};

template <typename Compute>
using Scratches = std::vector<Scratch<Compute>>;
template <typename Compute>
Scratches<Compute> OneAThread(const AttentionShape& shape, int64_t blocks, int64_t heads,
                              int64_t sums) {
  return Scratches<Compute>(omp_get_max_threads(), Scratch<Compute>(shape, blocks, heads, sums));
}

// The rows of a head as products take them: where they lie, or copied or widened to `memory`.
template <typename Compute, typename Real>
HeadRows<const Compute> ForProducts(const HeadRows<const Real>& rows,
                                    const HeadRows<Compute>& memory, const AttentionShape& shape) {
  if constexpr (std::is_same_v<Real, float>) {
    return rows;
  } else if constexpr (std::is_same_v<Compute, Real>) {
    if (rows.stride == shape.head_dim) return rows;
    for (int64_t t = 0; t < shape.time; ++t) std::copy_n(rows.At(t), shape.head_dim, memory.At(t));
  } else {
    for (int64_t t = 0; t < shape.time; ++t) ToFloatRow(rows.At(t), memory.At(t), shape.head_dim);
  }
  return {memory.data, memory.stride};
}

// Where sums of the rows of a head are kept: where the rows will be, or in `memory`. Begins at 0.
template <typename Real>
HeadRows<float> Sums(const HeadRows<Real>& rows, const HeadRows<float>& memory,
                     const AttentionShape& shape) {
  HeadRows<float> sums = memory;
  if constexpr (std::is_same_v<Real, float>) sums = rows;
  for (int64_t t = 0; t < shape.time; ++t) std::fill_n(sums.At(t), shape.head_dim, 0.0F);
  return sums;
}
template <typename Real>
void Finish(const HeadRows<float>& sums, const HeadRows<Real>& rows, const AttentionShape& shape) {
  if constexpr (std::is_same_v<Real, float>) return;
  for (int64_t t = 0; t < shape.time; ++t) FromFloatRow(sums.At(t), rows.At(t), shape.head_dim);
}

// One head, forward. Probabilities are divided by their sum after the product, which has fewer
// columns.
template <typename Real, typename Compute>
void HeadForward(const AttentionShape& shape, const HeadRows<const Compute>& q,
                 const HeadRows<const Compute>& k, const HeadRows<const Compute>& v,
                 const HeadRows<Real>& out, float* log_sum, Scratch<Compute>& scratch) {
  const int64_t D = shape.head_dim;
  float *scores = scratch.scores(0), *tile = scratch.tile();
  Compute* p = scratch.numbers(0);
  for (int64_t begin = 0; begin < shape.time; begin += kBlockRows<Compute>) {
    const Block block = BlockAt<Compute>(shape, begin);
    const int64_t rows = block.rows(), columns = block.columns(), pitch = scratch.pitch(block);
    std::array<float, kBlockRows<Compute>> sum;
    Gemm({rows, columns, D}, q.From(begin), k.From(block.first, Op::kTranspose), 0, scores, pitch);
    for (int64_t i = 0; i < rows; ++i) {
      const Seen seen = SeenBy(shape, block, begin + i);
      Compute* row = p + i * pitch;
      const SoftmaxRow softmax =
          ExpRow(scores + i * pitch + seen.from, row + seen.from, seen.size(), ScaleOf(shape));
      ZeroUnseen(row, seen, columns);
      sum[i] = softmax.sum;
      log_sum[begin + i] = softmax.max + std::log(softmax.sum);
    }
    Gemm({rows, D, columns}, Matrix<Compute>{p, pitch}, v.From(block.first), 0, tile, D);
    for (int64_t i = 0; i < rows; ++i) ScaledRow(tile + i * D, 1 / sum[i], out.At(begin + i), D);
  }
}

// What the backward pass of one query head reads and writes.
template <typename Real, typename Compute>
struct HeadGradient {
  HeadRows<const Compute> q, k, v, dout;
  HeadRows<const Real> own_out, own_dout;
  const float* log_sum;
  HeadRows<Real> dq;
  HeadRows<float> dk, dv;
};

// Makes the probabilities of a block and the gradients of its scores: numbers(0) and numbers(1).
template <typename Real, typename Compute>
void Scores(const AttentionShape& shape, const Block& block,
            const HeadGradient<Real, Compute>& head, Scratch<Compute>& scratch) {
  const int64_t D = shape.head_dim, rows = block.rows(), columns = block.columns();
  const int64_t pitch = scratch.pitch(block);
  float *scores = scratch.scores(0), *gradients = scratch.scores(1);
  Gemm({rows, columns, D}, head.q.From(block.begin), head.k.From(block.first, Op::kTranspose), 0,
       scores, pitch);
  Gemm({rows, columns, D}, head.dout.From(block.begin), head.v.From(block.first, Op::kTranspose), 0,
       gradients, pitch);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t t = block.begin + i;
    const Seen seen = SeenBy(shape, block, t);
    Compute *p = scratch.numbers(0) + i * pitch, *s = scratch.numbers(1) + i * pitch;
    // sum_j p_j (dout . v_j) equals dout . out.
    const SoftmaxRowGradient gradient{ScaleOf(shape), head.log_sum[t],
                                      DotRow(head.own_dout.At(t), head.own_out.At(t), D)};
    SoftmaxGradientRow(scores + i * pitch + seen.from, gradients + i * pitch + seen.from, gradient,
                       p + seen.from, s + seen.from, seen.size());
    ZeroUnseen(p, seen, columns);
    ZeroUnseen(s, seen, columns);
  }
}

// Adds the part of one block of query rows to dk and dv, and writes its rows of dq.
template <typename Real, typename Compute>
void BlockBackward(const AttentionShape& shape, const Block& block,
                   const HeadGradient<Real, Compute>& head, Scratch<Compute>& scratch) {
  const int64_t D = shape.head_dim, rows = block.rows(), columns = block.columns();
  Scores(shape, block, head, scratch);
  const auto numbers = [&](int64_t i, Op op) {
    return Matrix<Compute>{scratch.numbers(i), scratch.pitch(block), op};
  };
  if constexpr (std::is_same_v<Real, float>) {
    Gemm({rows, D, columns}, numbers(1, Op::kPlain), head.k.From(block.first), 0,
         head.dq.At(block.begin), head.dq.stride);
  } else {
    float* tile = scratch.tile();
    Gemm({rows, D, columns}, numbers(1, Op::kPlain), head.k.From(block.first), 0, tile, D);
    for (int64_t i = 0; i < rows; ++i) FromFloatRow(tile + i * D, head.dq.At(block.begin + i), D);
  }
  Gemm({columns, D, rows}, numbers(1, Op::kTranspose), head.q.From(block.begin), 1,
       head.dk.At(block.first), head.dk.stride);
  Gemm({columns, D, rows}, numbers(0, Op::kTranspose), head.dout.From(block.begin), 1,
       head.dv.At(block.first), head.dv.stride);
}

template <typename Compute, typename Real>
void Forward(const AttentionShape& shape, const Real* q, const Real* k, const Real* v, Real* out,
             float* log_sum) {
  constexpr int64_t kHeads = std::is_same_v<Real, float> ? 0 : 3;
  Scratches<Compute> scratches = OneAThread<Compute>(shape, /*blocks=*/1, kHeads, /*sums=*/0);
  ParallelForUneven(shape.batch * shape.heads, [&](int64_t i) {
    Scratch<Compute>& scratch = scratches[omp_get_thread_num()];
    const int64_t b = i / shape.heads, h = i % shape.heads;
    const int64_t g = h / (shape.heads / shape.kv_heads);
    const auto rows = [&](const Real* data, int64_t heads, int64_t head, int64_t place) {
      return ForProducts<Compute>(HeadOf(data, shape, heads, b, head), scratch.head(place, shape),
                                  shape);
    };
    HeadForward(OfSequence(shape, b), rows(q, shape.heads, h, 0), rows(k, shape.kv_heads, g, 1),
                rows(v, shape.kv_heads, g, 2), HeadOf(out, shape, shape.heads, b, h),
                log_sum + i * shape.time, scratch);
  });
}

// One key/value head of one sequence with all its query heads.
template <typename Compute, typename Real>
void Backward(const AttentionShape& whole, const AttentionInputs<Real>& in, int64_t b, int64_t g,
              const AttentionGradients<Real>& gradients, Scratch<Compute>& scratch) {
  const AttentionShape shape = OfSequence(whole, b);
  const int64_t group = shape.heads / shape.kv_heads;
  const auto rows = [&](const Real* data, int64_t heads, int64_t head, int64_t place) {
    return ForProducts<Compute>(HeadOf(data, shape, heads, b, head), scratch.head(place, shape),
                                shape);
  };
  const HeadRows<Real> dk = HeadOf(gradients.dk, shape, shape.kv_heads, b, g);
  const HeadRows<Real> dv = HeadOf(gradients.dv, shape, shape.kv_heads, b, g);
  HeadGradient<Real, Compute> head;
  head.dk = Sums(dk, scratch.sums(0, shape), shape);
  head.dv = Sums(dv, scratch.sums(1, shape), shape);
  head.k = rows(in.k, shape.kv_heads, g, 0);
  head.v = rows(in.v, shape.kv_heads, g, 1);
  for (int64_t h = g * group; h < (g + 1) * group; ++h) {
    head.q = rows(in.q, shape.heads, h, 2);
    head.dout = rows(in.dout, shape.heads, h, 3);
    head.own_dout = HeadOf(in.dout, shape, shape.heads, b, h);
    head.own_out = HeadOf(in.out, shape, shape.heads, b, h);
    head.dq = HeadOf(gradients.dq, shape, shape.heads, b, h);
    head.log_sum = in.log_sum + (b * shape.heads + h) * shape.time;
    for (int64_t begin = 0; begin < shape.time; begin += kBlockRows<Compute>) {
      BlockBackward(shape, BlockAt<Compute>(shape, begin), head, scratch);
    }
  }
  Finish(head.dk, dk, shape);
  Finish(head.dv, dv, shape);
}

// One thread takes all query heads of a key/value head, so no two threads add to one dk.
template <typename Compute, typename Real>
void Backward(const AttentionShape& shape, const AttentionInputs<Real>& in,
              const AttentionGradients<Real>& gradients) {
  constexpr bool kInPlace = std::is_same_v<Real, float>;
  constexpr int64_t kHeads = kInPlace ? 0 : 4, kSums = kInPlace ? 0 : 2;
  Scratches<Compute> scratches = OneAThread<Compute>(shape, /*blocks=*/2, kHeads, kSums);
  ParallelForUneven(shape.batch * shape.kv_heads, [&](int64_t i) {
    Backward(shape, in, i / shape.kv_heads, i % shape.kv_heads, gradients,
             scratches[omp_get_thread_num()]);
  });
}

}  // namespace

void AttentionForward(const AttentionShape& shape, const float* q, const float* k, const float* v,
                      float* out, float* log_sum) {
  Forward<float>(shape, q, k, v, out, log_sum);
}

void AttentionForward(const AttentionShape& shape, const Bf16* q, const Bf16* k, const Bf16* v,
                      Bf16* out, float* log_sum) {
  MultipliesBf16() ? Forward<Bf16>(shape, q, k, v, out, log_sum)
                   : Forward<float>(shape, q, k, v, out, log_sum);
}

void AttentionBackward(const AttentionShape& shape, const AttentionInputs<float>& in,
                       const AttentionGradients<float>& gradients) {
  Backward<float>(shape, in, gradients);
}

void AttentionBackward(const AttentionShape& shape, const AttentionInputs<Bf16>& in,
                       const AttentionGradients<Bf16>& gradients) {
  MultipliesBf16() ? Backward<Bf16>(shape, in, gradients) : Backward<float>(shape, in, gradients);
}

}  // namespace espalier::cpu
