// What adapters of low rank add to products with weights, and their gradients, on any device: the
// part of LoRA in products.h's building blocks. Used by fused_linear.cc and fused_feed_forward.cc.
// Compute thread, or autograd's.
#pragma once

#include <vector>

#include "worker/ops/operands.h"
#include "worker/tensor/torch.h"

namespace espalier::fused_ops {

// Projections of one input, whose adapters drop the same of it.
using Projections = std::vector<ops::Projection>;

// Weights, biases and adapters that there are, in the order in which AddWeightGradients returns
// gradients: what an autograd function is given as its leaves.
std::vector<torch::Tensor> LeavesOf(const Projections& projections);

// Adds to each y [..., out] what the projection's adapter makes of x. Returns, for the backward
// pass, scale * dropout(x) a' of each that has one.
std::vector<torch::Tensor> AddAdapters(const torch::Tensor& x, const Projections& projections,
                                       const std::vector<torch::Tensor>& y);

// Products of x with weights that lie side by side and what adapters add to them, without biases,
// in one result on CUDA: what adapters make is there first, so that the large product adds to it in
// its last step and nothing passes over the result again. `inner` as AddAdapters returns it. Empty,
// having done nothing, where that is not so.
std::vector<torch::Tensor> AdaptedProducts(const torch::Tensor& x, const Projections& projections,
                                           std::vector<torch::Tensor>& inner);

// Whether what x gets through the adapters may be written before what it gets through the weights,
// for the same reason: WriteAdapterGradients does that.
bool WritesAdapterGradientsFirst(const torch::Tensor& x, const Projections& projections,
                                 const std::vector<torch::Tensor>& dy);

// The backward pass of AddAdapters: adds the gradients of a and b, and to dx (undefined: not
// wanted) what x gets through the adapters. `inner` is what AddAdapters returned; a dy that is
// undefined is zero. Returns those of [a, b, a, b ...] that have no grad() to add to.
std::vector<torch::Tensor> AddAdapterGradients(const torch::Tensor& x,
                                               const Projections& projections,
                                               const std::vector<torch::Tensor>& inner,
                                               const std::vector<torch::Tensor>& dy,
                                               const torch::Tensor& dx);
// The same, where WritesAdapterGradientsFirst, with a dx that holds nothing yet.
std::vector<torch::Tensor> WriteAdapterGradients(const torch::Tensor& x,
                                                 const Projections& projections,
                                                 const std::vector<torch::Tensor>& inner,
                                                 const std::vector<torch::Tensor>& dy,
                                                 const torch::Tensor& dx);

}  // namespace espalier::fused_ops
