// The parameters of a decoder by name and shape, in flat order: the order in which the backward
// pass finishes their gradients, so that a prefix of the flat gradient is final while the rest is
// still being computed. Used by parameters.h, and through it for reading weights and for estimates
// of memory. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/formats/decoder_config.h"
#include "worker/formats/lora_config.h"

namespace espalier {

// Of llama.
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

enum class ParameterRole {
  kMatrix,
  kBias,
  kNorm,
  kNormBias,
  kHead,
  kPositions,
  kEmbedding,
  kAdapterA,  // [rank, in]
  kAdapterB,  // [out, rank]
  kState,     // what states of a recursive model begin as: drawn once, never learned or decayed
};

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
  int64_t layer = 0;  // of the model; -1 outside of layers
  ParameterRole role = ParameterRole::kMatrix;
  bool decay = false;  // matrices are decayed, norms and biases are not
  double spread = 1;   // of initial values, as a multiple of initializer_range
  // They are of a normal distribution without what lies beyond twice its width, of that deviation.
  bool truncated = false;
  double initial = 0;  // what a bias begins as

  int64_t elements() const;
  bool is_norm() const;  // its weight or bias
  bool is_embedding() const { return role == ParameterRole::kEmbedding; }
  bool is_adapter() const {
    return role == ParameterRole::kAdapterA || role == ParameterRole::kAdapterB;
  }
  // Read in fp32 whatever type the decoder computes in: in bfloat16 a norm's weight near 1 would
  // move in steps of a hundredth.
  bool read_in_full() const;
};

// In flat order. A tied head has no entry of its own: the embedding stands in its place.
std::vector<ParameterShape> ParameterShapes(const DecoderConfig& config);
// With adapters, under PEFT's names, each in the stage of its projection.
std::vector<ParameterShape> ParameterShapes(const DecoderConfig& config,
                                            const std::optional<LoraConfig>& lora);
// Those of the projection of that name ("model.layers.0.mlp.up_proj").
std::string AdapterName(absl::string_view projection, ParameterRole role);
// INVALID_ARGUMENT names a target that is no projection of the model, and those that are. PEFT's
// lists may be of several models' names (["q_proj", "query_key_value"]): for kSome one is enough.
enum class LoraTargetsFound { kAll, kSome };
absl::Status CheckLoraTargets(const DecoderConfig& config, const LoraConfig& lora,
                              LoraTargetsFound wanted = LoraTargetsFound::kAll);
// Last words of the names of the projections that have adapters, sorted.
std::vector<std::string> LoraTargets(const DecoderConfig& config, const LoraConfig& lora);

}  // namespace espalier
