// A product with a weight and its gradients, on any device: the building blocks of fused_linear.cc
// and fused_feed_forward.cc. Weights that are neighbours in memory are one on accelerators, where a
// product of its own reads or adds to the whole input each time and is launched by itself. Matrices
// are dense unless said otherwise. Used by worker/ops. Compute thread, or autograd's.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/ops/operands.h"
#include "worker/tensor/torch.h"

namespace espalier::fused_ops {

// y = x weight' + residual + bias, [..., out]; residual and bias may be empty: none. In the type of
// the residual, else of x.
torch::Tensor Product(const torch::Tensor& x, const ops::Projection& projection,
                      const torch::Tensor& residual);

// y += x weight', without a bias; y of the type of x or fp32, and on CUDA also a part of wider
// rows.
void AddProductTo(const torch::Tensor& y, const torch::Tensor& x,
                  const ops::Projection& projection);

// dx = dy weight, or added to dx, which may be a part of wider rows on CUDA.
void InputGradient(const torch::Tensor& dy, const ops::Projection& projection, bool add,
                   const torch::Tensor& dx);

// Adds dy' x to weight.grad(), or returns it where there is none to add to. Nothing of a frozen
// weight.
torch::Tensor WeightGradient(const ops::Projection& projection, const torch::Tensor& dy,
                             const torch::Tensor& x);
// The same of several weights of one input, as one product where weights, gradients and dy lie side
// by side.
std::vector<torch::Tensor> WeightGradients(const std::vector<torch::Tensor>& weights,
                                           const std::vector<torch::Tensor>& dy,
                                           const torch::Tensor& x);
// The same of a bias: the sum of the rows of dy.
torch::Tensor BiasGradient(const torch::Tensor& bias, const torch::Tensor& dy);

// Products of x with several weights as one, on accelerators where the weights lie side by side:
// parts of the rows of one result. Empty where that is not so.
std::vector<torch::Tensor> JoinedProducts(const torch::Tensor& x,
                                          const std::vector<torch::Tensor>& weights);
// Their backward pass, where `dy` lies side by side too and all or none of the weights are frozen:
// adds the weights' gradients and returns the input's, which is `to` with that added where `to` is
// defined. Undefined, having done nothing, where that is not so.
torch::Tensor JoinedGradient(const std::vector<torch::Tensor>& weights,
                             const std::vector<torch::Tensor>& dy, const torch::Tensor& x,
                             const torch::Tensor& to = {});

}  // namespace espalier::fused_ops
