// What the operations of the decoder take and give: shapes as ops.h names them; and neighbours in
// memory seen as one tensor, so that one product does the work of several. Used by worker/ops,
// worker/model and worker/task/token_batch.h. Plain data; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/ops/dropout.h"
#include "worker/ops/norm_constants.h"
#include "worker/tensor/torch.h"

namespace espalier {

// Rotation angles of every position, fp32: cosine and sine, each [positions, D / 2]; and the two
// for whole heads, [positions, D], as operators on whole tensors want them: the cosine twice, and
// the sine with its sign, minus first. Those of sequences that have positions of their own follow
// each other: [B T, ..].
struct RopeTable {
  torch::Tensor cosine, sine;
  torch::Tensor whole_cosine, signed_sine;

  RopeTable Of(int64_t begin, int64_t positions) const {
    const auto part = [&](const torch::Tensor& all) { return all.narrow(0, begin, positions); };
    return {part(cosine), part(sine), part(whole_cosine), part(signed_sine)};
  }
  // Those of positions [n] int64, each in its place.
  RopeTable At(const torch::Tensor& positions) const {
    const auto rows = [&](const torch::Tensor& all) { return all.index_select(0, positions); };
    return {rows(cosine), rows(sine), rows(whole_cosine), rows(signed_sine)};
  }
};

// Rows of a batch that examples share: none sees another, and the positions of each begin at 0.
struct SharedRows {
  // [B, T] int64: the column in which the example at each column begins; undefined: a row is one
  // sequence.
  torch::Tensor begins;
  int64_t longest = 0;  // columns of the longest example

  // Where each column is in its example, [B, T] int64.
  torch::Tensor Positions() const {
    return torch::arange(begins.size(1), begins.options()) - begins;
  }
};

namespace ops {

// What is added to a linear map: scale * b a dropout(x) (Hu et al. 2021), a [rank, in] and
// b [out, rank].
struct Adapter {
  torch::Tensor a, b;  // undefined: none
  double scale = 1;
  DropoutKeys dropout = {};  // of the pass
  int64_t site = 0;
};

// A learned linear map: weight [out, in] and bias [out], or undefined: none. Either may be frozen
// (it requires no gradient, and none is computed); the gradients of what is trained are added in
// place to its grad() when that is defined.
struct Projection {
  torch::Tensor weight, bias;
  bool transposed = false;  // weight is [in, out], as GPT-2 has it
  Adapter adapter = {};

  int64_t out() const { return weight.size(transposed ? 1 : 0); }
};

// What normalises rows [.., C], by weight and bias [C], which are fp32 where x is not fp64. With a
// bias: (x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016, eq. 4). Without:
// x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, eq. 4). An undefined weight: nothing
// is normalised.
struct Norm {
  torch::Tensor weight, bias;
  double eps = 0;
  c10::intrusive_ptr<NormConstants> constants = {};  // null: made anew each time
};

// What becomes of the residual stream where a block begins.
struct Branches {
  torch::Tensor residual;  // x as it was, for what is added to it: gradients of both meet for free
  std::vector<torch::Tensor> products;
};

// What attention takes.
struct Heads {
  torch::Tensor q, k, v;  // [B, T, H, D], [B, T, K, D], [B, T, K, D]
};

}  // namespace ops

// What a norm gives, and of each row what its gradients need: for norms.cc and generic_norms.cc to
// know.
struct NormalRows {
  torch::Tensor y, statistics;
  torch::Tensor kept = {};  // what the gradients take in place of x; undefined: x
};

// Of x, and of weight and bias: undefined when they were added to their grad() or none is wanted.
struct NormGradients {
  torch::Tensor x, weight, bias;
};

// Matrices [n_i, k] that follow each other: [sum of n_i, k]. Undefined when they do not, or are
// less than two.
torch::Tensor JoinedRows(const std::vector<torch::Tensor>& matrices);
// Tensors [..., n_i] that are parts of the rows of one, of which the first comes last there: [rows,
// sum of n_i]. Undefined when they are not, or less than two.
torch::Tensor JoinedColumns(const std::vector<torch::Tensor>& parts);

// How tensors [..., n_i] lie in the rows of one: not at all; the first last, as weights lie whose
// products are one; or in their order, as the outputs of one wide weight do.
enum class ColumnOrder { kApart, kFirstLast, kFirstFirst };
ColumnOrder OrderOfColumns(const std::vector<torch::Tensor>& parts);

// The parts [..., n_i] of the rows of x [..., sum of n_i], which lie there in `order`, not kApart.
std::vector<torch::Tensor> PartsOf(const torch::Tensor& x, const std::vector<int64_t>& columns,
                                   ColumnOrder order = ColumnOrder::kFirstLast);

}  // namespace espalier
