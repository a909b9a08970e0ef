// What a decoder does to one new position of one sequence on CUDA, without gradients: what feeds a
// product is made by the product's own launch, since a launch of its own takes longer. Each is
// empty, having done nothing, where ops.h has to take the usual way. Used by ops.cc. Compute
// thread.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <vector>

#include "worker/ops/operands.h"

namespace espalier::one_row {

std::optional<ops::Branches> NormLinears(const torch::Tensor& x, const ops::Norm& norm,
                                         const std::vector<ops::Projection>& projections);
std::optional<torch::Tensor> SwiGluLinearAdd(const torch::Tensor& gate, const torch::Tensor& up,
                                             const ops::Projection& projection,
                                             const torch::Tensor& residual);

}  // namespace espalier::one_row
