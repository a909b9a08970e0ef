// DecoderLayer: the leaves that one layer of a decoder computes with, each in its place, whatever
// the architecture. Used by decoder.h. Compute thread.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/formats/decoder_config.h"
#include "worker/model/parameters.h"
#include "worker/ops/operands.h"
#include "worker/tensor/torch.h"

namespace espalier {

struct DecoderLayer {
  ops::Norm input_norm, post_norm;
  ops::Norm q_norm, k_norm;          // of each head; undefined: none
  std::vector<ops::Projection> qkv;  // q, k and v, or one that gives them side by side
  ops::Projection o;
  std::vector<ops::Projection> inner;  // gate and up of SwiGLU, or the one before GELU
  ops::Projection down;
  std::vector<torch::Tensor> leaves;  // all of these
  int64_t window = 0;                 // 0: all positions
  // Flat offsets up to which gradients are final after a BackwardStage.
  int64_t feed_forward_end = 0;
  int64_t output_end = 0;
  int64_t attention_end = 0;
};

// All layers; `parameters` must have been made for the config.
std::vector<DecoderLayer> DecoderLayers(const DecoderConfig& config, const Parameters& parameters);
// Flat offset up to which gradients are final after the head.
int64_t HeadEnd(const Parameters& parameters);
// The norm before the head.
ops::Norm FinalNorm(const DecoderConfig& config, const Parameters& parameters);

}  // namespace espalier
