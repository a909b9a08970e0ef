#include <algorithm>
#include <cmath>

#include "worker/ops/generic_ops.h"
#include "worker/ops/operand_bounds.h"

namespace espalier::generic_ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Query rows whose scores exist at a time, at most.
int64_t MostRows(const Tensor& q) { return q.is_cpu() ? 128 : 1024; }

AttentionPart PartOf(const Tensor& q, const Tensor& k, int64_t window, int64_t most_score_bytes) {
  const int64_t keys = window > 0 ? std::min(k.size(1), window + MostRows(q) - 1) : k.size(1);
  return AttentionPartOf({.batch = q.size(0),
                          .heads = q.size(2),
                          .group = q.size(2) / k.size(2),
                          .keys = keys,
                          .score_bytes = static_cast<int64_t>(torch::elementSize(SumType(q)))},
                         MostRows(q), most_score_bytes);
}

// One block of query rows and the keys it sees.
struct Block {
  int64_t begin, end;          // query rows
  int64_t key_begin, key_end;  // key rows that at least one of them sees
  int64_t rows() const { return end - begin; }
  int64_t keys() const { return key_end - key_begin; }
};

// Heads that share a key/value head lie side by side: q [B, K, G, Tq, D], k and v [B, K, Tk, D].
class Grouped {
 public:
  Grouped(const Tensor& q, const Tensor& k, int64_t window)
      : batch_(q.size(0)),
        time_(q.size(1)),
        kv_(k.size(2)),
        group_(q.size(2) / k.size(2)),
        dim_(q.size(3)),
        offset_(k.size(1) - q.size(1)),
        window_(window),
        scale_(1 / std::sqrt(static_cast<double>(q.size(3)))) {}

  Tensor Queries(const Tensor& q) const {
    return q.view({batch_, time_, kv_, group_, dim_}).permute({0, 2, 3, 1, 4});
  }
  Tensor FromQueries(const Tensor& grouped) const {
    return grouped.permute({0, 3, 1, 2, 4}).reshape({batch_, time_, kv_ * group_, dim_});
  }
  static Tensor Keys(const Tensor& k) { return k.permute({0, 2, 1, 3}).contiguous(); }
  static Tensor FromKeys(const Tensor& k) { return k.permute({0, 2, 1, 3}).contiguous(); }

  Block At(int64_t begin, int64_t rows) const {
    const int64_t end = std::min(time_, begin + rows);
    const int64_t first = window_ > 0 ? std::max<int64_t>(0, offset_ + begin - window_ + 1) : 0;
    return {begin, end, first, offset_ + end};
  }
  // Rows of a block as one matrix per key/value head: [B, K, G * rows, D].
  Tensor Rows(const Tensor& grouped, const Block& block) const {
    return grouped.narrow(3, block.begin, block.rows()).reshape({batch_, kv_, -1, dim_});
  }
  Tensor Ungroup(const Tensor& rows, const Block& block) const {
    return rows.view({batch_, kv_, group_, block.rows(), -1});
  }
  // Scaled and masked scores of a block, [B, K, G * rows, keys], of keys that were widened: scores
  // of 16 bits would be rounded by more than what they decide.
  Tensor Scores(const Tensor& rows, const Tensor& keys, const Block& block) const {
    const Tensor scores = Wide(rows).matmul(keys.transpose(2, 3)).mul_(scale_);
    const auto options = torch::TensorOptions().dtype(torch::kLong).device(rows.device());
    const Tensor position =
        torch::arange(offset_ + block.begin, offset_ + block.end, options).unsqueeze(1);
    const Tensor key = torch::arange(block.key_begin, block.key_end, options).unsqueeze(0);
    Tensor hidden = key > position;
    if (window_ > 0) hidden = hidden.logical_or(key <= position - window_);
    Ungroup(scores, block).masked_fill_(hidden, -INFINITY);
    return scores;
  }
  int64_t time() const { return time_; }
  double scale() const { return scale_; }

 private:
  int64_t batch_, time_, kv_, group_, dim_, offset_, window_;
  double scale_;
};

Tensor KeysOf(const Tensor& all, const Block& block) {
  return all.narrow(2, block.key_begin, block.keys());
}

// A part of the batch, all of whose rows are attended from in blocks of `rows`.
struct Part {
  Part(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, int64_t window, int64_t rows)
      : shape(q_in, k_in, window),
        rows(rows),
        q(shape.Queries(q_in.contiguous())),
        k(Grouped::Keys(k_in)),
        v(Grouped::Keys(v_in)),
        wide_k(Wide(k)) {}

  // Writes out [B, K, G, Tq, D] and log_sum [B, K, G, Tq, 1].
  void Forward(const Tensor& out, const Tensor& log_sum) const {
    for (int64_t begin = 0; begin < shape.time(); begin += rows) {
      const Block block = shape.At(begin, rows);
      const Tensor scores = shape.Scores(shape.Rows(q, block), KeysOf(wide_k, block), block);
      const Tensor lse = scores.logsumexp(-1, /*keepdim=*/true);
      const Tensor p = scores.sub_(lse).exp_().to(q.scalar_type());
      out.narrow(3, begin, block.rows())
          .copy_(shape.Ungroup(BoundedProduct(p, KeysOf(v, block)), block));
      log_sum.narrow(3, begin, block.rows()).copy_(shape.Ungroup(lse, block));
    }
  }

  // With P = exp(S - lse): dV = P' dO, dS = P (dO V' - rowsum(dO O)) scale, dQ = dS K, dK = dS' Q.
  // Writes dq like q; adds to dk and dv, which are like k and v in the type of sums.
  void Backward(const Tensor& out, const Tensor& log_sum, const Tensor& upstream, const Tensor& dq,
                const Tensor& dk, const Tensor& dv) const {
    const Tensor wide_v = Wide(v), dout = shape.Queries(upstream.contiguous());
    const Tensor delta = (Wide(dout) * Wide(out)).sum(-1, /*keepdim=*/true);
    for (int64_t begin = 0; begin < shape.time(); begin += rows) {
      const Block block = shape.At(begin, rows);
      const Tensor qb = shape.Rows(q, block), dob = shape.Rows(dout, block);
      const auto column = [&](const Tensor& all) {
        return all.narrow(3, begin, block.rows()).reshape({q.size(0), q.size(1), -1, 1});
      };
      const Tensor p = shape.Scores(qb, KeysOf(wide_k, block), block).sub_(column(log_sum)).exp_();
      AddTransposed(KeysOf(dv, block), dob, p.to(q.scalar_type()));
      const Tensor ds = Wide(dob)
                            .matmul(KeysOf(wide_v, block).transpose(2, 3))
                            .sub_(column(delta))
                            .mul_(p)
                            .mul_(shape.scale())
                            .to(q.scalar_type());
      dq.narrow(3, begin, block.rows())
          .copy_(shape.Ungroup(BoundedProduct(ds, KeysOf(k, block)), block));
      AddTransposed(KeysOf(dk, block), qb, ds);
    }
  }

  // sum += of_keys' rows, as (rows' of_keys)': the small side is made dense, since transposed views
  // on the left come out wrong on MPS before 2.14 (pytorch#193487).
  static void AddTransposed(const Tensor& sum, const Tensor& rows, const Tensor& of_keys) {
    sum.add_(rows.transpose(2, 3).contiguous().matmul(of_keys).transpose(2, 3));
  }

  Grouped shape;
  int64_t rows;
  Tensor q, k, v, wide_k;
};

template <typename Body>
void ForEachPart(int64_t batch, int64_t step, Body&& body) {
  for (int64_t begin = 0; begin < batch; begin += step) {
    const int64_t size = std::min(step, batch - begin);
    body([&](const Tensor& all) { return all.narrow(0, begin, size); });
  }
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        int64_t window, int64_t most_score_bytes) {
    const AttentionPart cut = PartOf(q, k, window, most_score_bytes);
    const int64_t group = q.size(2) / k.size(2);
    Tensor out = torch::empty({q.size(0), k.size(2), group, q.size(1), q.size(3)}, q.options());
    Tensor log_sum =
        torch::empty({q.size(0), k.size(2), group, q.size(1), 1}, q.options().dtype(SumType(q)));
    ForEachPart(q.size(0), cut.batch, [&](const auto& of) {
      Part(of(q), of(k), of(v), window, cut.rows).Forward(of(out), of(log_sum));
    });
    ctx->save_for_backward({q, k, v, out, log_sum});
    ctx->saved_data["window"] = window;
    ctx->saved_data["most_score_bytes"] = most_score_bytes;
    return Grouped(q, k, window).FromQueries(out);
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &log_sum = saved[4];
    const int64_t window = ctx->saved_data["window"].toInt();
    const AttentionPart cut = PartOf(q, k, window, ctx->saved_data["most_score_bytes"].toInt());
    const Tensor dq = torch::empty(out.sizes(), q.options());
    const Tensor dk = torch::zeros({k.size(0), k.size(2), k.size(1), k.size(3)}, log_sum.options());
    const Tensor dv = torch::zeros_like(dk);
    ForEachPart(q.size(0), cut.batch, [&](const auto& of) {
      Part(of(q), of(k), of(v), window, cut.rows)
          .Backward(of(out), of(log_sum), of(upstream[0]), of(dq), of(dk), of(dv));
    });
    return {Grouped(q, k, window).FromQueries(dq), Grouped::FromKeys(dk).to(k.scalar_type()),
            Grouped::FromKeys(dv).to(v.scalar_type()), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t window,
                       int64_t most_score_bytes) {
  return AttentionFunction::apply(q, k, v, window, most_score_bytes);
}

}  // namespace espalier::generic_ops
