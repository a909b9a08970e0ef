// The decoder's operations as autograd functions around the kernels of worker/kernels. ops.cc
// chooses them for fp32 and bf16 tensors on the CPU, and for what the kernels of CUDA take;
// contracts and shapes are those of ops.h. Gradients of weights go straight into weight.grad() when
// that is defined (the flat gradient). Compute thread only; the kernels spread rows over OpenMP
// threads. Used by ops.cc and worker/memory/memory_advice.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/ops/operands.h"
#include "worker/ops/row_loss.h"
#include "worker/tensor/torch.h"

namespace espalier::fused_ops {

torch::Tensor Normalize(const torch::Tensor& x, const ops::Norm& norm, torch::ScalarType type);
torch::Tensor NormalizeAdd(const torch::Tensor& x, const ops::Norm& norm,
                           const torch::Tensor& plus);
std::vector<torch::Tensor> Split(const torch::Tensor& x, const std::vector<int64_t>& columns);
ops::Heads Rope(const ops::Heads& x, const RopeTable& table);
// `begins`: CausalMasks::begins, perhaps undefined.
torch::Tensor CausalAttention(const torch::Tensor& q, const torch::Tensor& k,
                              const torch::Tensor& v, int64_t window,
                              const torch::Tensor& begins = {});
// `product`: what the only projection comes to, without an adapter, where it was made before.
ops::Branches NormLinears(const torch::Tensor& x, const ops::Norm& norm,
                          const std::vector<ops::Projection>& projections,
                          const torch::Tensor& product = {});
torch::Tensor LinearAdd(const torch::Tensor& x, const ops::Projection& projection,
                        const torch::Tensor& residual);
// `activated`: silu(gate) * up, where it was made before.
torch::Tensor SwiGluLinearAdd(const torch::Tensor& gate, const torch::Tensor& up,
                              const ops::Projection& projection, const torch::Tensor& residual,
                              const torch::Tensor& activated = {});
torch::Tensor GeluLinearAdd(const torch::Tensor& x, const ops::Projection& projection,
                            const torch::Tensor& residual);
torch::Tensor Embedding(const torch::Tensor& ids, const torch::Tensor& table);

// The gradient is made in the forward pass, chunk by chunk, so that logits exist once and for one
// chunk only. With head.grad() defined, the head's gradient (for an upstream gradient of 1) is
// added to it in the forward pass already: call this with gradients enabled only when backward
// follows. Another upstream gradient is corrected in backward, at the price of a second pass.
// On CUDA cross-entropies alone (no RowLoss::function). With a function the head's gradient has
// memory of its own until backward.
torch::Tensor LossSum(const torch::Tensor& hidden, const torch::Tensor& head,
                      const torch::Tensor& targets, const RowLoss& loss,
                      const std::function<void()>& worked = {});

// On the CPU, of the logits that LossSum has there, so that a policy and its reference differ by
// their weights alone.
torch::Tensor TargetLogProbabilities(const torch::Tensor& hidden, const torch::Tensor& head,
                                     const torch::Tensor& targets);

// Rows of logits that LossSum holds at a time on the CPU, of `rows` in all.
int64_t LogitRows(int64_t rows, int64_t vocabulary);

}  // namespace espalier::fused_ops
