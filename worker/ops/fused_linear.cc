// Products with weights, and the element-wise operation that feeds them, on any device: on the CPU
// what that operation makes is made again in the backward pass instead of being kept.
#include <algorithm>
#include <array>
#include <vector>

#include "common/base/check.h"
#include "worker/kernels/cpu_rows.h"
#include "worker/kernels/parallel.h"
#include "worker/ops/cuda_ops.h"
#include "worker/ops/fused_ops.h"
#include "worker/ops/fused_tensor.h"
#include "worker/ops/generic_ops.h"
#include "worker/ops/products.h"

namespace espalier::fused_ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using generic_ops::Normal;

Normal Normalize(const Tensor& x, const Tensor& weight, double eps, torch::ScalarType type) {
  if (!ApplyToNorms(x)) return generic_ops::Normalize(x, weight, eps, type);
  Normal normal{torch::empty_like(x, x.options().dtype(type)),
                torch::empty({Rows(x)}, FloatOptions(x))};
  const Tensor& y = normal.y;
  if (x.is_cuda()) {
    cuda::RmsNorm(x, weight, eps, y, normal.statistics);
    return normal;
  }
  const int64_t rows = Rows(x), n = x.size(-1);
  float* pr = Mutable(normal.statistics);
  WithNormReals(x, y.scalar_type(), [&](auto in, auto out) {
    const auto* px = Data<decltype(in)>(x);
    auto* py = Mutable<decltype(out)>(y);
    const float* pw = Data(weight);
    cpu::ParallelFor(rows, [&](int64_t i) {
      pr[i] = cpu::RmsNormRow(px + i * n, pw, py + i * n, n, static_cast<float>(eps));
    });
  });
  return normal;
}

// Writes the gradient of x, plus `other` where that is defined, to dx, which may be dy; returns the
// weight's as Deliver does.
Tensor NormalizeBackward(const Tensor& x, const Tensor& weight, const Tensor& inverse,
                         const Tensor& dy, const Tensor& other, const Tensor& dx) {
  if (x.is_cuda()) {
    const Tensor dweight = cuda::RmsNormBackward(x, weight, inverse, dy, other, dx);
    return weight.requires_grad() ? Deliver(weight, dweight) : Tensor();
  }
  const int64_t rows = Rows(x), n = x.size(-1);
  Tensor partial = torch::zeros({kPartialSums, n}, FloatOptions(x));
  const float* pr = Data(inverse);
  float* sums = Mutable(partial);
  WithNormReals(x, dy.scalar_type(), [&](auto in, auto out) {
    using In = decltype(in);
    const auto* px = Data<In>(x);
    const auto* pdy = Data<decltype(out)>(dy);
    const In* po = other.defined() ? Data<In>(other) : nullptr;
    const float* pw = Data(weight);
    In* pdx = Mutable<In>(dx);
    cpu::ParallelFor(kPartialSums, [&](int64_t part) {
      for (int64_t i = rows * part / kPartialSums; i < rows * (part + 1) / kPartialSums; ++i) {
        cpu::RmsNormGradientRow(px + i * n, pw, pdy + i * n, pr[i],
                                po == nullptr ? nullptr : po + i * n, pdx + i * n, sums + part * n,
                                n);
      }
    });
  });
  return weight.requires_grad() ? Deliver(weight, partial.sum(0)) : Tensor();
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_in, const Tensor& weight, double eps,
                        torch::ScalarType type) {
    const Tensor x = x_in.contiguous();
    const Normal normal = Normalize(x, weight, eps, type);
    ctx->save_for_backward({x, weight, normal.statistics});
    return normal.y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    Tensor dx = torch::empty_like(saved[0]);
    Tensor dweight =
        NormalizeBackward(saved[0], saved[1], saved[2], upstream[0].contiguous(), {}, dx);
    return {dx, dweight, Tensor(), Tensor()};
  }
};

// Whether what feeds a product is kept for the backward pass rather than made again: on
// accelerators that costs more time than on the CPU, compared with the product.
bool KeepsInputs(const Tensor& x) { return !x.is_cpu() || !Apply(x); }

constexpr size_t kMostProjections = 3;
using Projections = std::array<ops::Projection, kMostProjections>;

// What LinearsFunction keeps.
struct SavedLinears {
  Tensor x, norm, inverse;  // norm and inverse empty: no norm
  Projections projections;  // those that are not there have empty weights
  Tensor input;             // the normalised x; undefined: made again

  variable_list Packed() const {
    const Projections& p = projections;
    return {x,           norm,      inverse,   p[0].weight, p[1].weight,
            p[2].weight, p[0].bias, p[1].bias, p[2].bias,   input};
  }
  static SavedLinears From(const variable_list& v) {
    return {v[0], v[1], v[2], {{{v[3], v[6]}, {v[4], v[7]}, {v[5], v[8]}}}, v[9]};
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

// x, and products of x, or of RmsNorm(x) when there is a norm.
struct LinearsFunction : torch::autograd::Function<LinearsFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x_in, const Tensor& norm,
                               double eps, const Tensor& w0, const Tensor& w1, const Tensor& w2,
                               const Tensor& b0, const Tensor& b1, const Tensor& b2) {
    SavedLinears saved{x_in.contiguous(), norm, {}, {{{w0, b0}, {w1, b1}, {w2, b2}}}, {}};
    const Tensor& x = saved.x;
    Tensor input = x;
    if (Given(norm)) {
      Normal normal = Normalize(x, norm, eps, w0.scalar_type());
      input = normal.y;
      saved.inverse = normal.statistics;
      if (KeepsInputs(x)) saved.input = input;
    }
    saved.inverse = OrNone(saved.inverse, x);
    ctx->save_for_backward(saved.Packed());
    ctx->saved_data["eps"] = eps;
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
    const SavedLinears saved = SavedLinears::From(ctx->get_saved_variables());
    Tensor input = saved.input.defined() ? saved.input : saved.x;
    if (Given(saved.norm) && !saved.input.defined()) {
      input = Normalize(saved.x, saved.norm, ctx->saved_data["eps"].toDouble(),
                        saved.projections[0].weight.scalar_type())
                  .y;
    }
    const bool wanted = ctx->needs_input_grad(0) || saved.norm.requires_grad();
    variable_list gradients(kInputs);
    Tensor dinput = JoinedGradient(saved.Weights(), {upstream.begin() + 1, upstream.end()}, input);
    if (dinput.defined()) upstream.resize(1);
    for (size_t i = 0; i + 1 < upstream.size(); ++i) {
      const ops::Projection& projection = saved.projections[i];
      if (!upstream[1 + i].defined()) continue;
      const Tensor dy = upstream[1 + i].contiguous();
      gradients[kFirstWeight + i] = WeightGradient(projection.weight, dy, input);
      gradients[kFirstBias + i] = BiasGradient(projection.bias, dy);
      if (!wanted) continue;
      const bool add = dinput.defined();
      if (!add) dinput = torch::empty_like(input);
      InputGradient(dy, projection.weight, add, dinput);
      upstream[1 + i].reset();
    }
    const Tensor other = upstream[0].defined() ? upstream[0].contiguous() : upstream[0];
    FinishInput(saved, dinput, other, gradients);
    return gradients;
  }

 private:
  // Of the arguments of forward that have gradients.
  static constexpr size_t kFirstWeight = 3, kFirstBias = 6, kInputs = 9;

  // From the gradient of what is multiplied to those of x and the norm; `other` came by x itself.
  static void FinishInput(const SavedLinears& saved, Tensor dinput, const Tensor& other,
                          variable_list& gradients) {
    if (!dinput.defined()) {
      gradients[0] = other;
    } else if (Given(saved.norm) && !ApplyToNorms(saved.x)) {
      std::tie(gradients[0], gradients[1]) =
          generic_ops::NormalizeBackward(saved.x, saved.norm, saved.inverse, dinput, other);
    } else if (Given(saved.norm)) {
      const bool same = dinput.scalar_type() == saved.x.scalar_type();
      gradients[0] = same ? dinput : torch::empty_like(saved.x);
      gradients[1] =
          NormalizeBackward(saved.x, saved.norm, saved.inverse, dinput, other, gradients[0]);
    } else {
      gradients[0] = other.defined() ? dinput.add_(other) : dinput;
    }
  }
};

// One product of x, added to a residual.
struct LinearAddFunction : torch::autograd::Function<LinearAddFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_in, const Tensor& weight,
                        const Tensor& bias, const Tensor& residual) {
    const Tensor x = x_in.contiguous();
    ctx->save_for_backward({x, weight, bias});
    return Product(x, {weight, bias}, residual);
  }
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &bias = saved[2];
    const Tensor dy = upstream[0].to(x.scalar_type()).contiguous();
    variable_list gradients = {Tensor(), WeightGradient(weight, dy, x),
                               BiasGradient(bias, upstream[0]), upstream[0]};
    if (!ctx->needs_input_grad(0)) return gradients;
    gradients[0] = torch::empty_like(x);
    InputGradient(dy, weight, /*add=*/false, gradients[0]);
    return gradients;
  }
};

Tensor Activated(const Tensor& gate, const Tensor& up) {
  if (!Apply(gate)) return generic_ops::SwiGlu(gate, up);
  Tensor y = torch::empty(gate.sizes(), gate.options());
  if (gate.is_cuda()) {
    cuda::SwiGlu(gate, up, y);
    return y;
  }
  const int64_t rows = Rows(gate), n = gate.size(-1);
  WithReal(gate, [&](auto zero) {
    using Real = decltype(zero);
    const Real *pg = Data<Real>(gate), *pu = Data<Real>(up);
    Real* py = Mutable<Real>(y);
    cpu::ParallelFor(rows,
                     [&](int64_t i) { cpu::SwiGluRow(pg + i * n, pu + i * n, py + i * n, n); });
  });
  return y;
}

// Writes the gradient of gate; turns dy into the gradient of up.
void ActivateBackward(const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& dgate) {
  if (gate.is_cuda()) return cuda::SwiGluBackward(gate, up, dy, dgate);
  const int64_t rows = Rows(gate), n = gate.size(-1);
  WithReal(gate, [&](auto zero) {
    using Real = decltype(zero);
    const Real *pg = Data<Real>(gate), *pu = Data<Real>(up);
    Real *pdy = Mutable<Real>(dy), *pdg = Mutable<Real>(dgate);
    cpu::ParallelFor(rows, [&](int64_t i) {
      const int64_t at = i * n;
      cpu::SwiGluGradientRow(pg + at, pu + at, pdy + at, pdg + at, pdy + at, n);
    });
  });
}

// What SwiGluLinearAddFunction keeps.
struct SavedSwiGlu {
  Tensor gate, up, weight, bias;
  Tensor activated;  // silu(gate) * up; undefined: made again

  variable_list Packed() const { return {gate, up, weight, bias, activated}; }
  static SavedSwiGlu From(const variable_list& v) { return {v[0], v[1], v[2], v[3], v[4]}; }
};

struct SwiGluLinearAddFunction : torch::autograd::Function<SwiGluLinearAddFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate_in, const Tensor& up_in,
                        const Tensor& weight, const Tensor& bias, const Tensor& residual) {
    const bool joined = KeepsInputs(gate_in) && JoinedColumns({gate_in, up_in}).defined();
    SavedSwiGlu saved{joined ? gate_in : gate_in.contiguous(),
                      joined ? up_in : up_in.contiguous(),
                      weight,
                      bias,
                      {}};
    const Tensor activated = Activated(saved.gate, saved.up);
    if (KeepsInputs(saved.gate)) saved.activated = activated;
    ctx->save_for_backward(saved.Packed());
    return Product(activated, {weight, bias}, residual);
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const SavedSwiGlu saved = SavedSwiGlu::From(ctx->get_saved_variables());
    const Tensor& gate = saved.gate;
    const Tensor dy = upstream[0].to(gate.scalar_type()).contiguous();
    Tensor activated = saved.activated;
    if (!activated.defined()) activated = Activated(gate, saved.up);
    variable_list gradients = {Tensor(), Tensor(), WeightGradient(saved.weight, dy, activated),
                               BiasGradient(saved.bias, upstream[0]), upstream[0]};
    if (!ctx->needs_input_grad(0) && !ctx->needs_input_grad(1)) return gradients;
    if (!Apply(gate)) {
      const Tensor dactivated = torch::empty_like(activated);
      InputGradient(dy, saved.weight, /*add=*/false, dactivated);
      const auto parts = generic_ops::SwiGluBackward(gate, saved.up, dactivated);
      gradients[0] = parts[0];
      gradients[1] = parts[1];
      return gradients;
    }
    // What came side by side goes so. Else the memory of the activated values receives the gradient
    // of gate.
    Tensor dgate, dup;
    if (gate.is_cuda() && JoinedColumns({gate, saved.up}).defined()) {
      const int64_t n = gate.size(-1);
      const std::vector<Tensor> parts = PartsOf(ResizedLast(gate, 2 * n), {n, n});
      dgate = parts[0];
      dup = parts[1];
    } else {
      dgate = saved.activated.defined() ? torch::empty_like(gate) : activated;
      dup = torch::empty_like(gate);
    }
    InputGradient(dy, saved.weight, /*add=*/false, dup);
    ActivateBackward(gate, saved.up, dup, dgate);
    gradients[0] = dgate;
    gradients[1] = dup;
    return gradients;
  }
};

}  // namespace

Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps, torch::ScalarType type) {
  return RmsNormFunction::apply(x, weight, eps, type);
}

ops::Branches NormLinears(const Tensor& x, const Tensor& norm, double eps,
                          const std::vector<ops::Projection>& projections) {
  ESPALIER_CHECK(projections.size() <= kMostProjections, "more products than there is room for");
  const auto at = [&](size_t i) {
    const ops::Projection one = i < projections.size() ? projections[i] : ops::Projection{};
    return ops::Projection{OrNone(one.weight, x), OrNone(one.bias, x)};
  };
  const Projections p = {at(0), at(1), at(2)};
  variable_list out = LinearsFunction::apply(x, OrNone(norm, x), eps, p[0].weight, p[1].weight,
                                             p[2].weight, p[0].bias, p[1].bias, p[2].bias);
  return {out[0], {out.begin() + 1, out.end()}};
}

Tensor LinearAdd(const Tensor& x, const ops::Projection& projection, const Tensor& residual) {
  return LinearAddFunction::apply(x, projection.weight, OrNone(projection.bias, x),
                                  OrNone(residual, x));
}

Tensor SwiGluLinearAdd(const Tensor& gate, const Tensor& up, const ops::Projection& projection,
                       const Tensor& residual) {
  return SwiGluLinearAddFunction::apply(gate, up, projection.weight, OrNone(projection.bias, gate),
                                        OrNone(residual, gate));
}

}  // namespace espalier::fused_ops
