// Neighbours in memory seen as one tensor: weights that lie side by side in the flat buffer, and
// results that were made side by side, so that one product does the work of several. Used by
// products.cc and fused_*.cc on CUDA, where a product of its own reads or adds to the whole input
// each time. Lists are in the order of the forward pass; memory has their last one first, as the
// flat order has. Compute thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace espalier::fused_ops {

// Matrices [n_i, k] that follow each other: [sum of n_i, k]. Undefined when they do not, or are
// less than two.
torch::Tensor JoinedRows(const std::vector<torch::Tensor>& matrices);
// Tensors [..., n_i] that are parts of the rows of one: [rows, sum of n_i]. Undefined when they are
// not, or less than two.
torch::Tensor JoinedColumns(const std::vector<torch::Tensor>& parts);

// The parts [..., n_i] of the rows of x [..., sum of n_i].
std::vector<torch::Tensor> PartsOf(const torch::Tensor& x, const std::vector<int64_t>& columns);

}  // namespace espalier::fused_ops
