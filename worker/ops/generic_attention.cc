#include <algorithm>
#include <cmath>

#include "worker/ops/generic_ops.h"
#include "worker/ops/operand_bounds.h"

namespace espalier::generic_ops {
namespace {

using ops::Heads;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Masks = c10::intrusive_ptr<CausalMasks>;

// Query rows whose scores exist at a time, at most.
int64_t MostRows(const Tensor& q) { return q.is_cpu() ? 128 : 1024; }

// Sequences that are attended at a time, in which queries may be the last ones of the positions.
struct Sizes {
  int64_t batch, time, keys, kv, group, dim;

  static Sizes Of(const Heads& x) {
    return {x.q.size(0), x.q.size(1), x.k.size(1), x.k.size(2), x.q.size(2) / x.k.size(2),
            x.q.size(3)};
  }
  int64_t matrices() const { return batch * kv; }
  int64_t elements() const { return matrices() * dim * (2 * keys + group * time); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(dim)); }
  // Whether what each query takes of each key is kept for the backward pass instead of being made
  // again, in three launches: where it is no more than four times as much as the queries.
  bool KeepsProbabilities(torch::ScalarType type, int64_t rows) const {
    return type != torch::kHalf && type != torch::kBFloat16 && time <= rows && keys <= 4 * dim;
  }
};

AttentionPart PartOf(const Heads& x, int64_t window, int64_t most_score_bytes) {
  const Sizes sizes = Sizes::Of(x);
  const auto bytes = static_cast<int64_t>(torch::elementSize(SumType(x.q)));
  const int64_t most = MostRows(x.q);
  AttentionPart part =
      AttentionPartOf({.batch = sizes.batch,
                       .heads = x.q.size(2),
                       .group = sizes.group,
                       .keys = window > 0 ? std::min(sizes.keys, window + most - 1) : sizes.keys,
                       .score_bytes = bytes},
                      most, most_score_bytes);
  part.batch = RowsWithin(sizes.elements() / sizes.batch * bytes, part.batch);
  return part;
}

// Some queries in a row and the keys that at least one of them sees.
struct Block {
  int64_t begin, rows;      // of queries
  int64_t key_begin, keys;  // the queries are the last of these positions, unless all see all
};

// q, k and v with the heads first, behind one another in one buffer, so that what is done with two
// of them is one launch: v and k [B, K, Tk, D], and q [B, K, G, Tq, D] with the G heads that share
// a key/value head side by side.
class HeadMajor {
 public:
  HeadMajor(const Tensor& flat, const Sizes& sizes) : flat_(flat), sizes_(sizes) {}

  const Tensor& flat() const { return flat_; }
  Tensor values() const { return kv().select(0, 0); }
  Tensor keys() const { return kv().select(0, 1); }
  // [2, B K, Tk, D]: values, keys.
  Tensor kv() const {
    return flat_.narrow(0, 0, 2 * one()).view({2, sizes_.matrices(), sizes_.keys, sizes_.dim});
  }
  // [B K, G, Tq, D].
  Tensor queries() const {
    return flat_.narrow(0, 2 * one(), flat_.numel() - 2 * one())
        .view({sizes_.matrices(), sizes_.group, sizes_.time, sizes_.dim});
  }
  // Keys and queries of the same positions: [.., T, D].
  Tensor turning() const {
    return flat_.narrow(0, one(), flat_.numel() - one()).view({-1, sizes_.time, sizes_.dim});
  }

  // Calls move(part of rows, part of this) for parts that make up x, whose tensors are [B, T,
  // heads, D]: few, where the three are parts of the same rows.
  template <typename Move>
  void ForEachPart(const Heads& x, Move&& move) const {
    const auto& [batch, time, keys, kv, group, dim] = sizes_;
    const Tensor all = JoinedColumns({x.q.flatten(2), x.k.flatten(2), x.v.flatten(2)});
    const auto part = [&](int64_t begin, int64_t count) {
      return flat_.narrow(0, begin * one(), count * one())
          .view({count, sizes_.batch, sizes_.kv, sizes_.keys, sizes_.dim});
    };
    if (all.defined()) {
      const int64_t alike = group == 1 ? 3 : 2;  // parts of as many heads
      move(all.view({batch, time, 2 + group, kv * dim})
               .narrow(2, 0, alike)
               .view({batch, time, alike, kv, dim})
               .permute({2, 0, 3, 1, 4}),
           part(0, alike));
      if (group == 1) return;
    } else {
      move(x.v.permute({0, 2, 1, 3}).unsqueeze(0), part(0, 1));
      move(x.k.permute({0, 2, 1, 3}).unsqueeze(0), part(1, 1));
    }
    move(RowsOf(x.q), queries().view({batch, kv, group, time, dim}));
  }

  // x [B, Tq, H, D] seen as [B, K, G, Tq, D].
  Tensor RowsOf(const Tensor& x) const {
    const auto& [batch, time, keys, kv, group, dim] = sizes_;
    return x.view({batch, time, kv, group, dim}).permute({0, 2, 3, 1, 4});
  }

 private:
  int64_t one() const { return sizes_.matrices() * sizes_.keys * sizes_.dim; }

  Tensor flat_;
  Sizes sizes_;
};

// out = a b [N, R, M], which is dense or, where that would be wrong or too long, is copied to.
void ProductInto(const Tensor& out, const Tensor& a, const Tensor& b) {
  if (out.is_contiguous() && a.size(2) <= kMostReduction) {
    Tensor to = out.view({a.size(0), a.size(1), b.size(2)});
    torch::bmm_out(to, a, b);
  } else {
    out.copy_(BoundedProduct(a, b).view(out.sizes()));
  }
}

// A part of the batch, attended from in blocks of rows. All is computed in the type of sums: scores
// of 16 bits would be rounded by more than what they decide.
class Part {
 public:
  // Its first sequence is `sequence`.
  Part(const Sizes& sizes, int64_t sequence, int64_t window, int64_t rows, Masks masks)
      : sizes_(sizes),
        sequence_(sequence),
        window_(window),
        rows_(rows),
        masks_(std::move(masks)) {}

  // The three as they are attended with, turned where there is a table.
  Tensor Gathered(const Heads& x, const RopeTable& table) const {
    const HeadMajor heads(torch::empty({sizes_.elements()}, x.q.options().dtype(SumType(x.q))),
                          sizes_);
    heads.ForEachPart(x, [](const Tensor& rows, const Tensor& part) { part.copy_(rows); });
    TurnHeads(heads, table, 1);
    return heads.flat();
  }

  // Writes what is mixed to out [B, Tq, H, D]. Returns the probabilities of the last block.
  Tensor Forward(const Tensor& flat, const Tensor& out) const {
    const HeadMajor heads(flat, sizes_);
    const Tensor to = heads.RowsOf(out);
    Tensor p;
    for (const Block& block : Blocks()) {
      p = Probabilities(QueriesOf(heads, block), Of(heads.keys(), block), block);
      const Tensor mixed = BoundedProduct(p, Of(heads.values(), block));
      const Tensor place = to.narrow(3, block.begin, block.rows);
      place.copy_(mixed.view(place.sizes()));
    }
    return p;
  }

  // With P = softmax(S) and S = scale Q K': dV = P' dO, dS = P (dO V' - rowsum(dO O)),
  // dQ = scale dS K, dK = scale dS' Q. Writes the gradients to `to`. `kept`: P, where it was kept.
  void Backward(const Tensor& flat, const Tensor& kept, const RopeTable& table,
                const Tensor& upstream, const Heads& to) const {
    const HeadMajor heads(flat, sizes_);
    const std::vector<Block> blocks = Blocks();
    const bool whole = blocks.size() == 1 && blocks[0].keys == sizes_.keys;
    const HeadMajor gradients(whole ? torch::empty_like(flat) : torch::zeros_like(flat), sizes_);
    const Tensor dout = heads.RowsOf(Wide(upstream));
    for (const Block& block : blocks) {
      const Tensor keys = Of(heads.keys(), block), values = Of(heads.values(), block);
      const Tensor q = QueriesOf(heads, block),
                   dout_block = dout.narrow(3, block.begin, block.rows);
      const Tensor p = kept.defined() ? kept : Probabilities(q, keys, block);
      // Of values and keys, transposed: the small left side is made dense, since transposed views
      // come out wrong on MPS before 2.14 (pytorch#193487).
      const Tensor both = torch::empty({2, q.size(0), sizes_.dim, block.keys}, flat.options());
      const Tensor columns = Dense(dout_block.permute({0, 1, 4, 2, 3}));
      ProductInto(both.select(0, 0), columns.flatten(3, 4).flatten(0, 1), p);
      const Tensor scaled = Scaled(dout_block).flatten(2, 3).flatten(0, 1);
      const Tensor ds =
          at::_softmax_backward_data(scaled.bmm(values.transpose(1, 2)), p, -1, p.scalar_type());
      ProductInto(both.select(0, 1), q.transpose(1, 2).contiguous(), ds);
      const Tensor dkv = gradients.kv().narrow(2, block.key_begin, block.keys);
      whole ? dkv.copy_(both.transpose(2, 3)) : dkv.add_(both.transpose(2, 3));
      ProductInto(gradients.queries().narrow(2, block.begin, block.rows), ds, keys);
    }
    TurnHeads(gradients, table, -1);
    gradients.ForEachPart(to, [](const Tensor& rows, const Tensor& part) { rows.copy_(part); });
  }

 private:
  // Where every sequence has angles of its own, keys and queries are turned one by one, since those
  // of a sequence do not follow each other.
  void TurnHeads(const HeadMajor& heads, const RopeTable& table, double direction) const {
    if (table.whole_cosine.numel() == 0) return;
    if (table.whole_cosine.size(0) == sizes_.time) return Turn(heads.turning(), table, direction);
    const auto own = [&](const Tensor& all) {
      return all.narrow(0, sequence_ * sizes_.time, sizes_.batch * sizes_.time);
    };
    const RopeTable angles{{}, {}, own(table.whole_cosine), own(table.signed_sine)};
    Turn(heads.keys(), angles, direction);
    Turn(heads.queries().flatten(0, 1), angles, direction);
  }

  std::vector<Block> Blocks() const {
    const int64_t offset = sizes_.keys - sizes_.time;
    std::vector<Block> blocks;
    for (int64_t begin = 0; begin < sizes_.time; begin += rows_) {
      const int64_t rows = std::min(rows_, sizes_.time - begin);
      const int64_t end = window_ == kBothWays ? sizes_.keys : offset + begin + rows;
      const int64_t first = window_ > 0 ? std::max<int64_t>(0, end - rows - window_ + 1) : 0;
      blocks.push_back({begin, rows, first, end - first});
    }
    return blocks;
  }

  static Tensor Of(const Tensor& keys, const Block& block) {
    return keys.narrow(1, block.key_begin, block.keys);
  }
  // [B K, G rows, D].
  static Tensor QueriesOf(const HeadMajor& heads, const Block& block) {
    return heads.queries().narrow(2, block.begin, block.rows).flatten(1, 2).contiguous();
  }
  static Tensor Dense(const Tensor& x) { return torch::empty(x.sizes(), x.options()).copy_(x); }
  // Dense as well.
  Tensor Scaled(const Tensor& x) const {
    Tensor scaled = torch::empty(x.sizes(), x.options());
    torch::mul_out(scaled, x, torch::scalar_tensor(sizes_.scale(), x.scalar_type()));
    return scaled;
  }

  // [B K, G rows, keys]: what each query takes of each key.
  Tensor Probabilities(const Tensor& queries, const Tensor& keys, const Block& block) const {
    const Tensor scores = queries.bmm(keys.transpose(1, 2));
    const CausalMasks::Shape shape{block.rows, block.keys, window_};
    if (masks_->begins().defined()) {
      const CausalMasks::Place place{sequence_, sizes_.batch, block.key_begin};
      Tensor of_sequence = scores.view({sizes_.batch, -1, block.rows, block.keys});
      torch::add_out(of_sequence, masks_->Of(shape, place, scores.options()), of_sequence,
                     sizes_.scale());
    } else if (block.rows == 1 || window_ == kBothWays) {  // see all
      scores.mul_(sizes_.scale());
    } else {
      Tensor of_head = scores.view({-1, block.rows, block.keys});
      torch::add_out(of_head, masks_->Of(shape, scores.options()), of_head, sizes_.scale());
    }
    return scores.softmax(-1);
  }

  Sizes sizes_;
  int64_t sequence_, window_, rows_;
  Masks masks_;
};

Heads PartsOfBatch(const Heads& x, int64_t begin, int64_t size) {
  return {x.q.narrow(0, begin, size), x.k.narrow(0, begin, size), x.v.narrow(0, begin, size)};
}

Heads EmptyHeads(const Sizes& sizes, const torch::TensorOptions& options) {
  const int64_t heads = sizes.kv * sizes.group;
  const auto shape = [&](int64_t time, int64_t count) {
    return std::vector<int64_t>{sizes.batch, time, count, sizes.dim};
  };
  const auto own = [&](int64_t time, int64_t count) {
    return torch::empty(shape(time, count), options);
  };
  // Parts of the same rows, where that is within bounds: what makes their gradients is one product.
  const int64_t columns = (heads + 2 * sizes.kv) * sizes.dim;
  const int64_t bytes = sizes.batch * sizes.time * columns * options.dtype().itemsize();
  if (sizes.time != sizes.keys || bytes > kMostOperandBytes) {
    return {own(sizes.time, heads), own(sizes.keys, sizes.kv), own(sizes.keys, sizes.kv)};
  }
  const std::vector<Tensor> parts =
      PartsOf(torch::empty({sizes.batch, sizes.time, columns}, options),
              {heads * sizes.dim, sizes.kv * sizes.dim, sizes.kv * sizes.dim});
  return {parts[0].view(shape(sizes.time, heads)), parts[1].view(shape(sizes.time, sizes.kv)),
          parts[2].view(shape(sizes.time, sizes.kv))};
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& cosine, const Tensor& sine, int64_t window,
                        const Masks& masks, AttentionPart cut) {
    const Heads x{q, k, v};
    const Tensor out = torch::empty(q.sizes(), q.options());
    const bool keeps = Sizes::Of(x).KeepsProbabilities(q.scalar_type(), cut.rows);
    variable_list saved = {cosine, sine};
    for (int64_t begin = 0; begin < q.size(0); begin += cut.batch) {
      const int64_t size = std::min(cut.batch, q.size(0) - begin);
      const Heads some = PartsOfBatch(x, begin, size);
      const Part part(Sizes::Of(some), begin, window, cut.rows, masks);
      const Tensor flat = part.Gathered(some, {{}, {}, cosine, sine});
      const Tensor probabilities = part.Forward(flat, out.narrow(0, begin, size));
      saved.push_back(flat.to(q.scalar_type()));
      saved.push_back(keeps ? probabilities : Tensor());
    }
    ctx->save_for_backward(saved);
    ctx->saved_data["keys"] = c10::IValue(k.sizes());
    ctx->saved_data["window"] = window;
    ctx->saved_data["masks"] = c10::IValue::make_capsule(masks);
    ctx->saved_data["batch"] = cut.batch;
    ctx->saved_data["rows"] = cut.rows;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const RopeTable table{{}, {}, saved[0], saved[1]};
    const std::vector<int64_t> keys = ctx->saved_data["keys"].toIntVector();
    const auto masks =
        c10::static_intrusive_pointer_cast<CausalMasks>(ctx->saved_data["masks"].toCapsule());
    const Tensor dout = upstream[0].contiguous();
    Sizes sizes{dout.size(0), dout.size(1), keys[1], keys[2], dout.size(2) / keys[2], dout.size(3)};
    const Heads to = EmptyHeads(sizes, dout.options());
    const int64_t step = ctx->saved_data["batch"].toInt(), whole = sizes.batch;
    for (int64_t begin = 0; begin < whole; begin += step) {
      sizes.batch = std::min(step, whole - begin);
      const auto at = static_cast<size_t>(2 + 2 * (begin / step));
      Part(sizes, begin, ctx->saved_data["window"].toInt(), ctx->saved_data["rows"].toInt(), masks)
          .Backward(Wide(saved[at]), saved[at + 1], table, dout.narrow(0, begin, sizes.batch),
                    PartsOfBatch(to, begin, sizes.batch));
    }
    return {to.q, to.k, to.v, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor Attend(const Heads& x, const Tensor& cosine, const Tensor& sine, int64_t window,
              const Masks& masks, int64_t most_score_bytes) {
  return AttentionFunction::apply(x.q, x.k, x.v, cosine, sine, window, masks,
                                  PartOf(x, window, most_score_bytes));
}

}  // namespace

Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t window,
                       const Masks& masks, int64_t most_score_bytes) {
  const Tensor none = torch::empty({0}, q.options());
  return Attend({q, k, v}, none, none, window, masks, most_score_bytes);
}

Tensor RotaryAttention(const Heads& x, const RopeTable& table, int64_t window, const Masks& masks,
                       int64_t most_score_bytes) {
  return Attend(x, table.whole_cosine, table.signed_sine, window, masks, most_score_bytes);
}

}  // namespace espalier::generic_ops
