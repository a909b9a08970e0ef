#include "worker/formats/decoder_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/config/model_preset.h"
#include "worker/formats/config_json.h"

namespace espalier {
namespace {

constexpr ConfigFamily kLlama = {"llama", "LlamaForCausalLM", 0, 0, 2048, -1, false};
constexpr ConfigFamily kMistral = {"mistral", "MistralForCausalLM", 8, 0, 131072, 4096, false};
constexpr ConfigFamily kQwen2 = {"qwen2", "Qwen2ForCausalLM", 32, 0, 32768, 4096, true};
constexpr ConfigFamily kQwen3 = {"qwen3", "Qwen3ForCausalLM", 32, 128, 32768, 4096, true};
constexpr ConfigFamily kGpt2 = {"gpt2", "GPT2LMHeadModel", 0, 0, 1024, -1, false};
constexpr ConfigFamily kTrm = {"trm", "TinyRecursiveModel", 0, 0, 512, -1, false};
constexpr const ConfigFamily* kFamilies[] = {&kLlama, &kMistral, &kQwen2, &kQwen3, &kGpt2, &kTrm};

absl::Status Inexpressible(absl::string_view combination, absl::string_view advice) {
  return absl::InvalidArgumentError(absl::StrCat(
      "model options ", combination,
      " do not go together: no Hugging Face model class has them, so that a checkpoint could not "
      "be loaded elsewhere; ",
      advice));
}

absl::Status NeedField(absl::string_view field) {
  return absl::InvalidArgumentError(absl::StrCat(
      "model.", field,
      " is missing: give model.preset (nano, 17m, 124m, 1b, gpt2), or all of hidden_size, "
      "intermediate_size, num_hidden_layers and num_attention_heads"));
}

RecursionConfig RecursionOf(const v1::RecursionSpec& spec) {
  RecursionConfig made;
  if (spec.has_h_cycles()) made.high_cycles = spec.h_cycles();
  if (spec.has_l_cycles()) made.low_cycles = spec.l_cycles();
  if (spec.has_halt_max_steps()) made.halt_max_steps = spec.halt_max_steps();
  if (spec.has_halt_exploration()) made.halt_exploration = spec.halt_exploration();
  made.halt_continue = spec.halt_continue();
  made.mix_positions = spec.mix_positions();
  made.causal = spec.causal();
  made.halt_reads_last = spec.has_halt_position() ? spec.halt_position() == "last" : spec.causal();
  made.stablemax = spec.probabilities() != "softmax";
  if (spec.has_expansion()) made.expansion = spec.expansion();
  if (spec.positions() == "learned") made.positions = RecursionConfig::Positions::kLearned;
  if (spec.positions() == "none") made.positions = RecursionConfig::Positions::kNone;
  return made;
}

// Initial values have a standard deviation of 1 / sqrt(inputs), by their spread.
void MakeRecursive(const v1::ModelSpec& spec, DecoderConfig& config) {
  config.architecture = Architecture::kTrm;
  config.recursion = RecursionOf(spec.recursion());
  config.tie_word_embeddings = false;
  config.initializer_range = 1;
  config.max_position_embeddings = 1;  // more where the data have more
}

void Override(const v1::ModelSpec& spec, DecoderConfig& config) {
  if (spec.has_architecture()) {
    config.architecture =
        spec.architecture() == "gpt2" ? Architecture::kGpt2 : Architecture::kLlama;
  }
  if (spec.architecture() == "trm" || spec.has_recursion()) MakeRecursive(spec, config);
  if (spec.has_vocab_size()) config.vocab_size = spec.vocab_size();
  if (spec.has_hidden_size()) config.hidden_size = spec.hidden_size();
  if (spec.has_intermediate_size()) config.intermediate_size = spec.intermediate_size();
  if (spec.has_num_hidden_layers()) config.layers = spec.num_hidden_layers();
  if (spec.has_num_attention_heads()) {
    config.heads = spec.num_attention_heads();
    config.kv_heads = config.heads;
  }
  if (spec.has_num_key_value_heads()) config.kv_heads = spec.num_key_value_heads();
  if (spec.has_head_dim()) config.head_dim = spec.head_dim();
  if (spec.has_rope_theta()) config.rope_theta = spec.rope_theta();
  if (spec.has_rms_norm_eps()) config.rms_norm_eps = spec.rms_norm_eps();
  if (spec.has_tie_word_embeddings()) config.tie_word_embeddings = spec.tie_word_embeddings();
  if (spec.has_attention_bias()) config.attention_bias = spec.attention_bias();
  if (spec.has_qk_norm()) config.qk_norm = spec.qk_norm();
  if (spec.has_sliding_window()) config.sliding_window = spec.sliding_window();
  if (spec.has_max_position_embeddings()) {
    config.max_position_embeddings = spec.max_position_embeddings();
  }
  if (spec.has_initializer_range()) config.initializer_range = spec.initializer_range();
  if (spec.has_rope_scaling()) {
    const v1::RopeScaling& scaling = spec.rope_scaling();
    RopeScalingConfig& to = config.rope_scaling.emplace();
    to.factor = scaling.factor();
    if (scaling.has_low_freq_factor()) to.low_freq_factor = scaling.low_freq_factor();
    if (scaling.has_high_freq_factor()) to.high_freq_factor = scaling.high_freq_factor();
    to.original_max_position_embeddings = scaling.original_max_position_embeddings();
  }
}

absl::Status RequireSizes(const DecoderConfig& config) {
  if (config.hidden_size == 0) return NeedField("hidden_size");
  if (config.intermediate_size == 0) return NeedField("intermediate_size");
  if (config.layers == 0) return NeedField("num_hidden_layers");
  if (config.heads == 0) return NeedField("num_attention_heads");
  return absl::OkStatus();
}

struct Bound {
  absl::string_view field;
  int64_t value;
  int64_t low;
  int64_t high;
};

absl::Status CheckBounds(const DecoderConfig& c) {
  const Bound bounds[] = {
      {"vocab_size", c.vocab_size, 2, 1 << 22},
      {"hidden_size", c.hidden_size, 1, 1 << 16},
      {"intermediate_size", c.intermediate_size, 1, 1 << 20},
      {"num_hidden_layers", c.layers, 1, kLayersMax},
      {"num_attention_heads", c.heads, 1, 1 << 12},
      {"num_key_value_heads", c.kv_heads, 1, 1 << 12},
      {"head_dim", c.head_dim, 2, 1 << 12},
      {"sliding_window", c.sliding_window, 0, std::numeric_limits<int32_t>::max()},
      {"max_position_embeddings", c.max_position_embeddings, 1,
       std::numeric_limits<int32_t>::max()},
  };
  for (const Bound& bound : bounds) {
    if (bound.value < bound.low || bound.value > bound.high) {
      return absl::InvalidArgumentError(absl::StrCat("model ", bound.field, " is ", bound.value,
                                                     "; allowed: ", bound.low, " to ", bound.high));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRope(const DecoderConfig& c) {
  if (!(c.rope_theta >= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("model rope_theta is ", c.rope_theta, "; allowed: at least 1"));
  }
  if (!c.rope_scaling) return absl::OkStatus();
  const RopeScalingConfig& s = *c.rope_scaling;
  if (!(s.factor >= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("model rope_scaling.factor is ", s.factor, "; allowed: at least 1"));
  }
  if (s.kind == RopeScalingConfig::Kind::kYarn &&
      (s.original_max_position_embeddings < 1 || !(s.beta_slow > 0) ||
       !(s.beta_fast >= s.beta_slow) || !(c.rope_theta > 1))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model rope_scaling (yarn) has original_max_position_embeddings ",
        s.original_max_position_embeddings, ", beta_fast ", s.beta_fast, ", beta_slow ",
        s.beta_slow, "; allowed: at least 1, and 0 < beta_slow <= beta_fast"));
  }
  if (s.kind != RopeScalingConfig::Kind::kLlama3) return absl::OkStatus();
  if (!(s.low_freq_factor > 0) || !(s.high_freq_factor > s.low_freq_factor) ||
      s.original_max_position_embeddings < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("model rope_scaling has low_freq_factor ", s.low_freq_factor,
                     ", high_freq_factor ", s.high_freq_factor,
                     ", original_max_position_embeddings ", s.original_max_position_embeddings,
                     "; allowed: 0 < low_freq_factor < high_freq_factor, at least 1 position"));
  }
  return absl::OkStatus();
}

// GPT2LMHeadModel has no options of this kind.
absl::Status CheckGpt2(const DecoderConfig& c) {
  const std::pair<const char*, bool> given[] = {
      {"attention_bias (all its projections have biases)", c.attention_bias},
      {"output_bias", c.output_bias},
      {"mlp_bias", c.mlp_bias},
      {"qk_norm", c.qk_norm},
      {"sliding_window", c.sliding_window > 0},
      {"rope_scaling", c.rope_scaling.has_value()},
      {"num_key_value_heads below num_attention_heads", c.kv_heads != c.heads},
      {"head_dim other than hidden_size / num_attention_heads",
       c.head_dim * c.heads != c.hidden_size},
  };
  for (const auto& [option, is_given] : given) {
    if (is_given) {
      return Inexpressible(absl::StrCat("architecture gpt2 and ", option),
                           "leave the option out, or take architecture llama");
    }
  }
  return absl::OkStatus();
}

absl::Status RefuseRecursion(absl::string_view what, absl::string_view remedy) {
  return absl::InvalidArgumentError(
      absl::StrCat("a recursive model (model.architecture trm) with ", what, "; ", remedy));
}

absl::Status CheckTrm(const DecoderConfig& c) {
  const std::pair<const char*, bool> given[] = {
      {"attention_bias", c.attention_bias},
      {"output_bias", c.output_bias},
      {"mlp_bias", c.mlp_bias},
      {"qk_norm", c.qk_norm},
      {"sliding_window", c.sliding_window > 0},
      {"rope_scaling", c.rope_scaling.has_value()},
      {"tie_word_embeddings", c.tie_word_embeddings},
      {"num_key_value_heads below num_attention_heads", c.kv_heads != c.heads},
      {"head_dim other than hidden_size / num_attention_heads",
       c.head_dim * c.heads != c.hidden_size},
  };
  for (const auto& [option, is_given] : given) {
    if (is_given) return RefuseRecursion(option, "it has no such option: leave it out");
  }
  const RecursionConfig& r = *c.recursion;
  if (r.mix_positions && r.causal) {
    return RefuseRecursion(
        "recursion.mix_positions and recursion.causal would see the tokens that it is to give",
        "turn mix_positions off for text, or causal for puzzles");
  }
  const bool turns = !r.mix_positions && r.positions == RecursionConfig::Positions::kRope;
  if (turns && c.head_dim % 2 != 0) {
    return RefuseRecursion(absl::StrCat("heads of ", c.head_dim, " numbers"),
                           "rotary positions turn pairs: give heads of an even width");
  }
  if (r.high_cycles < 1 || r.low_cycles < 1 || r.halt_max_steps < 1 || !(r.expansion > 0) ||
      !(r.halt_exploration >= 0 && r.halt_exploration <= 1)) {
    return RefuseRecursion(
        absl::StrCat("h_cycles ", r.high_cycles, ", l_cycles ", r.low_cycles, ", halt_max_steps ",
                     r.halt_max_steps, ", halt_exploration ", r.halt_exploration, " and expansion ",
                     r.expansion),
        "allowed: at least 1, 1 and 1, 0 to 1, and above 0");
  }
  return absl::OkStatus();
}

}  // namespace

int64_t RecursionConfig::Inner(int64_t input) const {
  constexpr int64_t kStep = 256;
  constexpr double kMost = 1e15;  // far more than is allowed
  const double exact = expansion * static_cast<double>(input) * 2 / 3;
  const auto wanted = std::llround(exact < kMost ? std::max(exact, 0.0) : kMost);
  return std::max<int64_t>(1, (wanted + kStep - 1) / kStep) * kStep;
}

const ConfigFamily* FindFamily(absl::string_view model_type) {
  for (const ConfigFamily* family : kFamilies) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

std::string FamilyNames() {
  return absl::StrJoin(kFamilies, ", ", [](std::string* out, const ConfigFamily* family) {
    absl::StrAppend(out, family->model_type);
  });
}

absl::StatusOr<const ConfigFamily*> FamilyOf(const DecoderConfig& c) {
  const bool window = c.sliding_window > 0;
  if (c.architecture == Architecture::kGpt2) {
    RETURN_IF_ERROR(CheckGpt2(c));
    return &kGpt2;
  }
  if (c.architecture == Architecture::kTrm) {
    RETURN_IF_ERROR(CheckTrm(c));
    return &kTrm;
  }
  const bool mixed = window && std::any_of(c.full_attention.begin(), c.full_attention.end(),
                                           [](uint8_t full) { return full != 0; });
  if (c.qk_norm) {
    if (c.mlp_bias) return Inexpressible("qk_norm and mlp_bias", "turn one of them off");
    if (c.attention_bias != c.output_bias) {
      return Inexpressible("qk_norm and attention_bias (on query, key and value only)",
                           "turn one of them off");
    }
    return &kQwen3;
  }
  if (c.output_bias || c.mlp_bias) {
    if (c.output_bias != c.attention_bias && c.output_bias) {
      return Inexpressible("output_bias without attention_bias", "turn output_bias off");
    }
    if (c.attention_bias && !c.output_bias) {
      return Inexpressible("mlp_bias and attention_bias (on query, key and value only)",
                           "turn one of them off");
    }
    if (window) {
      return Inexpressible("sliding_window and biases on o or mlp", "turn one of them off");
    }
    return &kLlama;
  }
  if (c.attention_bias) return &kQwen2;
  if (!window) return &kLlama;
  if (mixed) {
    return Inexpressible("sliding_window on some layers only, without attention_bias or qk_norm",
                         "give all layers the window, or turn qk_norm on");
  }
  return &kMistral;
}

absl::Status ValidateDecoderConfig(const DecoderConfig& c) {
  RETURN_IF_ERROR(CheckBounds(c));
  RETURN_IF_ERROR(CheckRope(c));
  if (c.heads % c.kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model num_key_value_heads is ", c.kv_heads,
                     "; it must divide num_attention_heads, which is ", c.heads));
  }
  if (c.architecture == Architecture::kLlama && c.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model head_dim is ", c.head_dim, "; it must be even (rotary pairs)"));
  }
  if (!(c.rms_norm_eps > 0) || !(c.initializer_range >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("model rms_norm_eps is ", c.rms_norm_eps,
                                                   " and initializer_range ", c.initializer_range,
                                                   "; allowed: above 0, and 0 or more"));
  }
  if (!c.full_attention.empty() && static_cast<int64_t>(c.full_attention.size()) != c.layers) {
    return absl::InvalidArgumentError(absl::StrCat("model layer_types has ",
                                                   c.full_attention.size(), " entries for ",
                                                   c.layers, " layers; one per layer is needed"));
  }
  return FamilyOf(c).status();
}

absl::StatusOr<DecoderConfig> DecoderConfigFromSpec(const v1::ModelSpec& spec,
                                                    int64_t data_vocab_size) {
  if (spec.has_from()) {
    return absl::InvalidArgumentError(
        "model.from names a folder with its own config.json; preset and architecture fields do "
        "not apply to it");
  }
  DecoderConfig config;
  if (spec.has_preset()) {
    const v1::ModelSpec* preset = FindModelPreset(spec.preset());
    if (preset == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("model.preset is '", spec.preset(),
                                                     "'; allowed: nano, 17m, 124m, 1b, gpt2"));
    }
    Override(*preset, config);
  }
  Override(spec, config);
  if (config.recursion && !spec.has_intermediate_size()) {
    config.intermediate_size = config.recursion->Inner(config.hidden_size);
  }
  RETURN_IF_ERROR(RequireSizes(config));
  if (config.head_dim == 0) {
    if (config.hidden_size % config.heads != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "model.hidden_size ", config.hidden_size, " is not a multiple of num_attention_heads ",
          config.heads, "; change one of them or give model.head_dim"));
    }
    config.head_dim = config.hidden_size / config.heads;
  }
  if (config.vocab_size == 0) config.vocab_size = data_vocab_size;
  if (config.vocab_size < data_vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.vocab_size is ", config.vocab_size, " but the data's tokenizer has ",
        data_vocab_size, " ids; give at least ", data_vocab_size, " or leave vocab_size out"));
  }
  RETURN_IF_ERROR(ValidateDecoderConfig(config));
  return config;
}

}  // namespace espalier
