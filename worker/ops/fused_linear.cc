// Products with weights, and the norm that feeds them, on any device: on the CPU what the norm
// makes is made again in the backward pass instead of being kept.
#include <algorithm>
#include <array>
#include <vector>

#include "common/base/check.h"
#include "worker/ops/fused_ops.h"
#include "worker/ops/fused_tensor.h"
#include "worker/ops/norms.h"
#include "worker/ops/products.h"

namespace espalier::fused_ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr size_t kMostProjections = 3;
using Projections = std::array<ops::Projection, kMostProjections>;

// What LinearsFunction keeps.
struct SavedLinears {
  Tensor x;
  ops::Norm norm;           // an empty weight: no norm
  Projections projections;  // those that are not there have empty weights
  Tensor statistics;        // of the norm
  Tensor input;             // the normalised x; undefined: made again

  void KeepIn(AutogradContext* ctx) const {
    const Projections& p = projections;
    ctx->save_for_backward({x, norm.weight, norm.bias, p[0].weight, p[1].weight, p[2].weight,
                            p[0].bias, p[1].bias, p[2].bias, statistics, input});
    ctx->saved_data["eps"] = norm.eps;
    ctx->saved_data["transposed"] = p[0].transposed;
  }
  static SavedLinears From(AutogradContext* ctx) {
    const variable_list v = ctx->get_saved_variables();
    const bool turned = ctx->saved_data["transposed"].toBool();
    return {v[0],
            {v[1], v[2], ctx->saved_data["eps"].toDouble()},
            {{{v[3], v[6], turned}, {v[4], v[7], turned}, {v[5], v[8], turned}}},
            v[9],
            v[10]};
  }
  std::vector<Tensor> Weights() const {
    std::vector<Tensor> given;
    for (const ops::Projection& one : projections) {
      if (Given(one.weight)) given.push_back(one.weight);
    }
    return given;
  }
  bool HasBias() const {
    return std::any_of(projections.begin(), projections.end(),
                       [](const ops::Projection& one) { return Given(one.bias); });
  }
};

// x, and products of x, or of what a norm makes of it.
struct LinearsFunction : torch::autograd::Function<LinearsFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x_in, const Tensor& norm_weight,
                               const Tensor& norm_bias, double eps, const Tensor& w0,
                               const Tensor& w1, const Tensor& w2, const Tensor& b0,
                               const Tensor& b1, const Tensor& b2, bool transposed) {
    SavedLinears saved{x_in.contiguous(),
                       {norm_weight, norm_bias, eps},
                       {{{w0, b0, transposed}, {w1, b1, transposed}, {w2, b2, transposed}}},
                       {},
                       {}};
    const Tensor& x = saved.x;
    Tensor input = x;
    if (Given(norm_weight)) {
      const NormalRows normal = NormalizedRows(x, saved.norm, w0.scalar_type());
      input = normal.y;
      saved.statistics = normal.statistics;
      if (KeepsInputs(x)) saved.input = input;
    }
    saved.statistics = OrNone(saved.statistics, x);
    saved.KeepIn(ctx);
    variable_list out = {x};
    const std::vector<Tensor> weights = saved.Weights();
    if (!saved.HasBias()) {
      const std::vector<Tensor> products = JoinedProducts(input, weights);
      out.insert(out.end(), products.begin(), products.end());
      if (!products.empty()) return out;
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      out.push_back(Product(input, saved.projections[i], {}));
    }
    return out;
  }

  // upstream: of x, then of each product.
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const SavedLinears saved = SavedLinears::From(ctx);
    const ops::Norm& norm = saved.norm;
    Tensor input = saved.input.defined() ? saved.input : saved.x;
    if (Given(norm.weight) && !saved.input.defined()) {
      input = NormalizedRows(saved.x, norm, saved.projections[0].weight.scalar_type()).y;
    }
    const bool wanted =
        ctx->needs_input_grad(0) || norm.weight.requires_grad() || norm.bias.requires_grad();
    variable_list gradients(kInputs);
    Tensor dinput = JoinedGradient(saved.Weights(), {upstream.begin() + 1, upstream.end()}, input);
    if (dinput.defined()) upstream.resize(1);
    for (size_t i = 0; i + 1 < upstream.size(); ++i) {
      const ops::Projection& projection = saved.projections[i];
      if (!upstream[1 + i].defined()) continue;
      const Tensor dy = upstream[1 + i].contiguous();
      gradients[kFirstWeight + i] = WeightGradient(projection, dy, input);
      gradients[kFirstBias + i] = BiasGradient(projection.bias, dy);
      if (!wanted) continue;
      const bool add = dinput.defined();
      if (!add) dinput = torch::empty_like(input);
      InputGradient(dy, projection, add, dinput);
      upstream[1 + i].reset();
    }
    const Tensor other = upstream[0].defined() ? upstream[0].contiguous() : upstream[0];
    FinishInput(saved, dinput, other, gradients);
    return gradients;
  }

 private:
  // Of the arguments of forward that have gradients.
  static constexpr size_t kFirstWeight = 4, kFirstBias = 7, kInputs = 11;

  // From the gradient of what is multiplied to those of x and the norm; `other` came by x itself.
  static void FinishInput(const SavedLinears& saved, Tensor dinput, const Tensor& other,
                          variable_list& gradients) {
    if (!dinput.defined()) {
      gradients[0] = other;
    } else if (Given(saved.norm.weight)) {
      const bool same = dinput.scalar_type() == saved.x.scalar_type();
      const NormGradients of = NormalizedRowsBackward(saved.x, saved.norm, saved.statistics, dinput,
                                                      other, same ? dinput : Tensor());
      gradients[0] = of.x;
      gradients[1] = of.weight;
      gradients[2] = of.bias;
    } else {
      gradients[0] = other.defined() ? dinput.add_(other) : dinput;
    }
  }
};

// One product of x, added to a residual.
struct LinearAddFunction : torch::autograd::Function<LinearAddFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_in, const Tensor& weight,
                        const Tensor& bias, bool transposed, const Tensor& residual) {
    const Tensor x = x_in.contiguous();
    ctx->save_for_backward({x, weight, bias});
    ctx->saved_data["transposed"] = transposed;
    return Product(x, {weight, bias, transposed}, residual);
  }
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor& x = saved[0];
    const ops::Projection projection{saved[1], saved[2], ctx->saved_data["transposed"].toBool()};
    const Tensor dy = upstream[0].to(x.scalar_type()).contiguous();
    variable_list gradients = {Tensor(), WeightGradient(projection, dy, x),
                               BiasGradient(projection.bias, upstream[0]), Tensor(), upstream[0]};
    if (!ctx->needs_input_grad(0)) return gradients;
    gradients[0] = torch::empty_like(x);
    InputGradient(dy, projection, /*add=*/false, gradients[0]);
    return gradients;
  }
};

// Parts of rows: on the CPU dense copies, which its loops take, elsewhere where they are.
struct SplitFunction : torch::autograd::Function<SplitFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x,
                               const std::vector<int64_t>& columns) {
    ctx->saved_data["shape"] = x.sizes();
    variable_list parts = PartsOf(x, {columns.rbegin(), columns.rend()});  // the last comes first
    std::reverse(parts.begin(), parts.end());
    for (Tensor& part : parts) part = KeepsInputs(x) ? part : part.contiguous();
    return parts;
  }
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const std::vector<int64_t> shape = ctx->saved_data["shape"].toIntVector();
    const Tensor joined = JoinedColumns({upstream.rbegin(), upstream.rend()});  // side by side
    if (joined.defined()) return {joined.view(shape), Tensor()};
    return {torch::cat(upstream, -1), Tensor()};
  }
};

}  // namespace

ops::Branches NormLinears(const Tensor& x, const ops::Norm& norm,
                          const std::vector<ops::Projection>& projections) {
  ESPALIER_CHECK(projections.size() <= kMostProjections, "more products than there is room for");
  const auto at = [&](size_t i) {
    const ops::Projection one = i < projections.size() ? projections[i] : ops::Projection{};
    return ops::Projection{OrNone(one.weight, x), OrNone(one.bias, x)};
  };
  const Projections p = {at(0), at(1), at(2)};
  variable_list out = LinearsFunction::apply(
      x, OrNone(norm.weight, x), OrNone(norm.bias, x), norm.eps, p[0].weight, p[1].weight,
      p[2].weight, p[0].bias, p[1].bias, p[2].bias, projections.at(0).transposed);
  return {out[0], {out.begin() + 1, out.end()}};
}

Tensor LinearAdd(const Tensor& x, const ops::Projection& projection, const Tensor& residual) {
  return LinearAddFunction::apply(x, projection.weight, OrNone(projection.bias, x),
                                  projection.transposed, OrNone(residual, x));
}

std::vector<Tensor> Split(const Tensor& x, const std::vector<int64_t>& columns) {
  return SplitFunction::apply(x, columns);
}

}  // namespace espalier::fused_ops
