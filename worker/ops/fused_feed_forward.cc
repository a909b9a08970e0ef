// Products with weights after an activation, on any device: on the CPU what the activation makes is
// made again in the backward pass instead of being kept.
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
    variable_list gradients = {Tensor(), Tensor(),
                               WeightGradient({saved.weight, saved.bias}, dy, activated),
                               BiasGradient(saved.bias, upstream[0]), upstream[0]};
    if (!ctx->needs_input_grad(0) && !ctx->needs_input_grad(1)) return gradients;
    if (!Apply(gate)) {
      const Tensor dactivated = torch::empty_like(activated);
      InputGradient(dy, {saved.weight, saved.bias}, /*add=*/false, dactivated);
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
    InputGradient(dy, {saved.weight, saved.bias}, /*add=*/false, dup);
    ActivateBackward(gate, saved.up, dup, dgate);
    gradients[0] = dgate;
    gradients[1] = dup;
    return gradients;
  }
};

Tensor GeluOf(const Tensor& x) {
  if (!Apply(x)) return generic_ops::Gelu(x);
  if (x.is_cuda()) return at::gelu(x, "tanh");
  const Tensor y = torch::empty(x.sizes(), x.options());
  const int64_t n = x.size(-1);
  WithReal(x, [&](auto zero) {
    using Real = decltype(zero);
    const Real* px = Data<Real>(x);
    Real* py = Mutable<Real>(y);
    cpu::ParallelFor(Rows(x), [&](int64_t i) { cpu::GeluRow(px + i * n, py + i * n, n); });
  });
  return y;
}

// May overwrite dy.
Tensor GeluBackward(const Tensor& x, const Tensor& dy) {
  if (!Apply(x)) return generic_ops::GeluBackward(x, dy);
  if (x.is_cuda()) return at::gelu_backward(dy, x, "tanh");
  const int64_t n = x.size(-1);
  WithReal(x, [&](auto zero) {
    using Real = decltype(zero);
    const Real* px = Data<Real>(x);
    Real* pdy = Mutable<Real>(dy);
    cpu::ParallelFor(
        Rows(x), [&](int64_t i) { cpu::GeluGradientRow(px + i * n, pdy + i * n, pdy + i * n, n); });
  });
  return dy;
}

struct GeluLinearAddFunction : torch::autograd::Function<GeluLinearAddFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_in, const Tensor& weight,
                        const Tensor& bias, bool transposed, const Tensor& residual) {
    const Tensor x = x_in.contiguous(), activated = GeluOf(x);
    ctx->save_for_backward({x, weight, bias, KeepsInputs(x) ? activated : Tensor()});
    ctx->saved_data["transposed"] = transposed;
    return Product(activated, {weight, bias, transposed}, residual);
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], activated = saved[3].defined() ? saved[3] : GeluOf(x);
    const ops::Projection projection{saved[1], saved[2], ctx->saved_data["transposed"].toBool()};
    const Tensor dy = upstream[0].to(x.scalar_type()).contiguous();
    variable_list gradients = {Tensor(), WeightGradient(projection, dy, activated),
                               BiasGradient(projection.bias, upstream[0]), Tensor(), upstream[0]};
    if (!ctx->needs_input_grad(0)) return gradients;
    const Tensor dactivated = torch::empty_like(x);
    InputGradient(dy, projection, /*add=*/false, dactivated);
    gradients[0] = GeluBackward(x, dactivated);
    return gradients;
  }
};

}  // namespace

Tensor SwiGluLinearAdd(const Tensor& gate, const Tensor& up, const ops::Projection& projection,
                       const Tensor& residual) {
  ESPALIER_CHECK(!projection.transposed, "no model has SwiGLU before a transposed weight");
  return SwiGluLinearAddFunction::apply(gate, up, projection.weight, OrNone(projection.bias, gate),
                                        OrNone(residual, gate));
}

Tensor GeluLinearAdd(const Tensor& x, const ops::Projection& projection, const Tensor& residual) {
  return GeluLinearAddFunction::apply(x, projection.weight, OrNone(projection.bias, x),
                                      projection.transposed, OrNone(residual, x));
}

}  // namespace espalier::fused_ops
