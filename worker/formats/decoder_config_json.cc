#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/formats/config_json.h"
#include "worker/formats/decoder_config.h"
#include "worker/formats/json_fields.h"

namespace espalier {
namespace {

using Json = nlohmann::json;

constexpr std::pair<const char*, RopeScalingConfig::Kind> kRopeTypes[] = {
    {"llama3", RopeScalingConfig::Kind::kLlama3},
    {"linear", RopeScalingConfig::Kind::kLinear},
    {"dynamic", RopeScalingConfig::Kind::kDynamic},
    {"yarn", RopeScalingConfig::Kind::kYarn},
};

std::optional<RopeScalingConfig::Kind> KindOf(absl::string_view type) {
  for (const auto& [name, kind] : kRopeTypes) {
    if (type == name) return kind;
  }
  return std::nullopt;
}

void ReadScaling(JsonKeys& keys, RopeScalingConfig::Kind kind, DecoderConfig& config) {
  RopeScalingConfig& scaling = config.rope_scaling.emplace();
  scaling.kind = kind;
  keys.Require("factor");
  scaling.factor = keys.Real("factor", 1);
  if (kind == RopeScalingConfig::Kind::kLlama3) {
    keys.Require("low_freq_factor");
    keys.Require("high_freq_factor");
    scaling.low_freq_factor = keys.Real("low_freq_factor", 1);
    scaling.high_freq_factor = keys.Real("high_freq_factor", 4);
  }
  if (kind == RopeScalingConfig::Kind::kYarn) {
    if (keys.Find("attention_factor") != nullptr) {
      scaling.attention_factor = keys.Real("attention_factor", 1);
    }
    scaling.beta_fast = keys.Real("beta_fast", scaling.beta_fast);
    scaling.beta_slow = keys.Real("beta_slow", scaling.beta_slow);
    scaling.mscale = keys.Real("mscale", 0);
    scaling.mscale_all_dim = keys.Real("mscale_all_dim", 0);
    scaling.truncate = keys.Flag("truncate", true);
  }
  if (kind == RopeScalingConfig::Kind::kLlama3 || kind == RopeScalingConfig::Kind::kYarn) {
    scaling.original_max_position_embeddings =
        keys.Integer("original_max_position_embeddings", config.max_position_embeddings);
  }
}

// `rope` is transformers 5's rope_parameters, or transformers 4's rope_scaling.
absl::Status ReadRope(const Json& rope, absl::string_view name, DecoderConfig& config) {
  if (!rope.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: ", name, " is not an object"));
  }
  if (rope.contains("full_attention") || rope.contains("sliding_attention")) {
    return UnsupportedConfig(absl::StrCat(name, " per layer type"), "one setting for all layers");
  }
  JsonKeys keys(rope, "config.json", absl::StrCat(name, "."));
  config.rope_theta = keys.Real("rope_theta", config.rope_theta);
  if (const double part = keys.Real("partial_rotary_factor", 1); part != 1) {
    return UnsupportedConfig(absl::StrCat("partial_rotary_factor ", part), "1");
  }
  const std::string type = keys.Text("rope_type", keys.Text("type", "default"));
  if (type == "default") return keys.status();
  const std::optional<RopeScalingConfig::Kind> kind = KindOf(type);
  if (!kind) {
    return UnsupportedConfig(absl::StrCat("RoPE type '", type, "'"),
                             "default, linear, dynamic, yarn, llama3");
  }
  ReadScaling(keys, *kind, config);
  return keys.status();
}

absl::Status ReadLayerTypes(JsonKeys& keys, DecoderConfig& config) {
  const Json* types = keys.Find("layer_types");
  if (types == nullptr) {
    const int64_t full = keys.Integer("max_window_layers", 28);
    const int64_t layers = std::min(config.layers, kLayersMax + 1);  // more are refused later
    for (int64_t layer = 0; layer < layers; ++layer) {
      config.full_attention.push_back(layer < full);
    }
    return absl::OkStatus();
  }
  if (!types->is_array()) {
    return absl::InvalidArgumentError("config.json: layer_types is not an array");
  }
  for (const Json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return UnsupportedConfig(absl::StrCat("layer type ", type.dump().substr(0, 60)),
                               "full_attention, sliding_attention");
    }
    config.full_attention.push_back(type == "full_attention");
  }
  return absl::OkStatus();
}

absl::Status ReadWindow(const ConfigFamily& family, JsonKeys& keys, const Json& json,
                        DecoderConfig& config) {
  if (family.sliding_window < 0) return absl::OkStatus();
  // An explicit null means no window; only an absent key means the class's own.
  const int64_t absent = json.contains("sliding_window") ? 0 : family.sliding_window;
  if (!family.window_switch) {
    config.sliding_window = keys.Integer("sliding_window", absent);
    return absl::OkStatus();
  }
  if (!keys.Flag("use_sliding_window", false)) return absl::OkStatus();
  config.sliding_window = keys.Integer("sliding_window", absent);
  RETURN_IF_ERROR(ReadLayerTypes(keys, config));
  const auto& full = config.full_attention;
  if (std::all_of(full.begin(), full.end(), [](uint8_t f) { return f == 1; })) {
    config.sliding_window = 0;
  }
  if (config.sliding_window == 0 ||
      std::all_of(full.begin(), full.end(), [](uint8_t f) { return f == 0; })) {
    config.full_attention.clear();
  }
  return absl::OkStatus();
}

void ReadBiases(const ConfigFamily& family, JsonKeys& keys, DecoderConfig& config) {
  if (family.model_type == "qwen2") {
    config.attention_bias = true;
  } else if (family.model_type != "mistral") {
    config.attention_bias = keys.Flag("attention_bias", false);
    config.output_bias = config.attention_bias;
  }
  if (family.model_type == "llama") config.mlp_bias = keys.Flag("mlp_bias", false);
  config.qk_norm = family.model_type == "qwen3";
}

void ReadSizes(const ConfigFamily& family, JsonKeys& keys, const Json& json,
               DecoderConfig& config) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads"}) {
    keys.Require(key);
  }
  config.vocab_size = keys.Integer("vocab_size", 0);
  config.hidden_size = keys.Integer("hidden_size", 0);
  config.intermediate_size = keys.Integer("intermediate_size", 0);
  config.layers = keys.Integer("num_hidden_layers", 0);
  config.heads = std::max<int64_t>(keys.Integer("num_attention_heads", 0), 1);
  const bool class_kv = family.kv_heads > 0 && !json.contains("num_key_value_heads");
  config.kv_heads = keys.Integer("num_key_value_heads", class_kv ? family.kv_heads : config.heads);
  const bool class_dim = family.head_dim > 0 && !json.contains("head_dim");
  config.head_dim =
      keys.Integer("head_dim", class_dim ? family.head_dim : config.hidden_size / config.heads);
  config.max_position_embeddings =
      keys.Integer("max_position_embeddings", family.max_position_embeddings);
}

void ReadEnds(JsonKeys& keys, DecoderConfig& config) {
  const Json* eos = keys.Find("eos_token_id");
  if (eos == nullptr) return;
  for (const Json& id : eos->is_array() ? *eos : Json::array({*eos})) {
    if (!id.is_number_integer()) return keys.Wrong("eos_token_id", "an id or a list of ids");
    const auto end = id.get<int64_t>();
    if (!absl::c_linear_search(config.eos_token_ids, end)) config.eos_token_ids.push_back(end);
  }
}

void ReadTokenIds(JsonKeys& keys, DecoderConfig& config) {
  if (keys.Find("bos_token_id") != nullptr) config.bos_token_id = keys.Integer("bos_token_id", 0);
  ReadEnds(keys, config);
}

absl::StatusOr<const ConfigFamily*> ReadFamily(JsonKeys& keys) {
  const std::string type = keys.Text("model_type", "");
  RETURN_IF_ERROR(keys.status());
  const ConfigFamily* family = FindFamily(type);
  if (family == nullptr) {
    return UnsupportedConfig(
        type.empty() ? "a model without model_type" : absl::StrCat("model_type '", type, "'"),
        FamilyNames());
  }
  if (const std::string act = keys.Text("hidden_act", "silu"); act != "silu" && act != "swish") {
    return UnsupportedConfig(absl::StrCat("hidden_act '", act, "'"), "silu");
  }
  if (keys.Find("quantization_config") != nullptr) {
    return UnsupportedConfig("a quantized model (quantization_config)",
                             "weights in float32, bfloat16 or float16");
  }
  return family;
}

// Every family but gpt2.
absl::Status ReadLlama(const ConfigFamily& family, JsonKeys& keys, const Json& json,
                       DecoderConfig& config) {
  ReadSizes(family, keys, json, config);
  RETURN_IF_ERROR(keys.status());
  config.rms_norm_eps = keys.Real("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = keys.Flag("tie_word_embeddings", false);
  ReadBiases(family, keys, config);
  config.rope_theta = keys.Real("rope_theta", 10000);
  if (const double part = keys.Real("partial_rotary_factor", 1); part != 1) {
    return UnsupportedConfig(absl::StrCat("partial_rotary_factor ", part), "1");
  }
  // Where both are there, transformers goes by rope_scaling.
  if (const Json* scaling = keys.Find("rope_scaling"); scaling != nullptr && !scaling->empty()) {
    RETURN_IF_ERROR(ReadRope(*scaling, "rope_scaling", config));
  } else if (const Json* rope = keys.Find("rope_parameters")) {
    RETURN_IF_ERROR(ReadRope(*rope, "rope_parameters", config));
  }
  return ReadWindow(family, keys, json, config);
}

Json RopeToJson(const RopeScalingConfig& scaling) {
  Json json = {{"factor", scaling.factor}};
  for (const auto& [name, kind] : kRopeTypes) {
    if (kind == scaling.kind) json["rope_type"] = name;
  }
  if (scaling.kind == RopeScalingConfig::Kind::kLlama3) {
    json["low_freq_factor"] = scaling.low_freq_factor;
    json["high_freq_factor"] = scaling.high_freq_factor;
    json["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  }
  if (scaling.kind == RopeScalingConfig::Kind::kYarn) {
    json["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
    if (scaling.attention_factor) json["attention_factor"] = *scaling.attention_factor;
    json["beta_fast"] = scaling.beta_fast;
    json["beta_slow"] = scaling.beta_slow;
    if (scaling.mscale != 0) json["mscale"] = scaling.mscale;
    if (scaling.mscale_all_dim != 0) json["mscale_all_dim"] = scaling.mscale_all_dim;
    json["truncate"] = scaling.truncate;
  }
  return json;
}

// Both spellings: transformers 5 reads rope_parameters, transformers 4 rope_theta and rope_scaling.
void WriteRope(const DecoderConfig& config, Json& json) {
  json["rope_theta"] = config.rope_theta;
  Json parameters = {{"rope_type", "default"}};
  if (config.rope_scaling) {
    parameters = RopeToJson(*config.rope_scaling);
    json["rope_scaling"] = parameters;
  }
  parameters["rope_theta"] = config.rope_theta;
  json["rope_parameters"] = parameters;
}

void WriteWindow(const ConfigFamily& family, const DecoderConfig& config, Json& json) {
  if (family.sliding_window < 0) return;
  const bool window = config.sliding_window > 0;
  json["sliding_window"] = window ? Json(config.sliding_window) : Json(nullptr);
  if (!family.window_switch) return;
  json["use_sliding_window"] = window;
  Json types = Json::array();
  int64_t full = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const bool sliding = config.Window(layer) > 0;
    types.push_back(sliding ? "sliding_attention" : "full_attention");
    full += sliding ? 0 : 1;
  }
  json["layer_types"] = types;
  json["max_window_layers"] = full;  // what transformers before layer_types goes by
}

void WriteLlama(const ConfigFamily& family, const DecoderConfig& config, Json& json) {
  json["hidden_act"] = "silu";
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.layers;
  json["num_attention_heads"] = config.heads;
  json["num_key_value_heads"] = config.kv_heads;
  json["head_dim"] = config.head_dim;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["attention_dropout"] = 0.0;
  if (family.model_type == "llama" || family.model_type == "qwen3") {
    json["attention_bias"] = config.attention_bias;
  }
  if (family.model_type == "llama") json["mlp_bias"] = config.mlp_bias;
  WriteRope(config, json);
  WriteWindow(family, config, json);
}

void WriteTokenIds(const DecoderConfig& config, Json& json) {
  json["bos_token_id"] = config.bos_token_id ? Json(*config.bos_token_id) : Json(nullptr);
  json["pad_token_id"] = nullptr;
  const auto& eos = config.eos_token_ids;
  json["eos_token_id"] = eos.empty() ? Json(nullptr) : eos.size() == 1 ? Json(eos[0]) : Json(eos);
}

}  // namespace

absl::StatusOr<DecoderConfig> DecoderConfigFromJson(absl::string_view text) {
  const absl::StatusOr<Json> parsed = ParseJsonObject(text);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: ", parsed.status().message(), "; is the file whole?"));
  }
  const Json& json = *parsed;
  JsonKeys keys(json, "config.json");
  ASSIGN_OR_RETURN(const ConfigFamily* family, ReadFamily(keys));
  DecoderConfig config;
  if (family->model_type == "gpt2") {
    RETURN_IF_ERROR(ReadGpt2Config(keys, config));
  } else if (family->model_type == "trm") {
    RETURN_IF_ERROR(ReadTrmConfig(keys, config));
  } else {
    RETURN_IF_ERROR(ReadLlama(*family, keys, json, config));
  }
  config.initializer_range = keys.Real("initializer_range", 0.02);
  ReadTokenIds(keys, config);
  RETURN_IF_ERROR(keys.status());
  RETURN_IF_ERROR(ValidateDecoderConfig(config));
  return config;
}

absl::Status AddGenerationConfig(absl::string_view text, DecoderConfig& config) {
  const absl::StatusOr<Json> parsed = ParseJsonObject(text);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "generation_config.json: ", parsed.status().message(), "; is the file whole?"));
  }
  JsonKeys keys(*parsed, "generation_config.json");
  ReadEnds(keys, config);
  return keys.status();
}

std::string DecoderConfigToJson(const DecoderConfig& config) {
  const ConfigFamily& family = **FamilyOf(config);
  Json json;
  json["architectures"] = Json::array({std::string(family.architecture)});
  json["model_type"] = std::string(family.model_type);
  json["dtype"] = "float32";
  json["vocab_size"] = config.vocab_size;
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["use_cache"] = true;
  if (config.architecture == Architecture::kGpt2) {
    WriteGpt2Config(config, json);
  } else if (config.architecture == Architecture::kTrm) {
    WriteTrmConfig(config, json);
  } else {
    WriteLlama(family, config, json);
  }
  WriteTokenIds(config, json);
  return json.dump(2) + "\n";
}

std::string ArchitectureJson(DecoderConfig config) {
  config.bos_token_id.reset();
  config.eos_token_ids.clear();
  return DecoderConfigToJson(config);
}

}  // namespace espalier
