// Shapes of decoders from job specs and from config.json, and back.
#include "worker/formats/decoder_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace espalier {
namespace {

using Json = nlohmann::json;

v1::ModelSpec Preset(const std::string& name) {
  v1::ModelSpec spec;
  spec.set_preset(name);
  return spec;
}

TEST(DecoderConfigFromSpec, PresetsHaveTheirShapes) {
  struct Case {
    const char* name;
    int64_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocab;
    bool tied;
  };
  for (const Case& c : {Case{"nano", 3, 128, 4, 4, 32, 344, 257, true},
                        Case{"17m", 6, 384, 6, 6, 64, 1024, 257, true},
                        Case{"124m", 12, 768, 12, 12, 64, 2048, 257, true},
                        Case{"1b", 22, 2048, 16, 4, 128, 5504, 32000, false},
                        Case{"gpt2", 12, 768, 12, 12, 64, 3072, 50257, true}}) {
    const auto config = DecoderConfigFromSpec(Preset(c.name), 257);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->layers, c.layers) << c.name;
    EXPECT_EQ(config->hidden_size, c.hidden) << c.name;
    EXPECT_EQ(config->heads, c.heads) << c.name;
    EXPECT_EQ(config->kv_heads, c.kv_heads) << c.name;
    EXPECT_EQ(config->head_dim, c.head_dim) << c.name;
    EXPECT_EQ(config->intermediate_size, c.intermediate) << c.name;
    EXPECT_EQ(config->vocab_size, c.vocab) << c.name;
    EXPECT_EQ(config->tie_word_embeddings, c.tied) << c.name;
  }
}

TEST(DecoderConfigFromSpec, FieldsOverrideThePreset) {
  v1::ModelSpec spec = Preset("1b");
  spec.set_num_hidden_layers(2);
  spec.set_sliding_window(512);
  spec.set_num_attention_heads(8);
  spec.mutable_rope_scaling()->set_factor(8);
  spec.mutable_rope_scaling()->set_original_max_position_embeddings(1024);
  const auto config = DecoderConfigFromSpec(spec, 0);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers, 2);
  EXPECT_EQ(config->sliding_window, 512);
  EXPECT_EQ(config->kv_heads, 8);  // follows the heads that were given
  EXPECT_EQ(config->head_dim, 256);
  EXPECT_EQ(config->rope_theta, 1e6);
  EXPECT_EQ(config->rope_scaling->factor, 8);
  EXPECT_EQ(config->rope_scaling->high_freq_factor, 4);
}

TEST(DecoderConfigFromSpec, BadSpecsAreRefusedWithWhatIsWrong) {
  struct Case {
    const char* name;
    std::function<void(v1::ModelSpec&)> change;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"unknown preset", [](auto& s) { s.set_preset("2b"); }, "allowed: nano, 17m, 124m, 1b, gpt2"},
      {"nothing given", [](auto& s) { s.Clear(); }, "model.hidden_size is missing"},
      {"folder too", [](auto& s) { s.set_from("x"); }, "do not apply"},
      {"kv heads", [](auto& s) { s.set_num_key_value_heads(3); }, "must divide"},
      {"odd head", [](auto& s) { s.set_head_dim(31); }, "must be even"},
      {"no head_dim", [](auto& s) { s.set_hidden_size(130); }, "not a multiple of"},
      {"small vocabulary", [](auto& s) { s.set_vocab_size(100); }, "has 257 ids"},
      {"gpt2 and qk_norm",
       [](auto& s) {
         s.set_architecture("gpt2");
         s.set_qk_norm(true);
       },
       "architecture gpt2 and qk_norm"},
      {"qk_norm and bias",
       [](auto& s) {
         s.set_qk_norm(true);
         s.set_attention_bias(true);
       },
       "qk_norm and attention_bias"},
  };
  for (const Case& c : cases) {
    v1::ModelSpec spec = Preset("nano");
    c.change(spec);
    const auto config = DecoderConfigFromSpec(spec, 257);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_NE(std::string(config.status().message()).find(c.message), std::string::npos)
        << c.name << ": " << config.status();
  }
}

DecoderConfig Nano() { return *DecoderConfigFromSpec(Preset("nano"), 257); }

struct RoundTrip {
  const char* family;
  std::function<void(DecoderConfig&)> change;
};

// Whatever can be trained can be written for transformers and read back the same.
TEST(DecoderConfigToJson, RoundTripsThroughTheRightFamily) {
  const std::vector<RoundTrip> cases = {
      {"llama", [](DecoderConfig& c) { c.eos_token_ids = {256}; }},
      {"llama",
       [](DecoderConfig& c) {
         c.rope_scaling.emplace();
         c.rope_scaling->factor = 32;
       }},
      {"llama",
       [](DecoderConfig& c) {
         c.rope_scaling = RopeScalingConfig{.kind = RopeScalingConfig::Kind::kLinear, .factor = 4};
         c.bos_token_id = 1;
         c.eos_token_ids = {2, 3};
       }},
      {"llama",
       [](DecoderConfig& c) {
         c.rope_scaling = RopeScalingConfig{.kind = RopeScalingConfig::Kind::kYarn, .factor = 4};
         c.rope_scaling->attention_factor = 1.25;
         c.rope_scaling->mscale = 0.7;
         c.rope_scaling->truncate = false;
       }},
      {"llama",
       [](DecoderConfig& c) {
         c.rope_scaling = RopeScalingConfig{.kind = RopeScalingConfig::Kind::kDynamic, .factor = 2};
       }},
      {"llama", [](DecoderConfig& c) { c.attention_bias = c.output_bias = c.mlp_bias = true; }},
      {"llama", [](DecoderConfig& c) { c.mlp_bias = true; }},
      {"mistral", [](DecoderConfig& c) { c.sliding_window = 64; }},
      {"qwen2", [](DecoderConfig& c) { c.attention_bias = true; }},
      {"qwen2",
       [](DecoderConfig& c) {
         c.attention_bias = true;
         c.sliding_window = 64;
       }},
      {"qwen3", [](DecoderConfig& c) { c.qk_norm = true; }},
      {"qwen3",
       [](DecoderConfig& c) {
         c.qk_norm = c.attention_bias = c.output_bias = true;
         c.sliding_window = 32;
         c.full_attention = {1, 0, 1};
         c.head_dim = 48;
         c.kv_heads = 2;
         c.tie_word_embeddings = false;
       }},
      {"gpt2", [](DecoderConfig& c) { c.architecture = Architecture::kGpt2; }},
      {"gpt2",
       [](DecoderConfig& c) {
         c.architecture = Architecture::kGpt2;
         c.intermediate_size = 4 * c.hidden_size;
         c.tie_word_embeddings = false;
         c.rms_norm_eps = 1e-4;
         c.eos_token_ids = {256};
       }},
  };
  for (const RoundTrip& c : cases) {
    DecoderConfig config = Nano();
    c.change(config);
    ASSERT_TRUE(ValidateDecoderConfig(config).ok()) << ValidateDecoderConfig(config);
    const std::string json = DecoderConfigToJson(config);
    EXPECT_EQ(Json::parse(json)["model_type"], c.family) << json;
    const auto read = DecoderConfigFromJson(json);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == config) << json;
  }
}

TEST(DecoderConfigToJson, CombinationsThatNoFamilyHasAreRefused) {
  const std::vector<RoundTrip> cases = {
      {"output bias alone", [](DecoderConfig& c) { c.output_bias = true; }},
      {"qkv and mlp", [](DecoderConfig& c) { c.attention_bias = c.mlp_bias = true; }},
      {"window and mlp bias",
       [](DecoderConfig& c) {
         c.mlp_bias = true;
         c.sliding_window = 8;
       }},
      {"mixed window without bias",
       [](DecoderConfig& c) {
         c.sliding_window = 8;
         c.full_attention = {1, 0, 1};
       }},
      {"norm and mlp bias", [](DecoderConfig& c) { c.qk_norm = c.mlp_bias = true; }},
  };
  for (const RoundTrip& c : cases) {
    DecoderConfig config = Nano();
    c.change(config);
    EXPECT_EQ(ValidateDecoderConfig(config).code(), absl::StatusCode::kInvalidArgument) << c.family;
  }
}

Json Llama() {
  return {{"model_type", "llama"},   {"vocab_size", 100},      {"hidden_size", 32},
          {"intermediate_size", 64}, {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2}};
}

DecoderConfig Read(const Json& json) {
  const auto config = DecoderConfigFromJson(json.dump());
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(DecoderConfig());
}

TEST(DecoderConfigFromJson, AbsentKeysMeanWhatTransformersTakes) {
  Json json = Llama();
  const DecoderConfig llama = Read(json);
  EXPECT_EQ(llama.head_dim, 8);
  EXPECT_EQ(llama.rope_theta, 10000);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6);
  EXPECT_FALSE(llama.tie_word_embeddings);
  EXPECT_EQ(llama.sliding_window, 0);
  json.erase("num_key_value_heads");
  EXPECT_EQ(Read(json).kv_heads, 4);
  json["num_key_value_heads"] = nullptr;
  json["model_type"] = "mistral";
  EXPECT_EQ(Read(json).kv_heads, 4);
  EXPECT_EQ(Read(json).sliding_window, 4096);
  json["sliding_window"] = nullptr;
  EXPECT_EQ(Read(json).sliding_window, 0);
  json["model_type"] = "qwen3";
  EXPECT_EQ(Read(json).head_dim, 128);
}

Json Gpt2() {
  return {
      {"model_type", "gpt2"}, {"vocab_size", 100}, {"n_embd", 32}, {"n_layer", 2}, {"n_head", 4}};
}

TEST(DecoderConfigFromJson, KeysOfGpt2AreItsOwn) {
  Json json = Gpt2();
  const DecoderConfig absent = Read(json);
  EXPECT_EQ(absent.architecture, Architecture::kGpt2);
  EXPECT_EQ(absent.intermediate_size, 128);
  EXPECT_EQ(absent.kv_heads, 4);
  EXPECT_EQ(absent.head_dim, 8);
  EXPECT_EQ(absent.max_position_embeddings, 1024);
  EXPECT_EQ(absent.rms_norm_eps, 1e-5);
  EXPECT_TRUE(absent.tie_word_embeddings);
  json["n_inner"] = 48;
  json["n_positions"] = 77;
  json["layer_norm_epsilon"] = 1e-3;
  json["activation_function"] = "gelu_pytorch_tanh";
  json["n_ctx"] = 77;
  const DecoderConfig given = Read(json);
  EXPECT_EQ(given.intermediate_size, 48);
  EXPECT_EQ(given.max_position_embeddings, 77);
  EXPECT_EQ(given.rms_norm_eps, 1e-3);
}

TEST(DecoderConfigFromJson, OptionsOfGpt2ThatCannotBeExpressedAreNamed) {
  const std::vector<std::pair<const char*, Json>> cases = {
      {"activation_function", "relu"}, {"activation_function", "gelu"},
      {"scale_attn_weights", false},   {"scale_attn_by_inverse_layer_idx", true},
      {"add_cross_attention", true},   {"quantization_config", {{"bits", 4}}},
  };
  for (const auto& [key, value] : cases) {
    Json json = Gpt2();
    json[key] = value;
    const absl::Status status = DecoderConfigFromJson(json.dump()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << key << ": " << status;
    EXPECT_NE(std::string(status.message()).find(key), std::string::npos) << status;
  }
  for (const char* key : {"n_embd", "n_head", "n_layer", "vocab_size"}) {
    Json json = Gpt2();
    json.erase(key);
    const absl::Status status = DecoderConfigFromJson(json.dump()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key << ": " << status;
  }
  Json uneven = Gpt2();
  uneven["n_head"] = 5;
  EXPECT_FALSE(DecoderConfigFromJson(uneven.dump()).ok());
}

TEST(DecoderConfigFromJson, AnUnknownArchitectureIsNamedWithThoseThatAreKnown) {
  for (const char* type : {"gpt_neox", "gemma2", "mixtral", "phi3"}) {
    Json json = Llama();
    json["model_type"] = type;
    EXPECT_EQ(DecoderConfigFromJson(json.dump()).status().message(),
              std::string("config.json: model_type '") + type +
                  "' is not supported; supported: llama, mistral, qwen2, qwen3, gpt2, trm");
  }
  Json json = Llama();
  json.erase("model_type");
  EXPECT_EQ(DecoderConfigFromJson(json.dump()).status().message(),
            "config.json: a model without model_type is not supported; supported: llama, mistral, "
            "qwen2, qwen3, gpt2, trm");
}

TEST(DecoderConfigFromJson, BothSpellingsOfRope) {
  Json old = Llama(), now = Llama();
  old["rope_theta"] = 5e5;
  old["rope_scaling"] = {{"type", "llama3"},
                         {"factor", 8.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 512}};
  now["rope_parameters"] = old["rope_scaling"];
  now["rope_parameters"]["rope_theta"] = 5e5;
  EXPECT_TRUE(Read(old) == Read(now));
  EXPECT_EQ(Read(now).rope_scaling->original_max_position_embeddings, 512);
  old["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(Read(old).rope_scaling->kind, RopeScalingConfig::Kind::kLinear);
}

TEST(DecoderConfigFromJson, QwenWindowsFollowTheirSwitch) {
  Json json = Llama();
  json["model_type"] = "qwen2";
  json["sliding_window"] = 16;
  json["max_window_layers"] = 1;
  EXPECT_EQ(Read(json).sliding_window, 0);
  json["use_sliding_window"] = true;
  EXPECT_EQ(Read(json).Window(0), 0);
  EXPECT_EQ(Read(json).Window(1), 16);
  json["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(Read(json).Window(0), 16);
  EXPECT_EQ(Read(json).Window(1), 0);
}

TEST(DecoderConfigFromJson, WhatCannotBeExpressedIsUnimplemented) {
  const std::vector<std::pair<const char*, Json>> cases = {
      {"model_type", "gpt_neox"},
      {"hidden_act", "gelu"},
      {"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4.0}}},
      {"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}},
      {"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}},
      {"partial_rotary_factor", 0.25},
      {"quantization_config", {{"bits", 4}}},
  };
  for (const auto& [key, value] : cases) {
    Json json = Llama();
    json[key] = value;
    const absl::Status status = DecoderConfigFromJson(json.dump()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << key << ": " << status;
  }
}

TEST(DecoderConfigFromJson, MalformedTextIsRefusedWithTheKey) {
  const std::vector<std::pair<const char*, Json>> cases = {
      {"hidden_size", "wide"},   {"hidden_size", nullptr},   {"num_attention_heads", 0},
      {"rms_norm_eps", "small"}, {"tie_word_embeddings", 1}, {"num_key_value_heads", 3},
      {"vocab_size", -5},        {"rope_scaling", "longer"}, {"eos_token_id", "stop"},
      {"head_dim", 7},           {"rope_theta", 0.0},        {"num_hidden_layers", 1e3},
  };
  for (const auto& [key, value] : cases) {
    Json json = Llama();
    json[key] = value;
    const absl::Status status = DecoderConfigFromJson(json.dump()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key << ": " << status;
    EXPECT_NE(std::string(status.message()).find(key), std::string::npos) << status;
  }
  for (const char* text : {"", "{", "[]", "null", "{\"model_type\": 3}"}) {
    EXPECT_FALSE(DecoderConfigFromJson(text).ok()) << text;
  }
}

}  // namespace
}  // namespace espalier
