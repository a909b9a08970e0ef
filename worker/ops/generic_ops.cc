#include "worker/ops/generic_ops.h"

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

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double eps,
                        torch::ScalarType type) {
    const Normal normal = Normalize(x, weight, eps, type);
    ctx->save_for_backward({x, weight, normal.statistics});
    return normal.y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const auto [dx, dweight] = NormalizeBackward(saved[0], saved[1], saved[2], upstream[0], {});
    return {dx, dweight, Tensor(), Tensor()};
  }
};

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

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& ids, const Tensor& table) {
    ctx->save_for_backward({ids, table});
    return table.index_select(0, ids.flatten()).view({ids.size(0), ids.size(1), table.size(1)});
  }
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &ids = saved[0], &table = saved[1];
    const Tensor dy = Wide(Rows(upstream[0]));
    if (!table.grad().defined()) {
      return {
          Tensor(),
          As(torch::zeros(table.sizes(), dy.options()).index_add_(0, ids.flatten(), dy), table)};
    }
    table.grad().index_add_(0, ids.flatten(), dy);
    return {Tensor(), Tensor()};
  }
};

}  // namespace

Tensor Product(const Tensor& x, const ops::Projection& projection, const Tensor& residual) {
  const auto given = [](const Tensor& tensor) { return tensor.defined() && tensor.numel() > 0; };
  const Tensor bias = given(projection.bias) ? projection.bias : Tensor();
  if (!given(residual)) return torch::linear(x, projection.weight, bias);
  if (residual.scalar_type() != x.scalar_type()) {
    return residual + torch::linear(x, projection.weight, bias);
  }
  const Tensor y = torch::addmm(Rows(residual), Rows(x), projection.weight.t());
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

Normal Normalize(const Tensor& x, const Tensor& weight, double eps, torch::ScalarType type) {
  const Tensor rows = Wide(Rows(x)), statistics = rows.new_empty({2, rows.size(0)});
  Tensor mean_square = statistics[0], inverse = statistics[1];
  at::mean_out(mean_square, rows.square(), 1);
  at::rsqrt_out(inverse, mean_square.add_(eps));
  return {(rows * inverse.unsqueeze(1)).mul_(weight).to(type).view_as(x), statistics};
}

// With m = mean(x^2) + eps and r = 1 / sqrt(m): dx = r (w dy - x mean(x w dy) / m), dw = sum over
// rows of r x dy.
std::pair<Tensor, Tensor> NormalizeBackward(const Tensor& x, const Tensor& weight,
                                            const Tensor& statistics, const Tensor& dy,
                                            const Tensor& other) {
  const Tensor rows = Wide(Rows(x)), dy_rows = Rows(dy), product = rows * dy_rows;
  const Tensor mean_square = statistics[0], inverse = statistics[1];
  Tensor dweight;
  if (weight.requires_grad()) {
    const bool bound = weight.grad().defined();
    const Tensor sum = bound ? weight.grad() : torch::zeros_like(weight);
    AddWeightedRows(sum, inverse, product);
    if (!bound) dweight = sum;
  }
  const Tensor mean = product.mv(As(weight, product)).div_(mean_square).unsqueeze(1);
  const Tensor inner =
      (dy_rows * weight).addcmul_(rows, mean, -1 / static_cast<double>(x.size(-1)));
  Tensor dx;
  if (other.defined() && other.scalar_type() == inner.scalar_type()) {
    dx = torch::addcmul(Rows(other), inner, inverse.unsqueeze(1));
  } else {
    dx = As(inner * inverse.unsqueeze(1), x);
    if (other.defined()) dx.add_(Rows(other));
  }
  return {dx.view_as(x), dweight};
}

Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps, torch::ScalarType type) {
  return RmsNormFunction::apply(x, weight, eps, type);
}

Tensor Rope(const Tensor& x, const RopeTable& table) {
  return RopeFunction::apply(x, table.whole_cosine, table.signed_sine);
}

void Turn(const Tensor& x, const RopeTable& table, double direction) {
  const int64_t half = x.size(-1) / 2;
  const Tensor swapped = torch::cat({x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
  x.mul_(As(table.whole_cosine, x)).addcmul_(swapped, As(table.signed_sine, x), direction);
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

Tensor Embedding(const Tensor& ids, const Tensor& table) {
  return EmbeddingFunction::apply(ids, table);
}

}  // namespace espalier::generic_ops
