// LoraConfig: what adapters of low rank a model has, and adapter_config.json, in which PEFT says
// so. Used by worker/model and worker/state. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

inline constexpr char kAdapterConfigName[] = "adapter_config.json";
inline constexpr char kAdapterModelName[] = "adapter_model.safetensors";

struct LoraConfig {
  int64_t rank = 16;
  double alpha = 32;
  bool rslora = false;
  double dropout = 0;  // in training; told to PEFT
  // Last words of the names of projections, "q_proj" or "self_attn.q_proj"; empty: all projections
  // of all layers.
  std::vector<std::string> targets;

  double scale() const;  // of what adapters add
  // Whether the projection of that name ("model.layers.0.mlp.up_proj") is one of `targets`.
  bool Targets(absl::string_view projection) const;
  // Whether the two give the same function of the same parameters.
  bool ComputesAs(const LoraConfig& other) const;
};

// Of a spec without `from`.
LoraConfig LoraConfigFromSpec(const v1::LoraSpec& spec);

// INVALID_ARGUMENT names the key; UNIMPLEMENTED what adapters of Espalier cannot be (biases, DoRA,
// ranks of their own for some projections, modules that are saved whole, patterns of names, initial
// weights that were taken out of the model).
absl::StatusOr<LoraConfig> LoraConfigFromJson(absl::string_view adapter_config_json);

// What else adapter_config.json says.
struct AdapterFacts {
  std::string base;  // folder or name of the model; empty: none
  // The last words of the projections that there are; empty: all of them.
  std::vector<std::string> targets;
  bool weights_are_in_out = false;  // GPT-2's
};
std::string AdapterConfigToJson(const LoraConfig& config, const AdapterFacts& facts);

}  // namespace espalier
