#include "worker/ops/generic_ops.h"

#include "worker/tensor/torch_compat.h"

namespace espalier::generic_ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor Rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

Tensor As(const Tensor& x, const Tensor& like) { return x.to(like.scalar_type()); }

// Adds `gradient` to `leaf.grad()` (fp32 also where the leaf is not), or returns it where there is
// none to add to.
Tensor Deliver(const Tensor& leaf, const Tensor& gradient) {
  if (!leaf.grad().defined()) return As(gradient, leaf);
  leaf.grad().add_(gradient.view_as(leaf));
  return {};
}

// On MPS linear drops its bias where there is one row (pytorch#188438, M1), and goes wrong with it
// above 65,536 (#189495). What is linear there has two dimensions: those of more are slow, or wrong
// in 16 bits (#189847, #180776).
bool BiasIsSafe(const Tensor& rows) { return rows.size(0) > 1 && rows.size(0) <= 65536; }

// x right + bias + residual of a long common dimension; bias and residual may be undefined.
Tensor LongProduct(const Tensor& x, const Tensor& right, const Tensor& bias,
                   const Tensor& residual) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = right.size(1);
  const bool to_residual = residual.defined() && residual.scalar_type() == x.scalar_type();
  const Tensor y = to_residual ? residual.clone(torch::MemoryFormat::Contiguous)
                               : torch::empty(shape, x.options());
  ProductInParts(Rows(x), right, to_residual, y.view({-1, right.size(1)}));
  if (bias.defined()) y.add_(bias);
  return residual.defined() && !to_residual ? residual + y : y;
}

// x [B, T, H, D] turned by its angles, or back.
Tensor Turned(const Tensor& x, const RopeTable& table, double direction) {
  Tensor turned =
      torch::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options().dtype(SumType(x)));
  turned.copy_(x.transpose(1, 2));
  Turn(turned, table, direction);
  return torch::empty(x.sizes(), x.options()).copy_(turned.transpose(1, 2));
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cosine,
                        const Tensor& sine) {
    ctx->save_for_backward({cosine, sine});
    return Turned(x, {{}, {}, cosine, sine}, 1);
  }
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    return {Turned(upstream[0], {{}, {}, saved[0], saved[1]}, -1), Tensor(), Tensor()};
  }
};

// `places` is empty: row `begin` of the table is the first position's.
struct PositionsFunction : torch::autograd::Function<PositionsFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& table,
                        const Tensor& places, int64_t begin) {
    ctx->save_for_backward({table, places});
    ctx->saved_data["begin"] = begin;
    if (places.numel() == 0) return x + table.narrow(0, begin, x.size(1));
    return x + table.index_select(0, places.flatten()).view_as(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &table = saved[0], &places = saved[1], &dy = upstream[0];
    if (!table.requires_grad()) return {dy, Tensor(), Tensor(), Tensor()};
    const bool bound = table.grad().defined();
    const Tensor all =
        bound ? table.grad() : torch::zeros(table.sizes(), dy.options().dtype(SumType(dy)));
    if (places.numel() == 0) {
      all.narrow(0, ctx->saved_data["begin"].toInt(), dy.size(1)).add_(Wide(dy).sum(0));
    } else {
      Tensor(all).index_add_(0, places.flatten(), Wide(Rows(dy)));
    }
    return {dy, bound ? Tensor() : As(all, table), Tensor(), Tensor()};
  }
};

// Adds rows of dy to those of `to`, fp32, that ids name. To few rows by a product on CUDA, where
// additions to one place wait for each other.
void AddRowsTo(const Tensor& to, const Tensor& ids, const Tensor& dy) {
  constexpr int64_t kFewRows = 64, kPack = 8;  // 16 bytes of 16-bit numbers
  const int64_t rows = to.size(0), width = (rows + kPack - 1) / kPack * kPack;
  if (!to.is_cuda() || rows > kFewRows || to.scalar_type() != torch::kFloat) {
    Tensor(to).index_add_(0, ids, Wide(dy));
    return;
  }
  const Tensor numbers = dy.scalar_type() == torch::kHalf ? Wide(dy) : dy;  // fp16 sums overflow
  const Tensor all = torch::arange(width, ids.options());
  const Tensor is_of = ids.unsqueeze(1).eq(all).to(numbers.scalar_type());  // [positions, width]
  const Tensor sums = torch::zeros({width, to.size(1)}, to.options());
  AddProduct(sums, is_of.t(), numbers);
  Tensor(to).add_(sums.narrow(0, 0, rows));
}

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& ids, const Tensor& table) {
    ctx->save_for_backward({ids, table});
    return table.index_select(0, ids.flatten()).view({ids.size(0), ids.size(1), table.size(1)});
  }
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &ids = saved[0], &table = saved[1];
    const Tensor dy = Rows(upstream[0]);
    const bool bound = table.grad().defined();
    const Tensor sum =
        bound ? table.grad() : torch::zeros(table.sizes(), dy.options().dtype(SumType(dy)));
    AddRowsTo(sum, ids.flatten(), dy);
    return {Tensor(), bound ? Tensor() : As(sum, table)};
  }
};

}  // namespace

Tensor Product(const Tensor& x, const ops::Projection& projection, const Tensor& residual) {
  const auto given = [](const Tensor& tensor) { return tensor.defined() && tensor.numel() > 0; };
  const Tensor bias = given(projection.bias) ? projection.bias : Tensor();
  const Tensor right = projection.transposed ? projection.weight : projection.weight.t();
  if (x.size(-1) > kMostReduction) {
    return LongProduct(x, right, bias, given(residual) ? residual : Tensor());
  }
  const auto alone = [&] {
    const Tensor rows = Rows(x);
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = projection.out();
    const bool fused = !projection.transposed && BiasIsSafe(rows);
    if (fused) return torch::linear(rows, projection.weight, bias).view(shape);
    const Tensor y = projection.transposed ? rows.mm(right) : torch::linear(rows, right.t());
    return (bias.defined() ? y.add_(bias) : y).view(shape);
  };
  if (!given(residual)) return alone();
  if (residual.scalar_type() != x.scalar_type()) return residual + alone();
  const Tensor y = torch::addmm(Rows(residual), Rows(x), right);
  return (bias.defined() ? y.add_(bias) : y).view_as(residual);
}

Tensor WeightGradient(const Tensor& weight, const Tensor& dy, const Tensor& x) {
  if (!weight.requires_grad()) return {};
  const bool in_place = weight.grad().defined() && weight.grad().scalar_type() == SumType(x);
  const Tensor sum =
      in_place ? weight.grad() : torch::zeros(weight.sizes(), x.options().dtype(SumType(x)));
  AddOuterProducts(sum, Rows(dy), Rows(x));
  return in_place ? Tensor() : Deliver(weight, sum);
}

Tensor Rope(const Tensor& x, const RopeTable& table) {
  return RopeFunction::apply(x, table.whole_cosine, table.signed_sine);
}

void Turn(const Tensor& x_in, const RopeTable& table, double direction) {
  const int64_t time = x_in.size(-2), dim = x_in.size(-1), half = dim / 2;
  const int64_t sequences = table.whole_cosine.size(0) / time;
  const bool own = sequences > 1;
  const Tensor x = own ? x_in.view({sequences, -1, time, dim}) : x_in;
  const auto angles = [&](const Tensor& all) {
    return As(own ? all.view({sequences, 1, time, dim}) : all, x);
  };
  const Tensor swapped = torch::cat({x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
  x.mul_(angles(table.whole_cosine)).addcmul_(swapped, angles(table.signed_sine), direction);
}

Tensor SwiGlu(const Tensor& gate, const Tensor& up) {
  return As(torch::silu(Wide(gate)).mul_(up), gate);
}

std::vector<Tensor> SwiGluBackward(const Tensor& gate, const Tensor& up, const Tensor& dy) {
  const Tensor wide = Wide(gate), upstream = Wide(dy);
  const Tensor dgate = at::silu_backward(upstream * up, wide),
               dup = torch::silu(wide).mul_(upstream);
  if (2 * static_cast<int64_t>(dup.nbytes()) > kMostOperandBytes) {
    return {As(dgate, gate), As(dup, up)};
  }
  const int64_t columns = gate.size(-1);
  return PartsOf(As(torch::cat({dup, dgate}, -1), gate), {columns, columns});
}

Tensor Gelu(const Tensor& x) { return As(at::gelu(Wide(x), "tanh"), x); }

Tensor GeluBackward(const Tensor& x, const Tensor& dy) {
  return As(at::gelu_backward(Wide(dy), Wide(x), "tanh"), x);
}

Tensor AddPositions(const Tensor& x, const Tensor& table, int64_t begin) {
  const Tensor none = torch::empty({0}, x.options().dtype(torch::kLong));
  return PositionsFunction::apply(x, table, none, begin);
}

Tensor AddPositions(const Tensor& x, const Tensor& table, const Tensor& places) {
  return PositionsFunction::apply(x, table, places, 0);
}

Tensor Embedding(const Tensor& ids, const Tensor& table) {
  return EmbeddingFunction::apply(ids, table);
}

}  // namespace espalier::generic_ops
