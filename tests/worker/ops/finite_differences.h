// Whether the gradients of a function are those that central differences show, in double precision.
// Used by generic_ops_test.cc, generic_attention_test.cc and adapters_test.cc. One thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "worker/tensor/torch.h"

namespace espalier {

using Inputs = std::vector<torch::Tensor>;
using Function = std::function<torch::Tensor(const Inputs&)>;

inline torch::Tensor Random(std::vector<int64_t> shape) {
  return torch::randn(shape, torch::kDouble);
}

inline double WeightedSum(const Function& function, const Inputs& inputs,
                          const torch::Tensor& weights) {
  torch::NoGradGuard no_grad;
  return (function(inputs) * weights).sum().item<double>();
}

// Central differences of sum(weights * function(inputs)) by every element of every input.
inline void ExpectGradients(const Function& function, const Inputs& inputs) {
  for (const torch::Tensor& input : inputs) input.set_requires_grad(true);
  const torch::Tensor out = function(inputs);
  const torch::Tensor weights = torch::randn_like(out);
  const auto gradients = torch::autograd::grad({out}, inputs, {weights});
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const torch::Tensor flat = inputs[i].detach().view(-1), gradient = gradients[i].reshape(-1);
    for (int64_t j = 0; j < flat.numel(); ++j) {
      const double value = flat[j].item<double>();
      flat[j] = value + kStep;
      const double above = WeightedSum(function, inputs, weights);
      flat[j] = value - kStep;
      const double below = WeightedSum(function, inputs, weights);
      flat[j] = value;
      // Of its size: where a row of a norm is near 0 differences are as wrong as gradients are
      // large.
      const double expected = (above - below) / (2 * kStep);
      EXPECT_NEAR(gradient[j].item<double>(), expected, 1e-6 * std::max(1.0, std::abs(expected)))
          << "input " << i << ", element " << j;
    }
  }
}

}  // namespace espalier
