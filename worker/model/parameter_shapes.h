// The parameters of a decoder by name and shape, in flat order: the order in which the backward
// pass finishes their gradients, so that a prefix of the flat gradient is final while the rest is
// still being computed. Used by parameters.h, and through it for reading weights and for estimates
// of memory. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/formats/decoder_config.h"

namespace espalier {

// Of all architectures but GPT-2.
inline constexpr char kEmbeddingName[] = "model.embed_tokens.weight";
inline constexpr char kHeadName[] = "lm_head.weight";
std::string EmbeddingName(const DecoderConfig& config);

// Places of the backward pass, in its order: when it has gone by one, the gradients of the
// parameters there are final, whichever of them are trained.
enum class BackwardStage {
  kHead,         // head, or the table that is tied to it, and final norm
  kFeedForward,  // of a layer: down, up, gate and their norm
  kOutput,       // of a layer: the product after attention
  kAttention,    // of a layer: q, k, v and their norms
  kPositions,    // learned positions
  kEmbedding,    // an untied embedding
};

enum class ParameterRole { kMatrix, kBias, kNorm, kNormBias, kHead, kPositions, kEmbedding };

// What becomes of an embedding's gradient.
enum class EmbeddingGradient {
  kDense,      // of the whole table, as of any other parameter; a tied table also gets the head's
  kRowsApart,  // only the rows that a step has looked up: of an untied table
  kFrozen,     // there is none
};

struct ParameterShape {
  std::string name;  // "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  BackwardStage stage = BackwardStage::kHead;
  int64_t layer = 0;  // of the decoder; -1 outside of layers
  ParameterRole role = ParameterRole::kMatrix;
  bool decay = false;  // matrices are decayed, norms and biases are not
  double spread = 1;   // of initial values, as a multiple of initializer_range

  int64_t elements() const;
  bool is_norm() const;  // its weight or bias
  bool is_embedding() const { return role == ParameterRole::kEmbedding; }
  // Read in fp32 whatever type the decoder computes in: in bfloat16 a norm's weight near 1 would
  // move in steps of a hundredth.
  bool read_in_full() const;
};

// In flat order. A tied head has no entry of its own: the embedding stands in its place.
std::vector<ParameterShape> ParameterShapes(const DecoderConfig& config);

}  // namespace espalier
