// Products with weights after an activation, on any device: on the CPU what the activation makes is
// made again in the backward pass instead of being kept.
#include <vector>

#include "common/base/check.h"
#include "worker/kernels/cpu_rows.h"
#include "worker/kernels/parallel.h"
#include "worker/ops/adapters.h"
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

// What the functions below keep: of GELU in `gate`.
struct SavedActivation {
  Tensor gate, up;
  Tensor activated;           // silu(gate) * up, or gelu(gate); undefined: made again
  std::vector<Tensor> inner;  // of the adapter

  variable_list Packed() const {
    variable_list all = {gate, up, activated};
    all.insert(all.end(), inner.begin(), inner.end());
    return all;
  }
  static SavedActivation From(const variable_list& v) {
    return {v[0], v[1], v[2], {v.begin() + 3, v.end()}};
  }
};

// The product of what was activated, of which what is kept is kept in `saved`.
Tensor ProductOf(const Tensor& activated, const Projections& one, const Tensor& residual,
                 AutogradContext* ctx, SavedActivation& saved) {
  Tensor y = Product(activated, one[0], residual);
  saved.inner = AddAdapters(activated, one, {y});
  if (KeepsInputs(saved.gate, !one[0].weight.requires_grad())) saved.activated = activated;
  ctx->save_for_backward(saved.Packed());
  Hold(ctx, one);
  return y;
}

// Gradients of the leaves, and of `dactivated` (undefined: not wanted), which is written.
variable_list ProductGradients(const Projections& one, const SavedActivation& saved,
                               const Tensor& activated, const Tensor& upstream,
                               const Tensor& dactivated) {
  const Tensor dy = upstream.to(saved.gate.scalar_type()).contiguous();
  variable_list gradients = {WeightGradient(one[0], dy, activated)};
  if (one[0].bias.defined()) gradients.push_back(BiasGradient(one[0].bias, upstream));
  const bool first = WritesAdapterGradientsFirst(activated, one, {dy});
  std::vector<Tensor> adapters;
  if (first) adapters = WriteAdapterGradients(activated, one, saved.inner, {dy}, dactivated);
  if (dactivated.defined()) InputGradient(dy, one[0], /*add=*/first, dactivated);
  if (!first) adapters = AddAdapterGradients(activated, one, saved.inner, {dy}, dactivated);
  gradients.insert(gradients.end(), adapters.begin(), adapters.end());
  return gradients;
}

struct SwiGluLinearAddFunction : torch::autograd::Function<SwiGluLinearAddFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate_in, const Tensor& up_in,
                        const Tensor& residual, at::TensorList /*leaves*/, const Projections& one,
                        const Made& made) {
    const bool joined =
        !gate_in.is_cpu() && OrderOfColumns({gate_in, up_in}) != ColumnOrder::kApart;
    SavedActivation saved{
        joined ? gate_in : gate_in.contiguous(), joined ? up_in : up_in.contiguous(), {}, {}};
    const Tensor y = made.value.defined() ? made.value : Activated(saved.gate, saved.up);
    return ProductOf(y, one, residual, ctx, saved);
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const SavedActivation saved = SavedActivation::From(ctx->get_saved_variables());
    const auto one = Held<Projections>(ctx);
    const Tensor& gate = saved.gate;
    Tensor activated = saved.activated;
    if (!activated.defined()) activated = Activated(gate, saved.up);
    const bool wanted = ctx->needs_input_grad(0) || ctx->needs_input_grad(1);
    // What came side by side goes so, in the same order.
    const ColumnOrder order =
        gate.is_cuda() ? OrderOfColumns({gate, saved.up}) : ColumnOrder::kApart;
    const bool joined = order != ColumnOrder::kApart;
    Tensor dgate, dup;
    if (wanted && joined) {
      const int64_t n = gate.size(-1);
      const std::vector<Tensor> parts = PartsOf(ResizedLast(gate, 2 * n), {n, n}, order);
      dgate = parts[0];
      dup = parts[1];
    } else if (wanted) {
      dup = torch::empty_like(activated);
    }
    variable_list gradients = {Tensor(), Tensor(), upstream[0]};
    const variable_list leaves = ProductGradients(one, saved, activated, upstream[0], dup);
    gradients.insert(gradients.end(), leaves.begin(), leaves.end());
    gradients.resize(gradients.size() + 2);  // of what is no variable
    if (!wanted) return gradients;
    if (!Apply(gate)) {
      const auto parts = generic_ops::SwiGluBackward(gate, saved.up, dup);
      gradients[0] = parts[0];
      gradients[1] = parts[1];
      return gradients;
    }
    // The memory of the activated values receives the gradient of gate.
    if (!joined) dgate = saved.activated.defined() ? torch::empty_like(gate) : activated;
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
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& residual,
                        at::TensorList /*leaves*/, const Projections& one) {
    SavedActivation saved{x.contiguous(), {}, {}, {}};
    return ProductOf(GeluOf(saved.gate), one, residual, ctx, saved);
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const SavedActivation saved = SavedActivation::From(ctx->get_saved_variables());
    const auto one = Held<Projections>(ctx);
    const Tensor &x = saved.gate,
                 activated = saved.activated.defined() ? saved.activated : GeluOf(x);
    const Tensor dactivated = ctx->needs_input_grad(0) ? torch::empty_like(x) : Tensor();
    variable_list gradients = {Tensor(), upstream[0]};
    const variable_list leaves = ProductGradients(one, saved, activated, upstream[0], dactivated);
    gradients.insert(gradients.end(), leaves.begin(), leaves.end());
    gradients.emplace_back();
    if (dactivated.defined()) gradients[0] = GeluBackward(x, dactivated);
    return gradients;
  }
};

}  // namespace

Tensor SwiGluLinearAdd(const Tensor& gate, const Tensor& up, const ops::Projection& projection,
                       const Tensor& residual, const Tensor& activated) {
  ESPALIER_CHECK(!projection.transposed, "no model has SwiGLU before a transposed weight");
  const Projections one = {projection};
  return SwiGluLinearAddFunction::apply(gate, up, OrNone(residual, gate),
                                        at::TensorList(LeavesOf(one)), one, Made{activated});
}

Tensor GeluLinearAdd(const Tensor& x, const ops::Projection& projection, const Tensor& residual) {
  const Projections one = {projection};
  return GeluLinearAddFunction::apply(x, OrNone(residual, x), at::TensorList(LeavesOf(one)), one);
}

}  // namespace espalier::fused_ops
