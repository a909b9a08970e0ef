// Decoder: the one language model of Espalier, driven by DecoderConfig: embedding, layers of
// attention and feed-forward, each behind a norm (Architecture says how they are built), final
// norm, head. Used by self_check.cc, and by worker/generation, worker/rollout,
// worker/task and worker/open_model.h. Compute thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "worker/formats/decoder_config.h"
#include "worker/model/decoder_layer.h"
#include "worker/model/key_value_cache.h"
#include "worker/model/model.h"
#include "worker/model/parameters.h"
#include "worker/ops/ops.h"
#include "worker/tensor/torch.h"

namespace espalier {

// Failures of LibTorch, ids outside the vocabulary and positions beyond those that are learned are
// exceptions: call within CatchTorch.
class Decoder final : public Model {
 public:
  // `parameters` must outlive the decoder and have been made for the same config.
  Decoder(const DecoderConfig& config, const Parameters& parameters);

  // ids [B, T], targets [B, U] int64: of the last U of the T positions, so that none before them
  // costs a product with the head; targets of kIgnoredTarget do not count. Sum (not mean) over
  // these positions, which are the rows of `loss`, of the loss in nats: a scalar that can be
  // differentiated. The logits of all positions are never held at once.
  torch::Tensor LossSum(const torch::Tensor& ids, const torch::Tensor& targets,
                        const RowLoss& loss = {}, const PassInputs& inputs = {}) const;

  // Log-probability of each target, [B, U], in nats, of logits divided by `temperature`; 0 where it
  // is kIgnoredTarget. Without a gradient.
  torch::Tensor TargetLogProbabilities(const torch::Tensor& ids, const torch::Tensor& targets,
                                       double temperature = 1, const PassInputs& inputs = {}) const;

  // [B, T] -> [B, T, V].
  torch::Tensor Logits(const torch::Tensor& ids) const;

  // For NextLogits; RESOURCE_EXHAUSTED as KeyValueCache::CheckSize says.
  absl::StatusOr<KeyValueCache> MakeCache(const KeyValueCache::Size& size) const;
  // ids [T] are the positions that the cache was told to begin with, which they join: logits after
  // the last one of a prompt, [1, V], or after each of a step, [T, V]. On the CPU, in fp32 and
  // bf16, those of a step have the same bits whatever other rows are in it.
  torch::Tensor NextLogits(const torch::Tensor& ids, KeyValueCache& cache) const;
  // The same without logits.
  void Keep(const torch::Tensor& ids, KeyValueCache& cache) const;

  void set_recompute(std::vector<bool> layers) override { recompute_ = std::move(layers); }
  // Undefined where positions are learned.
  const RopeTable& rope() const override { return rope_; }
  const DecoderConfig& config() const override { return config_; }
  torch::Device device() const override { return embedding_.device(); }

 private:
  // What a layer sees besides its input.
  struct Context {
    RopeTable rope;  // of the positions of the input
    KeyValueCache* cache = nullptr;
    PassInputs inputs;
    size_t layer = 0;
    ops::Masks masks;
  };
  // After the final norm.
  torch::Tensor Hidden(const torch::Tensor& ids, const PassInputs& inputs = {}) const;
  // The same of ids [T] that a cache was told of, [1, T, C]; not normalised.
  torch::Tensor KeptHidden(const torch::Tensor& ids, KeyValueCache& cache) const;
  torch::Tensor KeptOrRecomputed(const torch::Tensor& x, const Context& context) const;
  torch::Tensor RunLayer(const torch::Tensor& x, const Context& context) const;
  // From the products of a layer's input.
  ops::Heads HeadsOf(const DecoderLayer& layer, std::vector<torch::Tensor> products) const;
  // x and what the block adds to it.
  torch::Tensor Attention(const DecoderLayer& layer, const torch::Tensor& x,
                          const Context& context) const;
  torch::Tensor FeedForward(const DecoderLayer& layer, const torch::Tensor& x,
                            const Context& context) const;
  // The residual stream and what `add` adds to its argument. A block's last product adds the stream
  // itself, unless dropout comes between the two.
  torch::Tensor WithDropout(const torch::Tensor& residual, const Context& context, int64_t site,
                            const std::function<torch::Tensor(const torch::Tensor&)>& add) const;
  // With what the pass drops of the input of their adapters, or without these; `place` is that of
  // the input in a layer.
  static std::vector<ops::Projection> Dropping(std::vector<ops::Projection> projections,
                                               const Context& context, int64_t place);
  // The residual stream before the first layer. `places`: SharedRows::Positions, where rows are
  // shared.
  torch::Tensor Input(const torch::Tensor& ids, const PassInputs& inputs,
                      const torch::Tensor& places) const;
  torch::Tensor KeptInput(const torch::Tensor& ids, const KeyValueCache& cache) const;
  RopeTable KeptRope(const KeyValueCache& cache) const;
  void CheckPositions(int64_t end) const;
  RopeTable RopeOf(int64_t begin, int64_t positions) const;
  RopeTable SharedRope(const SharedRows& shared, const torch::Tensor& places) const;
  // Has gradients_final called with `end` when the backward pass has come to `input`.
  void TellWhenFinal(const torch::Tensor& input, int64_t end, const PassInputs& inputs) const;

  DecoderConfig config_;
  std::vector<DecoderLayer> layers_;
  ops::Norm final_norm_;
  torch::Tensor embedding_, head_;
  torch::Tensor positions_;  // learned; undefined: none
  int64_t head_end_ = 0;     // flat offset up to which gradients are final after the head
  int64_t trained_elements_ = 0;
  bool table_with_head_ = false;  // one gradient for both, dense
  mutable RopeTable rope_;        // grows with the longest sequence seen
  ops::Masks masks_ = c10::make_intrusive<CausalMasks>();
  std::vector<bool> recompute_;  // empty: none
};

// The model of a job whose architecture is a decoder's, which the job's task has made sure of.
const Decoder& DecoderOf(const Model& model);

}  // namespace espalier
