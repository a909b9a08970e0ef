#include "worker/ops/one_row.h"

#include <algorithm>

#include "worker/ops/cuda_ops.h"

namespace espalier::one_row {
namespace {

using torch::Tensor;

bool IsMeant(const Tensor& x) { return x.is_cuda() && !torch::GradMode::is_enabled(); }

// Without what is added by a launch of its own in any case.
bool IsPlain(const ops::Projection& one) {
  return !one.transposed && !one.bias.defined() && !one.adapter.a.defined();
}

}  // namespace

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

}  // namespace espalier::one_row
