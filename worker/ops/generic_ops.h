// The decoder's operations in LibTorch's own operators: any device, any floating-point type, in few
// launches, of which an accelerator pays each. Chosen where no kernel of ours applies; contracts
// and shapes are those of ops.h. Gradients of weights are added in place to weight.grad() when that
// is defined (the flat gradient), within the backward of the operation itself, so that they are
// final when it has run. Compute thread (forward), autograd's threads (backward). Used by
// fused_feed_forward.cc, norms.cc, generic_attention.cc, generic_loss.cc, ops.cc and products.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/ops/causal_masks.h"
#include "worker/ops/operand_bounds.h"
#include "worker/ops/operands.h"
#include "worker/ops/row_loss.h"
#include "worker/tensor/torch.h"

namespace espalier::generic_ops {

// The type in which sums and functions of x are computed: fp32 for 16-bit numbers.
inline torch::ScalarType SumType(const torch::Tensor& x) {
  return x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}
inline torch::Tensor Wide(const torch::Tensor& x) { return x.to(SumType(x)); }

// x weight' + residual + bias, as products.h has it.
torch::Tensor Product(const torch::Tensor& x, const ops::Projection& projection,
                      const torch::Tensor& residual);
// Adds dy' x to weight.grad(), or returns it where there is none to add to.
torch::Tensor WeightGradient(const torch::Tensor& weight, const torch::Tensor& dy,
                             const torch::Tensor& x);

// Norms and their gradients, as norms.h has them. Statistics: sqrt(C) rms of each row, [rows, 1],
// or the mean and 1 / deviation, [2, rows].
NormalRows Normalize(const torch::Tensor& x, const ops::Norm& norm, torch::ScalarType type);
NormGradients NormalizeBackward(const torch::Tensor& x, const ops::Norm& norm,
                                const torch::Tensor& statistics, const torch::Tensor& dy,
                                const torch::Tensor& other);

torch::Tensor Rope(const torch::Tensor& x, const RopeTable& table);
// Turns x [.., T, D] in place by the angles of its positions, or (-1) back. Where the table has
// those of several sequences, x has the sequences outermost.
void Turn(const torch::Tensor& x, const RopeTable& table, double direction);

// No more than most_score_bytes of scores exist at a time.
inline constexpr int64_t kMostScoreBytes = int64_t{1} << 28;
torch::Tensor CausalAttention(const torch::Tensor& q, const torch::Tensor& k,
                              const torch::Tensor& v, int64_t window,
                              const c10::intrusive_ptr<CausalMasks>& masks,
                              int64_t most_score_bytes = kMostScoreBytes);
torch::Tensor RotaryAttention(const ops::Heads& x, const RopeTable& table, int64_t window,
                              const c10::intrusive_ptr<CausalMasks>& masks,
                              int64_t most_score_bytes = kMostScoreBytes);

// silu(gate) * up, and the gradients of gate and up, side by side where that is not too large.
torch::Tensor SwiGlu(const torch::Tensor& gate, const torch::Tensor& up);
std::vector<torch::Tensor> SwiGluBackward(const torch::Tensor& gate, const torch::Tensor& up,
                                          const torch::Tensor& dy);

// gelu(x), and the gradient of x.
torch::Tensor Gelu(const torch::Tensor& x);
torch::Tensor GeluBackward(const torch::Tensor& x, const torch::Tensor& dy);

torch::Tensor Embedding(const torch::Tensor& ids, const torch::Tensor& table);
torch::Tensor AddPositions(const torch::Tensor& x, const torch::Tensor& table, int64_t begin);
torch::Tensor AddPositions(const torch::Tensor& x, const torch::Tensor& table,
                           const torch::Tensor& places);
torch::Tensor LossSum(const torch::Tensor& hidden, const torch::Tensor& head,
                      const torch::Tensor& targets, const RowLoss& loss,
                      const std::function<void()>& worked = {});
torch::Tensor TargetLogProbabilities(const torch::Tensor& hidden, const torch::Tensor& head,
                                     const torch::Tensor& targets);

}  // namespace espalier::generic_ops
