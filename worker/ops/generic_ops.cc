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

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& bias) {
    ctx->save_for_backward({x, weight, bias});
    return torch::linear(x, weight, bias.numel() > 0 ? bias : Tensor());
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor x = Rows(saved[0]), &weight = saved[1], &bias = saved[2];
    const Tensor dy = Rows(upstream[0]);
    Tensor dx, dweight, dbias;
    if (ctx->needs_input_grad(0)) dx = dy.mm(weight).view_as(saved[0]);
    if (weight.requires_grad()) {
      const bool in_place = weight.grad().defined() && weight.grad().scalar_type() == SumType(x);
      const Tensor sum =
          in_place ? weight.grad() : torch::zeros(weight.sizes(), x.options().dtype(SumType(x)));
      AddOuterProducts(sum, dy, x);
      if (!in_place) dweight = Deliver(weight, sum);
    }
    if (bias.requires_grad()) dbias = Deliver(bias, dy.sum({0}, /*keepdim=*/false, SumType(dy)));
    return {dx, dweight, dbias};
  }
};

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double eps,
                        torch::ScalarType type) {
    const Tensor wide = Wide(x);
    const Tensor inverse = torch::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps);
    ctx->save_for_backward({x, weight, inverse});
    return (wide * inverse * weight).to(type);
  }

  // With n = x r: dx = r (w dy - n mean(n w dy)), dw = sum over rows of n dy.
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &inverse = saved[2], dy = Wide(upstream[0]);
    const Tensor normal = Wide(x) * inverse;
    Tensor dx, dweight;
    if (ctx->needs_input_grad(0)) {
      const Tensor g = dy * weight;
      dx = As(inverse * (g - normal * (normal * g).mean(-1, /*keepdim=*/true)), x);
    }
    if (weight.requires_grad()) dweight = Deliver(weight, Rows(normal * dy).sum(0));
    return {dx, dweight, Tensor(), Tensor()};
  }
};

Tensor Rotated(const Tensor& narrow, const Tensor& cosine, const Tensor& sine) {
  const Tensor x = Wide(narrow);
  const int64_t half = x.size(3) / 2;
  const auto angles = [&](const Tensor& table) {
    return table.narrow(0, 0, x.size(1)).to(x.scalar_type()).view({1, x.size(1), 1, half});
  };
  const Tensor c = angles(cosine), s = angles(sine);
  const Tensor first = x.narrow(3, 0, half), second = x.narrow(3, half, half);
  return As(torch::cat({first * c - second * s, second * c + first * s}, 3), narrow);
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cosine,
                        const Tensor& sine) {
    ctx->save_for_backward({cosine, sine});
    return Rotated(x, cosine, sine);
  }
  // A rotation's transpose is the rotation by the opposite angle.
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    return {Rotated(upstream[0], saved[0], -saved[1]), Tensor(), Tensor()};
  }
};

struct SwiGluFunction : torch::autograd::Function<SwiGluFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up) {
    ctx->save_for_backward({gate, up});
    return As(torch::silu(Wide(gate)) * up, gate);
  }
  // d silu(g)/dg = s (1 + g (1 - s)) with s = sigmoid(g).
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor gate = Wide(saved[0]), &up = saved[1], dy = Wide(upstream[0]);
    const Tensor s = torch::sigmoid(gate);
    return {As(dy * up * s * (1 + gate * (1 - s)), up), As(dy * gate * s, up)};
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

Tensor Linear(const Tensor& x, const ops::Projection& projection) {
  // autograd functions take no undefined tensor.
  return LinearFunction::apply(
      x, projection.weight,
      projection.bias.defined() ? projection.bias : torch::empty({0}, x.options()));
}

Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps, torch::ScalarType type) {
  return RmsNormFunction::apply(x, weight, eps, type);
}

Tensor Rope(const Tensor& x, const RopeTable& table) {
  return RopeFunction::apply(x, table.cosine, table.sine);
}

Tensor SwiGlu(const Tensor& gate, const Tensor& up) { return SwiGluFunction::apply(gate, up); }

Tensor Embedding(const Tensor& ids, const Tensor& table) {
  return EmbeddingFunction::apply(ids, table);
}

}  // namespace espalier::generic_ops
