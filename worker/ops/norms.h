// Norms of rows and their gradients, on any device: our kernels on the CPU and, of norms without a
// bias, on CUDA; LibTorch's operators elsewhere (generic_norms.cc). Used by fused_linear.cc, which
// makes products of what they give, and fused_ops.cc. Compute thread, or autograd's.
#pragma once

#include "worker/ops/operands.h"
#include "worker/tensor/torch.h"

namespace espalier::fused_ops {

// Whether a kernel of ours does it; else LibTorch's operators do.
bool HasNormKernel(const torch::Tensor& x, const ops::Norm& norm);

// x is contiguous; y as `type`: x's own, or a narrower one.
NormalRows NormalizedRows(const torch::Tensor& x, const ops::Norm& norm, torch::ScalarType type);
// The gradient of x with `other` added where that is defined; in `dx`, which may be dy, where that
// is given and there is a kernel.
NormGradients NormalizedRowsBackward(const torch::Tensor& x, const ops::Norm& norm,
                                     const torch::Tensor& statistics, const torch::Tensor& dy,
                                     const torch::Tensor& other, const torch::Tensor& dx);

}  // namespace espalier::fused_ops
