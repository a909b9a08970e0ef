// The operations of the decoder, differentiable, on any device: a fused implementation on the CPU
// and on CUDA (fused_*.cc) where it pays, LibTorch's operators (generic_*.cc) elsewhere; chosen by
// device and type of the input in ops.cc alone. Used by worker/ops, worker/model and
// worker/state/gguf_model.cc (frequencies). Compute thread only (forward), autograd's threads
// (backward). Shapes: B sequences, T positions, C width, H heads, K key/value heads, D head width,
// V ids.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/formats/decoder_config.h"
#include "worker/ops/causal_masks.h"
#include "worker/ops/operands.h"
#include "worker/ops/row_loss.h"
#include "worker/tensor/torch.h"

namespace espalier {

// What a position turns each pair of dimensions by, [D / 2] fp32, for sequences of so many
// positions; and what cosines and sines are multiplied with.
struct RopeFrequencies {
  torch::Tensor frequency;
  double scale = 1;
};
RopeFrequencies MakeRopeFrequencies(const DecoderConfig& config, int64_t positions);
// Angles as in Su et al. 2021, eq. 15, with the config's frequency scaling.
RopeTable MakeRopeTable(const DecoderConfig& config, int64_t positions, torch::Device device);
// Whether a table of so many positions serves sequences of exactly that length only.
bool RopeDependsOnLength(const DecoderConfig& config, int64_t positions);

namespace ops {

// x [..., in] -> [..., out].
torch::Tensor Linear(const torch::Tensor& x, const Projection& projection);

// Linear of Normalize(x, norm) by each projection, in the type of the weights, which
// are all transposed or none; their adapters drop alike. The normalised values are not kept for the
// backward pass where making them again is cheap.
Branches NormLinears(const torch::Tensor& x, const Norm& norm,
                     const std::vector<Projection>& projections);

// As `type`: x's own, or a narrower one.
torch::Tensor Normalize(const torch::Tensor& x, const Norm& norm, torch::ScalarType type);
// That plus `plus`, of its type and shape; perhaps rounded once.
torch::Tensor NormalizeAdd(const torch::Tensor& x, const Norm& norm, const torch::Tensor& plus);

// The parts [..., n_i] of the rows of x, which is no longer of use. Their gradients meet at once.
std::vector<torch::Tensor> Split(const torch::Tensor& x, const std::vector<int64_t>& columns);

// What a decoder, or a pass over rows that examples share, keeps of masks.
using Masks = c10::intrusive_ptr<CausalMasks>;

// Rotates the halves of each head of q and k by the angle of its position ("rotate half", the
// Hugging Face layout); v goes along, so that the gradients of the three can meet. Row t of the
// table belongs to position t, or row b T + t to that of sequence b. Without a table (undefined)
// nothing is turned. On CUDA, where q, k and v are parts of the same rows, q and k are overwritten.
Heads Rope(const Heads& x, const RopeTable& table);

// q [B, T, H, D], k and v [B, T, K, D] -> [B, T, H, D]; scale 1/sqrt(D), causal, each position sees
// the last `window` ones (0: all; kBothWays: also all after it). q may be shorter than k and v: its
// positions are their last ones. Holds no T x T tensor.
torch::Tensor CausalAttention(const torch::Tensor& q, const torch::Tensor& k,
                              const torch::Tensor& v, int64_t window, const Masks& masks);

// CausalAttention of Rope(x, table), where no more of what Rope makes is wanted.
torch::Tensor RotaryAttention(const Heads& x, const RopeTable& table, int64_t window,
                              const Masks& masks);

// residual + Linear of x, in the type of the residual; without one (undefined) that is Linear.
torch::Tensor LinearAdd(const torch::Tensor& x, const Projection& projection,
                        const torch::Tensor& residual);

// residual + Linear of silu(gate) * up (Shazeer 2020, eq. 6), which is not kept either.
torch::Tensor SwiGluLinearAdd(const torch::Tensor& gate, const torch::Tensor& up,
                              const Projection& projection, const torch::Tensor& residual);

// The same of g and u = Linear of x, whose weight has the rows of g before those of u; residual
// undefined: x.
torch::Tensor GatedLinearAdd(const torch::Tensor& x, const Projection& gate_up,
                             const Projection& projection, const torch::Tensor& residual);

// residual + Linear of gelu(x) (Hendrycks and Gimpel 2016, the approximation with tanh).
torch::Tensor GeluLinearAdd(const torch::Tensor& x, const Projection& projection,
                            const torch::Tensor& residual);

// ids [B, T] int64, table [V, C] -> [B, T, C].
torch::Tensor Embedding(const torch::Tensor& ids, const torch::Tensor& table);

// x [B, T, C] + rows `begin` to begin + T of table [P, C], whatever the sequence; or + its rows
// `places`, [B, T] int64.
torch::Tensor AddPositions(const torch::Tensor& x, const torch::Tensor& table, int64_t begin);
torch::Tensor AddPositions(const torch::Tensor& x, const torch::Tensor& table,
                           const torch::Tensor& places);

// The type of the residual stream of a decoder that computes in `type`.
torch::ScalarType ResidualType(torch::Device device, torch::ScalarType type);

// hidden [N, C], head [V, C], targets [N] (kIgnoredTarget: not counted) -> scalar sum of the rows'
// losses, fp32 (fp64 for fp64), in chunks of rows: no N x V tensor exists in either direction. The
// gradient is made in the forward pass; call this with gradients enabled only when backward
// follows. A frozen head costs no gradient of its own. `worked` is called after each chunk.
torch::Tensor LossSum(const torch::Tensor& hidden, const torch::Tensor& head,
                      const torch::Tensor& targets, const RowLoss& loss,
                      const std::function<void()>& worked = {});
// log p(target) of each row, of logits divided by `temperature`, without a gradient: [N].
torch::Tensor TargetLogProbabilities(const torch::Tensor& hidden, const torch::Tensor& head,
                                     const torch::Tensor& targets, double temperature = 1);

}  // namespace ops
}  // namespace espalier
