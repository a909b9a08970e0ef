// Decoder: the one language model of Espalier, driven by DecoderConfig: embedding, layers of
// RMSNorm, RoPE grouped-query attention and SwiGLU, final norm, head (Llama family).
// Used by worker/engine (training, evaluation) and by generation. Compute thread only.
#pragma once

#include <cstdint>
#include <functional>

#include <torch/torch.h>
#include "worker/model/decoder_config.h"
#include "worker/model/ops.h"
#include "worker/model/parameters.h"

namespace espalier {

class Decoder {
 public:
  // `parameters` must outlive the decoder and have been made for the same config.
  Decoder(const DecoderConfig& config, const Parameters& parameters);

  // ids, targets: [B, T] int64; targets of -100 do not count. Sum (not mean) over all positions of
  // the cross-entropy in nats: a scalar that can be differentiated. The logits of all positions
  // are never held at once.
  torch::Tensor LossSum(const torch::Tensor& ids, const torch::Tensor& targets) const;

  // Log-probability of each target, [B, T], in nats; 0 where the target is -100.
  torch::Tensor TargetLogProbabilities(const torch::Tensor& ids,
                                       const torch::Tensor& targets) const;

  // [B, T] -> [B, T, V].
  torch::Tensor Logits(const torch::Tensor& ids) const;

  // Called during the backward pass when every gradient of flat elements [0, end) is final for
  // this pass. Set for the last micro-batch of a step, empty otherwise.
  using GradientsFinal = std::function<void(int64_t end)>;
  void set_gradients_final(GradientsFinal callback) { gradients_final_ = std::move(callback); }

  const DecoderConfig& config() const { return config_; }

 private:
  struct Layer {
    torch::Tensor input_norm, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, o;
    torch::Tensor post_norm, gate, up, down;
    int64_t gradient_begin = 0;  // flat offset at which this layer's gradients start
    int64_t gradient_end = 0;
  };
  torch::Tensor Hidden(const torch::Tensor& ids) const;  // [B, T, C], after the final norm
  torch::Tensor Attention(const Layer& layer, const torch::Tensor& x) const;
  torch::Tensor FeedForward(const Layer& layer, const torch::Tensor& x) const;

  DecoderConfig config_;
  std::vector<Layer> layers_;
  torch::Tensor embedding_, final_norm_, head_;
  RopeTable rope_;
  GradientsFinal gradients_final_;
};

}  // namespace espalier
