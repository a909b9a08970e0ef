// Norms of rows and their gradients, on any device: our kernels on the CPU and, of norms without a
// bias, on CUDA; LibTorch's operators elsewhere (generic_norms.cc). Used by fused_linear.cc, which
// makes products of what they give, and by generic_ops.h. Compute thread, or autograd's.
#pragma once

#include <torch/torch.h>

#include "worker/ops/operands.h"

namespace espalier {

// What a norm gives, and of each row what its gradients need: for norms.cc and generic_norms.cc to
// know.
struct NormalRows {
  torch::Tensor y, statistics;
};

// Of x, and of weight and bias: undefined when they were added to their grad() or none is wanted.
struct NormGradients {
  torch::Tensor x, weight, bias;
};

namespace fused_ops {

// x is contiguous; y as `type`: x's own, or a narrower one.
NormalRows NormalizedRows(const torch::Tensor& x, const ops::Norm& norm, torch::ScalarType type);
// The gradient of x with `other` added where that is defined; in `dx`, which may be dy, where that
// is given and there is a kernel.
NormGradients NormalizedRowsBackward(const torch::Tensor& x, const ops::Norm& norm,
                                     const torch::Tensor& statistics, const torch::Tensor& dy,
                                     const torch::Tensor& other, const torch::Tensor& dx);

}  // namespace fused_ops
}  // namespace espalier
