#include "worker/ops/kept_attention.h"

#include <algorithm>
#include <cmath>

#include "worker/kernels/rows_apart.h"
#include "worker/ops/fused_tensor.h"
#include "worker/ops/generic_ops.h"
#include "worker/ops/operand_bounds.h"

namespace espalier::ops {
namespace {

using torch::Tensor;

Tensor OnTheCpu(const Tensor& q_in, const Tensor& keys, const Tensor& values,
                const KeptLengths& lengths, int64_t window) {
  const Tensor q = q_in.contiguous();
  Tensor out = torch::empty_like(q);
  const cpu::RowAttentionShape shape{.rows = q.size(0),
                                     .heads = q.size(1),
                                     .kv_heads = keys.size(1),
                                     .head_dim = q.size(2),
                                     .capacity = keys.size(2),
                                     .window = window};
  fused_ops::WithReal(q, [&](auto zero) {
    using Real = decltype(zero);
    cpu::RowAttention(shape, fused_ops::Data<Real>(q), fused_ops::Data<Real>(keys),
                      fused_ops::Data<Real>(values), lengths.lengths().data(),
                      fused_ops::Mutable<Real>(out));
  });
  return out;
}

// Positions that the mask hides are cheaper than a shape of its own for each new one.
constexpr int64_t kKeysOfAShape = 64;

// The first positions of the first rows, heads apart: [B K, keys, D].
Tensor Held(const Tensor& kept, int64_t rows, int64_t keys) {
  return kept.narrow(0, 0, rows).flatten(0, 1).narrow(1, 0, keys);
}

// What is copied to be computed with more widely, at a time.
constexpr int64_t kWideBytes = int64_t{256} << 20;

// queries [N, G, D] times keys [N, keys, D] in the type of sums: models with large keys (Qwen 2)
// have products that 16 bits round by more than what they decide, and fp16 does not hold.
Tensor Scores(const Tensor& queries, const Tensor& keys) {
  const torch::ScalarType type = generic_ops::SumType(keys);
  if (keys.scalar_type() == type) return queries.bmm(keys.transpose(1, 2));
  const Tensor scores =
      torch::empty({queries.size(0), queries.size(1), keys.size(1)}, queries.options().dtype(type));
  const int64_t all = queries.size(0), bytes = keys.size(1) * keys.size(2) * scores.itemsize();
  const int64_t part = RowsWithin(bytes, all, kWideBytes);
  for (int64_t begin = 0; begin < all; begin += part) {
    const int64_t count = std::min(part, all - begin);
    Tensor to = scores.narrow(0, begin, count);
    torch::bmm_out(to, generic_ops::Wide(queries.narrow(0, begin, count)),
                   generic_ops::Wide(keys.narrow(0, begin, count)).transpose(1, 2));
  }
  return scores;
}

}  // namespace

KeptLengths::KeptLengths(std::vector<int64_t> lengths, torch::Tensor on_device)
    : lengths_(std::move(lengths)),
      longest_(lengths_.empty() ? 0 : *std::max_element(lengths_.begin(), lengths_.end())),
      on_device_(std::move(on_device)) {}

Tensor KeptLengths::Mask(int64_t window, int64_t keys) const {
  for (const auto& [known, mask] : masks_) {
    if (known == window) return mask;
  }
  const Tensor key = torch::arange(keys, on_device_.options()).unsqueeze(0);
  const Tensor length = on_device_.unsqueeze(1);
  Tensor hidden = key >= length;
  if (window > 0) hidden = hidden.logical_or(key < length - window);
  const Tensor mask = torch::zeros(hidden.sizes(), on_device_.options().dtype(torch::kFloat))
                          .masked_fill_(hidden, -INFINITY)
                          .unsqueeze(1);
  masks_.emplace_back(window, mask);
  return mask;
}

Tensor KeptAttention(const Tensor& q, const Tensor& keys, const Tensor& values,
                     const KeptLengths& lengths, int64_t window) {
  if (q.is_cpu() && fused_ops::Apply(q)) return OnTheCpu(q, keys, values, lengths, window);
  const int64_t rows = q.size(0), heads = q.size(1), kv = keys.size(1), dim = q.size(2);
  const int64_t count =
      std::min(SharedSize(lengths.longest(), kKeysOfAShape, q.device()), keys.size(2));
  const Tensor queries = q.contiguous().view({rows * kv, heads / kv, dim});
  const Tensor scores = Scores(queries, Held(keys, rows, count));
  Tensor of_row = scores.view({rows, heads, count});
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  torch::add_out(of_row, lengths.Mask(window, count).to(scores.scalar_type()), of_row, scale);
  const Tensor taken = scores.softmax(-1).to(q.scalar_type());
  return BoundedProduct(taken, Held(values, rows, count)).view(q.sizes());
}

}  // namespace espalier::ops
