// Decoder: the one language model of Espalier, driven by DecoderConfig: embedding, layers of
// RMSNorm, RoPE grouped-query attention and SwiGLU, final norm, head (Llama family).
// Used by worker/train (training, evaluation) and by generation. Compute thread only.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "worker/formats/decoder_config.h"
#include "worker/model/parameters.h"
#include "worker/ops/dropout.h"
#include "worker/ops/ops.h"

namespace espalier {

// Keys and values of the positions that a decoder has already seen. Made by the caller, filled by
// Decoder::NextLogits; belongs to one batch of sequences.
struct KeyValueCache {
  std::vector<torch::Tensor> keys;  // per layer [B, capacity, K, D], after RoPE
  std::vector<torch::Tensor> values;
  int64_t length = 0;    // positions held
  int64_t capacity = 0;  // positions to make room for; grows when that is not enough
};

// Failures of LibTorch, and ids outside the vocabulary, are exceptions: call within CatchTorch.
class Decoder {
 public:
  // `parameters` must outlive the decoder and have been made for the same config.
  Decoder(const DecoderConfig& config, const Parameters& parameters);

  // ids, targets: [B, T] int64; targets of -100 do not count. Sum (not mean) over all positions of
  // the cross-entropy in nats: a scalar that can be differentiated. The logits of all positions
  // are never held at once. `dropout` is for training: it acts on what each layer adds to the
  // residual stream.
  torch::Tensor LossSum(const torch::Tensor& ids, const torch::Tensor& targets,
                        const DropoutKeys& dropout = {}) const;

  // Log-probability of each target, [B, T], in nats; 0 where the target is -100.
  torch::Tensor TargetLogProbabilities(const torch::Tensor& ids,
                                       const torch::Tensor& targets) const;

  // [B, T] -> [B, T, V].
  torch::Tensor Logits(const torch::Tensor& ids) const;

  // ids [B, T] follow the positions in `cache`, which they join: logits after the last one, [B, V].
  torch::Tensor NextLogits(const torch::Tensor& ids, KeyValueCache& cache) const;

  // Rows of the embedding to look ids up in, instead of the table: fp32 leaves whose gradient is
  // apart from the table's, which is then the head's alone where the two are tied.
  struct Lookup {
    torch::Tensor rows;    // [rows, C] with a grad() to add to; undefined: the table
    torch::Tensor row_of;  // [V] int64: the row of each id that is looked up
  };
  void set_lookup(Lookup lookup) { lookup_ = std::move(lookup); }

  // Called during the backward pass when every gradient of flat elements [0, end) is final for
  // this pass, with ends that never fall: after the head and the final norm, within and after
  // each layer, and after the embedding (end = all). Of a tied table without a Lookup nothing is
  // final before that. On CUDA the work is queued, not done. Read by LossSum: set for the last
  // micro-batch of a step, empty otherwise.
  using GradientsFinal = std::function<void(int64_t end)>;
  void set_gradients_final(GradientsFinal callback) { gradients_final_ = std::move(callback); }

  // Layers that are computed again in the backward pass instead of keeping their intermediate
  // values (recompute.h): one flag per layer. Changes memory and time, not a bit of the result.
  void set_recompute(std::vector<bool> layers) { recompute_ = std::move(layers); }

  // The angles that passes read besides parameters and arguments; replaced by a longer one when a
  // longer sequence comes.
  const RopeTable& rope() const { return rope_; }

  const DecoderConfig& config() const { return config_; }
  torch::Device device() const { return embedding_.device(); }

 private:
  struct Projection {
    torch::Tensor weight, bias;  // bias undefined: none
  };
  struct Layer {
    torch::Tensor input_norm, q_norm, k_norm, post_norm;  // q_norm, k_norm undefined: none
    Projection q, k, v, o, gate, up, down;
    std::vector<torch::Tensor> leaves;  // all of these
    int64_t window = 0;
    // Flat offsets at which the gradients of the second block, of that and the first block's last
    // product, and of the layer end.
    int64_t feed_forward_end = 0;
    int64_t output_end = 0;
    int64_t gradient_end = 0;
  };
  // What a layer sees besides its input.
  struct Context {
    RopeTable rope;  // of the positions of the input
    KeyValueCache* cache = nullptr;
    DropoutKeys dropout;
    size_t layer = 0;
  };
  // After the final norm.
  torch::Tensor Hidden(const torch::Tensor& ids, KeyValueCache* cache,
                       const DropoutKeys& dropout = {}) const;
  torch::Tensor KeptOrRecomputed(const torch::Tensor& x, const Context& context) const;
  torch::Tensor RunLayer(const torch::Tensor& x, const Context& context) const;
  // x and what the block adds to it.
  torch::Tensor Attention(const Layer& layer, const torch::Tensor& x, const Context& context) const;
  torch::Tensor FeedForward(const Layer& layer, const torch::Tensor& x,
                            const Context& context) const;
  // The residual stream and what `add` adds to its argument. A block's last product adds the stream
  // itself, unless dropout comes between the two.
  torch::Tensor WithDropout(const torch::Tensor& residual, const Context& context, int64_t site,
                            const std::function<torch::Tensor(const torch::Tensor&)>& add) const;
  torch::Tensor Embedded(const torch::Tensor& ids) const;
  RopeTable RopeOf(int64_t begin, int64_t positions) const;
  void Announce(const torch::Tensor& input, int64_t end) const;

  DecoderConfig config_;
  std::vector<Layer> layers_;
  torch::Tensor embedding_, final_norm_, head_;
  int64_t head_end_ = 0;  // flat offset at which the gradients of head and final norm end
  int64_t elements_ = 0;
  Lookup lookup_;
  mutable RopeTable rope_;  // grows with the longest sequence seen
  GradientsFinal gradients_final_;
  std::vector<bool> recompute_;  // empty: none
};

}  // namespace espalier
