#include "worker/ops/ops.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "worker/ops/cuda_ops.h"
#include "worker/ops/fused_ops.h"
#include "worker/ops/fused_tensor.h"
#include "worker/ops/generic_ops.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {

// One new position of one sequence on CUDA, without gradients: what feeds a product is made by the
// product's own launch, since a launch of its own takes longer. Each is empty, having done nothing,
// where the usual way has to be taken.
namespace one_row {
namespace {

using torch::Tensor;

bool IsMeant(const Tensor& x) { return x.is_cuda() && !torch::GradMode::is_enabled(); }

// Without what is added by a launch of its own in any case.
bool IsPlain(const ops::Projection& one) {
  return !one.transposed && !one.bias.defined() && !one.adapter.a.defined();
}

std::optional<ops::Branches> NormLinears(const Tensor& x, const ops::Norm& norm,
                                         const std::vector<ops::Projection>& projections) {
  if (!IsMeant(x) || !norm.weight.defined() || norm.bias.defined()) return std::nullopt;
  if (!std::all_of(projections.begin(), projections.end(), IsPlain)) return std::nullopt;
  std::vector<Tensor> weights;
  std::vector<int64_t> columns;
  for (const ops::Projection& one : projections) {
    weights.push_back(one.weight);
    columns.push_back(one.weight.size(0));
  }
  const Tensor weight = weights.size() == 1 ? weights[0] : JoinedRows(weights);
  if (!weight.defined()) return std::nullopt;
  const Tensor y = cuda::OneRowProduct({.x = x, .norm = norm.weight, .eps = norm.eps}, weight, {});
  if (!y.defined()) return std::nullopt;
  return ops::Branches{x, PartsOf(y, columns)};
}

std::optional<Tensor> SwiGluLinearAdd(const Tensor& gate, const Tensor& up,
                                      const ops::Projection& projection, const Tensor& residual) {
  if (!IsMeant(gate) || !IsPlain(projection)) return std::nullopt;
  const Tensor y = cuda::OneRowProduct({.x = gate, .up = up}, projection.weight, residual);
  if (!y.defined()) return std::nullopt;
  return y;
}

}  // namespace
}  // namespace one_row

namespace ops {

using torch::Tensor;

namespace {

// Whose logits are those of `hidden` divided by the temperature.
Tensor Cooled(const Tensor& hidden, double temperature) {
  return temperature == 1 ? hidden : hidden * (1 / temperature);
}

}  // namespace

Tensor Linear(const Tensor& x, const Projection& projection) {
  return fused_ops::NormLinears(x, {}, {projection}).products[0];
}

Branches NormLinears(const Tensor& x, const Norm& norm,
                     const std::vector<Projection>& projections) {
  if (auto few = one_row::NormLinears(x, norm, projections)) return *std::move(few);
  return fused_ops::NormLinears(x, norm, projections);
}

Tensor Normalize(const Tensor& x, const Norm& norm, torch::ScalarType type) {
  return fused_ops::Normalize(x, norm, type);
}

Tensor NormalizeAdd(const Tensor& x, const Norm& norm, const Tensor& plus) {
  return fused_ops::NormalizeAdd(x, norm, plus);
}

std::vector<Tensor> Split(const Tensor& x, const std::vector<int64_t>& columns) {
  return fused_ops::Split(x, columns);
}

namespace {
bool HasRopeKernel(const Tensor& q) {
  return fused_ops::Apply(q) && (q.is_cpu() || q.size(3) % 8 == 0);
}
}  // namespace

Heads Rope(const Heads& x, const RopeTable& table) {
  if (!table.cosine.defined()) return x;
  if (HasRopeKernel(x.q)) return fused_ops::Rope(x, table);
  return {generic_ops::Rope(x.q, table), generic_ops::Rope(x.k, table), x.v};
}

Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t window,
                       const Masks& masks) {
  const bool whole = q.size(1) == k.size(1), shared = masks->begins().defined();
  if (whole && q.is_cpu() && fused_ops::Apply(q) && window != kBothWays) {
    return fused_ops::CausalAttention(q, k, v, window, masks->begins());
  }
  const bool both_ways = window == kBothWays;
  if (whole && !shared && (both_ways || window == 0 || window >= q.size(1))) {
    if (auto mixed = LibraryAttention(q, k, v, /*causal=*/!both_ways)) return *mixed;
  }
  return generic_ops::CausalAttention(q, k, v, window, masks);
}

namespace {

// Of sequences short enough that CUDA turns q and k, and has their scores, without a way through
// memory. Undefined elsewhere.
Tensor ShortAttention(const Heads& x, const RopeTable& table, int64_t window, const Masks& masks) {
  const bool all = window <= 0 || window >= x.q.size(1);
  if (!all || masks->begins().defined()) return {};
  return cuda::ShortAttention(x.q, x.k, x.v, table.cosine, table.sine, window != kBothWays);
}

}  // namespace

Tensor RotaryAttention(const Heads& x, const RopeTable& table, int64_t window, const Masks& masks) {
  if (const Tensor mixed = ShortAttention(x, table, window, masks); mixed.defined()) return mixed;
  if (!table.cosine.defined()) return CausalAttention(x.q, x.k, x.v, window, masks);
  if (!HasRopeKernel(x.q)) return generic_ops::RotaryAttention(x, table, window, masks);
  const Heads turned = Rope(x, table);
  return CausalAttention(turned.q, turned.k, turned.v, window, masks);
}

Tensor LinearAdd(const Tensor& x, const Projection& projection, const Tensor& residual) {
  return fused_ops::LinearAdd(x, projection, residual);
}

Tensor SwiGluLinearAdd(const Tensor& gate, const Tensor& up, const Projection& projection,
                       const Tensor& residual) {
  if (auto few = one_row::SwiGluLinearAdd(gate, up, projection, residual)) return *few;
  return fused_ops::SwiGluLinearAdd(gate, up, projection, residual);
}

namespace {

// silu(g) * u, and where gradients need them g and u, where CUDA has one kernel for it.
cuda::Gated GatedProduct(const Tensor& x, const Projection& gate_up) {
  if (gate_up.transposed || gate_up.bias.defined() || gate_up.adapter.a.defined()) return {};
  const bool keep = torch::GradMode::is_enabled();
  const torch::NoGradGuard no_grad;
  return cuda::GatedProduct(x, gate_up.weight, keep);
}

}  // namespace

Tensor GatedLinearAdd(const Tensor& x, const Projection& gate_up, const Projection& projection,
                      const Tensor& residual) {
  const bool apart = residual.defined();
  const cuda::Gated made = GatedProduct(x, gate_up);
  if (made.y.defined() && !made.products.defined()) {
    return LinearAdd(made.y, projection, apart ? residual : x);
  }
  const Branches in = made.y.defined() ? fused_ops::NormLinears(x, {}, {gate_up}, made.products)
                                       : NormLinears(x, {}, {gate_up});
  const int64_t inner = gate_up.out() / 2;
  const std::vector<Tensor> parts = Split(in.products[0], {inner, inner});
  const Tensor to = apart ? residual : in.residual;
  return made.y.defined() ? fused_ops::SwiGluLinearAdd(parts[0], parts[1], projection, to, made.y)
                          : SwiGluLinearAdd(parts[0], parts[1], projection, to);
}

Tensor GeluLinearAdd(const Tensor& x, const Projection& projection, const Tensor& residual) {
  return fused_ops::GeluLinearAdd(x, projection, residual);
}

Tensor AddPositions(const Tensor& x, const Tensor& table, int64_t begin) {
  return generic_ops::AddPositions(x, table, begin);
}
Tensor AddPositions(const Tensor& x, const Tensor& table, const Tensor& places) {
  return generic_ops::AddPositions(x, table, places);
}

Tensor Embedding(const Tensor& ids, const Tensor& table) {
  return table.is_cpu() && fused_ops::Apply(table) ? fused_ops::Embedding(ids, table)
                                                   : generic_ops::Embedding(ids, table);
}

torch::ScalarType ResidualType(torch::Device device, torch::ScalarType type) {
  return torch::elementSize(type) < 4 && !device.is_cuda() ? torch::kFloat : type;
}

Tensor LossSum(const Tensor& given, const Tensor& head, const Tensor& targets, const RowLoss& loss,
               const std::function<void()>& worked) {
  const Tensor hidden = Cooled(given, loss.temperature);
  // The kernel of CUDA computes cross-entropies.
  const bool fused = fused_ops::Apply(hidden) && (hidden.is_cpu() || !loss.function) &&
                     loss.probabilities == Probabilities::kSoftmax;
  return fused ? fused_ops::LossSum(hidden, head, targets, loss, worked)
               : generic_ops::LossSum(hidden, head, targets, loss, worked);
}

Tensor TargetLogProbabilities(const Tensor& hidden, const Tensor& head, const Tensor& targets,
                              double temperature) {
  const torch::NoGradGuard no_grad;
  const Tensor cooled = Cooled(hidden, temperature);
  return cooled.is_cpu() && fused_ops::Apply(cooled)
             ? fused_ops::TargetLogProbabilities(cooled, head, targets)
             : generic_ops::TargetLogProbabilities(cooled, head, targets);
}

}  // namespace ops
}  // namespace espalier
