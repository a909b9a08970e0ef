#include <algorithm>
#include <cstdint>
#include <string>

#include "worker/formats/config_json.h"
#include "worker/formats/decoder_config.h"
#include "worker/formats/json_fields.h"

namespace espalier {
namespace {

// All are gelu by its approximation with tanh.
constexpr const char* kActivations[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"};

absl::Status CheckOptions(JsonKeys& keys) {
  const std::string activation = keys.Text("activation_function", kActivations[0]);
  if (std::find(std::begin(kActivations), std::end(kActivations), activation) ==
      std::end(kActivations)) {
    return UnsupportedConfig(absl::StrCat("activation_function '", activation, "'"),
                             "gelu_new, gelu_pytorch_tanh, gelu_fast");
  }
  struct Option {
    const char* key;
    bool supported;
  };
  for (const Option& option :
       {Option{"scale_attn_weights", true}, Option{"scale_attn_by_inverse_layer_idx", false},
        Option{"add_cross_attention", false}}) {
    if (keys.Flag(option.key, option.supported) == option.supported) continue;
    return UnsupportedConfig(absl::StrCat(option.key, option.supported ? " false" : " true"),
                             option.supported ? "true" : "false");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadGpt2Config(JsonKeys& keys, DecoderConfig& config) {
  config.architecture = Architecture::kGpt2;
  for (const char* key : {"vocab_size", "n_embd", "n_layer", "n_head"}) keys.Require(key);
  config.vocab_size = keys.Integer("vocab_size", 0);
  config.hidden_size = keys.Integer("n_embd", 0);
  config.layers = keys.Integer("n_layer", 0);
  config.heads = std::max<int64_t>(keys.Integer("n_head", 0), 1);
  config.kv_heads = config.heads;
  config.head_dim = config.hidden_size / config.heads;
  // What overflows is out of bounds as it is.
  const int64_t inner = config.hidden_size > INT64_MAX / 4 || config.hidden_size < 0
                            ? config.hidden_size
                            : 4 * config.hidden_size;
  config.intermediate_size = keys.Find("n_inner") == nullptr ? inner : keys.Integer("n_inner", 0);
  config.max_position_embeddings = keys.Integer("n_positions", 1024);
  config.rms_norm_eps = keys.Real("layer_norm_epsilon", 1e-5);
  config.tie_word_embeddings = keys.Flag("tie_word_embeddings", true);
  return CheckOptions(keys);
}

void WriteGpt2Config(const DecoderConfig& config, nlohmann::json& json) {
  json["activation_function"] = kActivations[0];
  json["n_embd"] = config.hidden_size;
  json["n_layer"] = config.layers;
  json["n_head"] = config.heads;
  json["n_inner"] = config.intermediate_size == 4 * config.hidden_size
                        ? nlohmann::json(nullptr)
                        : nlohmann::json(config.intermediate_size);
  json["n_positions"] = config.max_position_embeddings;
  json["layer_norm_epsilon"] = config.rms_norm_eps;
  json["scale_attn_weights"] = true;
  json["scale_attn_by_inverse_layer_idx"] = false;
  json["add_cross_attention"] = false;
  for (const char* dropped : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) json[dropped] = 0.0;
}

}  // namespace espalier
