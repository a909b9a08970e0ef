// The decoder's operations in LibTorch's own operators: any device, any floating-point type. ops.cc
// chooses them where no fused kernel applies; contracts and shapes are those of ops.h. Gradients of
// weights are added in place to weight.grad() when that is defined (the flat gradient), within the
// backward of the operation itself, so that they are final when it has run. Compute thread
// (forward), autograd's threads (backward). Used by generic_attention.cc, generic_loss.cc and
// ops.cc.
#pragma once

#include <torch/torch.h>

#include <cstdint>

#include "worker/ops/operand_bounds.h"
#include "worker/ops/operands.h"
#include "worker/ops/row_loss.h"

namespace espalier::generic_ops {

// The type in which sums and functions of x are computed: fp32 for 16-bit numbers.
inline torch::ScalarType SumType(const torch::Tensor& x) {
  return x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}
inline torch::Tensor Wide(const torch::Tensor& x) { return x.to(SumType(x)); }

torch::Tensor Linear(const torch::Tensor& x, const ops::Projection& projection);
torch::Tensor RmsNorm(const torch::Tensor& x, const torch::Tensor& weight, double eps,
                      torch::ScalarType type);
torch::Tensor Rope(const torch::Tensor& x, const RopeTable& table);
// No more than most_score_bytes of scores exist at a time.
torch::Tensor CausalAttention(const torch::Tensor& q, const torch::Tensor& k,
                              const torch::Tensor& v, int64_t window,
                              int64_t most_score_bytes = kMostOperandBytes);
torch::Tensor SwiGlu(const torch::Tensor& gate, const torch::Tensor& up);
torch::Tensor Embedding(const torch::Tensor& ids, const torch::Tensor& table);
torch::Tensor LossSum(const torch::Tensor& hidden, const torch::Tensor& head,
                      const torch::Tensor& targets, const RowLoss& loss,
                      const std::function<void()>& worked = {});
torch::Tensor TargetLogProbabilities(const torch::Tensor& hidden, const torch::Tensor& head,
                                     const torch::Tensor& targets);

}  // namespace espalier::generic_ops
