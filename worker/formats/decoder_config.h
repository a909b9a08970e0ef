// DecoderConfig: the shape of a decoder and nothing else, and the Hugging Face class it is written
// as. Built from a job's ModelSpec (preset and overrides: decoder_config.cc) or from a Hugging Face
// config.json, and written as one (decoder_config_json.cc, gpt2_config_json.cc,
// trm_config_json.cc).
// Used by worker/ops (scaling of RoPE), worker/model, worker/memory, worker/state and
// worker/job_inputs.h. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "espalier/v1/job.pb.h"
#include "worker/formats/recursion_config.h"

namespace espalier {

// Scaling of the rotary frequencies, by rope_type.
struct RopeScalingConfig {
  enum class Kind {
    kLlama3,   // see v1::RopeScaling
    kLinear,   // every frequency is divided by factor
    kDynamic,  // the base grows with sequences beyond max_position_embeddings
    kYarn      // Peng et al. 2023: long wavelengths are divided by factor, and cosines are scaled
  };
  Kind kind = Kind::kLlama3;
  double factor = 1;
  double low_freq_factor = 1;                       // kLlama3
  double high_freq_factor = 4;                      // kLlama3
  int64_t original_max_position_embeddings = 8192;  // kLlama3, kYarn
  // kYarn. attention_factor multiplies cosines and sines; absent: from factor and the mscales.
  std::optional<double> attention_factor;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 0;
  double mscale_all_dim = 0;
  bool truncate = true;
  friend bool operator==(const RopeScalingConfig&, const RopeScalingConfig&) = default;
};

// How a layer is built.
enum class Architecture {
  // RMSNorm, rotary positions, SwiGLU, and what the options below add (Llama, Mistral, Qwen).
  kLlama,
  // LayerNorm, learned positions, one weight of q, k and v, GELU, biases on all (GPT-2). None of
  // the
  // options of rotary positions, biases, norms of heads and windows; as many key/value heads as
  // heads.
  kGpt2,
  // A tiny recursive model: RMSNorm without a weight behind each block, SwiGLU, an untied head; the
  // rest is in `recursion`. None of the options of biases, norms of heads, windows and scaling.
  kTrm,
};

struct DecoderConfig {
  Architecture architecture = Architecture::kLlama;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  double rope_theta = 10000;
  std::optional<RopeScalingConfig> rope_scaling;
  double rms_norm_eps = 1e-5;  // of LayerNorm too
  bool tie_word_embeddings = true;
  bool attention_bias = false;  // on q, k, v (Qwen 2)
  bool output_bias = false;     // on o as well (Llama with attention_bias)
  bool mlp_bias = false;        // on gate, up, down
  bool qk_norm = false;         // RMSNorm per head on q and k (Qwen 3)
  int64_t sliding_window = 0;   // positions seen, the own one included; 0: all
  // Per layer, 1: the layer sees all positions in spite of sliding_window. Empty: none does.
  std::vector<uint8_t> full_attention;
  int64_t max_position_embeddings = 2048;
  double initializer_range = 0.02;
  std::optional<RecursionConfig>
      recursion;  // of kTrm, which is made for the longest sequence alone
  // For generation: where a text begins, which ids end it.
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;

  // Positions that layer `layer` (from 0) sees; 0: all.
  int64_t Window(int64_t layer) const {
    return full_attention.empty() || full_attention[layer] == 0 ? sliding_window : 0;
  }
  friend bool operator==(const DecoderConfig&, const DecoderConfig&) = default;
};

// A Hugging Face model class that the decoder stands in for: what transformers assumes for keys
// that config.json leaves out, and what the class can express.
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
// All of them: "llama, mistral, ...".
std::string FamilyNames();

// The family that expresses every option of the config; INVALID_ARGUMENT names the combination
// that none does.
absl::StatusOr<const ConfigFamily*> FamilyOf(const DecoderConfig& config);

// Whether the numbers describe a decoder that can be built and that config.json can express;
// INVALID_ARGUMENT names the field, its value and what is allowed.
absl::Status ValidateDecoderConfig(const DecoderConfig& config);

// From a spec with a preset and/or architecture fields (not `from`). `data_vocab_size` (0: no data)
// is taken when neither the spec nor the preset gives a vocab_size; a smaller vocab_size than the
// data's is INVALID_ARGUMENT.
absl::StatusOr<DecoderConfig> DecoderConfigFromSpec(const v1::ModelSpec& spec,
                                                    int64_t data_vocab_size);

// Reads Hugging Face's config.json (llama, mistral, qwen2, qwen3 and gpt2; both the old and the
// transformers-5 spelling of RoPE). An architecture or option this decoder cannot express is
// UNIMPLEMENTED, with its name and what is supported; keys that do not change the mathematics are
// ignored.
absl::StatusOr<DecoderConfig> DecoderConfigFromJson(absl::string_view json);
// Adds the ids that end an answer by a generation_config.json, which often has more of them: that
// of an instructed Llama 3 ends turns. INVALID_ARGUMENT for a file that is none.
absl::Status AddGenerationConfig(absl::string_view json, DecoderConfig& config);

// The inverse: a config.json with which transformers' AutoModelForCausalLM loads the weights. The
// family follows from the options (README.md has the table). The config must be valid.
std::string DecoderConfigToJson(const DecoderConfig& config);
// The same without what is asked for in generation alone: equal for models that compute the same.
std::string ArchitectureJson(DecoderConfig config);

}  // namespace espalier
