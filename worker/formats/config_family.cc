#include "worker/formats/config_family.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr ConfigFamily kLlama = {"llama", "LlamaForCausalLM", 0, 0, 2048, -1, false};
constexpr ConfigFamily kMistral = {"mistral", "MistralForCausalLM", 8, 0, 131072, 4096, false};
constexpr ConfigFamily kQwen2 = {"qwen2", "Qwen2ForCausalLM", 32, 0, 32768, 4096, true};
constexpr ConfigFamily kQwen3 = {"qwen3", "Qwen3ForCausalLM", 32, 128, 32768, 4096, true};

absl::Status Inexpressible(absl::string_view combination, absl::string_view advice) {
  return absl::InvalidArgumentError(absl::StrCat(
      "model options ", combination,
      " do not go together: no Hugging Face model class has them, so that a checkpoint could not "
      "be loaded elsewhere; ",
      advice));
}

}  // namespace

const ConfigFamily* FindFamily(absl::string_view model_type) {
  for (const ConfigFamily* family : {&kLlama, &kMistral, &kQwen2, &kQwen3}) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

absl::StatusOr<const ConfigFamily*> FamilyOf(const DecoderConfig& c) {
  const bool window = c.sliding_window > 0;
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

}  // namespace espalier
