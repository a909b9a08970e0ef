// ConfigFamily: the Hugging Face model classes that the decoder stands in for, and which of them a
// DecoderConfig is written as. Used by decoder_config*.cc only. Plain data.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/formats/decoder_config.h"

namespace espalier {

// What transformers assumes for keys that config.json leaves out, and what the class can express.
struct ConfigFamily {
  absl::string_view model_type;    // "llama"
  absl::string_view architecture;  // "LlamaForCausalLM"
  int64_t kv_heads;                // 0: as many as heads
  int64_t head_dim;                // 0: hidden_size / heads
  int64_t max_position_embeddings;
  int64_t sliding_window;  // -1: the class has no window
  bool window_switch;      // the window counts only with use_sliding_window (Qwen)
};

// nullptr when the decoder does not know the model_type.
const ConfigFamily* FindFamily(absl::string_view model_type);

// The family that expresses every option of the config; INVALID_ARGUMENT names the combination
// that none does.
absl::StatusOr<const ConfigFamily*> FamilyOf(const DecoderConfig& config);

}  // namespace espalier
