// DecoderConfig: the shape of a decoder and nothing else. Built from a job's ModelSpec (preset and
// overrides) or from a Hugging Face config.json; both directions live in decoder_config.cc.
// Used by worker/model and worker/engine. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

// Frequency scaling of Llama 3 (rope_type "llama3").
struct RopeScalingConfig {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
};

struct DecoderConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  double rope_theta = 10000;
  std::optional<RopeScalingConfig> rope_scaling;
  double rms_norm_eps = 1e-5;
  bool tie_word_embeddings = true;
  bool attention_bias = false;  // on q, k, v (Qwen 2)
  bool qk_norm = false;         // RMSNorm per head on q and k (Qwen 3)
  int64_t sliding_window = 0;   // positions seen, the own one included; 0: all
  int64_t max_position_embeddings = 2048;
  double initializer_range = 0.02;
};

// From a spec with a preset and/or architecture fields (not `from`). `data_vocab_size` is taken
// when the spec gives no vocab_size; a smaller vocab_size than the data's is INVALID_ARGUMENT.
absl::StatusOr<DecoderConfig> DecoderConfigFromSpec(const v1::ModelSpec& spec,
                                                    int64_t data_vocab_size);

// Reads Hugging Face's config.json (llama, qwen2, qwen3, mistral families; both the old and the
// transformers-5 spelling of RoPE). An architecture this decoder cannot express is UNIMPLEMENTED.
absl::StatusOr<DecoderConfig> DecoderConfigFromJson(absl::string_view json);

// The inverse: a config.json with which transformers' AutoModelForCausalLM loads the weights.
std::string DecoderConfigToJson(const DecoderConfig& config);

}  // namespace espalier
