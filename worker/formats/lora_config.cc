#include "worker/formats/lora_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "worker/formats/json_fields.h"

namespace espalier {
namespace {

using nlohmann::json;

constexpr char kAll[] = "all-linear";
constexpr int64_t kMostRank = 4096;
constexpr size_t kMostTargets = 4096;

// Options of PEFT that give another function, or other parameters.
constexpr std::array kUnsupported = {"use_dora",
                                     "use_qalora",
                                     "use_bdlora",
                                     "lora_bias",
                                     "alpha_pattern",
                                     "rank_pattern",
                                     "modules_to_save",
                                     "layers_to_transform",
                                     "exclude_modules",
                                     "trainable_token_indices",
                                     "target_parameters",
                                     "layer_replication",
                                     "alora_invocation_tokens",
                                     "arrow_config"};

// Initial adapters of PEFT whose other half was taken out of the model: on the model as it was they
// are another function. With what may follow, as in pissa_niter_16.
constexpr std::array kChangeTheModel = {"pissa", "olora", "corda", "loftq", "lora_ga"};

absl::Status CheckInitialWeights(const json& object) {
  const auto found = object.find("init_lora_weights");
  if (found == object.end() || !found->is_string()) return absl::OkStatus();
  const std::string kind = absl::AsciiStrToLower(found->get_ref<const std::string&>());
  for (const char* one : kChangeTheModel) {
    if (!absl::StartsWith(kind, one)) continue;
    return absl::UnimplementedError(absl::StrCat(
        kAdapterConfigName, ": init_lora_weights is ", found->dump().substr(0, 80),
        ", whose adapters belong to a model that was changed for them; have PEFT convert them "
        "(save_pretrained with path_initial_model_for_weight_conversion), or merge them there"));
  }
  return absl::OkStatus();
}

bool SaysNothing(const json& value) {
  return value.is_null() || value == false ||
         ((value.is_object() || value.is_array()) && value.empty());
}

absl::Status CheckSupported(const json& object) {
  for (const char* key : kUnsupported) {
    const auto found = object.find(key);
    if (found == object.end() || SaysNothing(*found)) continue;
    return absl::UnimplementedError(
        absl::StrCat(kAdapterConfigName, ": ", key, " is ", found->dump().substr(0, 80),
                     "; supported are adapters of one rank on whole projections, without it"));
  }
  const auto type = object.find("peft_type");
  if (type != object.end() && *type != "LORA") {
    return absl::UnimplementedError(absl::StrCat(kAdapterConfigName, ": peft_type is ",
                                                 type->dump().substr(0, 80), "; supported: LORA"));
  }
  const auto bias = object.find("bias");
  if (bias != object.end() && *bias != "none") {
    return absl::UnimplementedError(absl::StrCat(kAdapterConfigName, ": bias is ",
                                                 bias->dump().substr(0, 80), "; supported: none"));
  }
  return CheckInitialWeights(object);
}

absl::StatusOr<std::vector<std::string>> TargetsOf(const json& object) {
  const auto found = object.find("target_modules");
  if (found != object.end() && *found == kAll) return std::vector<std::string>();
  std::vector<std::string> targets;
  const bool list = found != object.end() && found->is_array() && !found->empty() &&
                    found->size() <= kMostTargets;
  if (list) {
    for (const json& one : *found) {
      if (one.is_string() && !one.get_ref<const std::string&>().empty()) targets.push_back(one);
    }
  }
  if (list && targets.size() == found->size()) {
    std::sort(targets.begin(), targets.end());
    return targets;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      kAdapterConfigName, ": target_modules is ",
      found == object.end() ? "absent" : found->dump().substr(0, 80),
      "; it must be \"all-linear\" or a list of names such as [\"q_proj\", \"v_proj\"]"));
}

}  // namespace

double LoraConfig::scale() const {
  const auto rows = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(rows) : rows);
}

bool LoraConfig::Targets(absl::string_view projection) const {
  return targets.empty() ||
         std::any_of(targets.begin(), targets.end(), [&](absl::string_view target) {
           absl::string_view before = projection;
           return absl::ConsumeSuffix(&before, target) &&
                  (before.empty() || absl::EndsWith(before, "."));
         });
}

bool LoraConfig::ComputesAs(const LoraConfig& other) const {
  return rank == other.rank && scale() == other.scale();
}

LoraConfig LoraConfigFromSpec(const v1::LoraSpec& spec) {
  LoraConfig config;
  if (spec.has_rank()) config.rank = spec.rank();
  config.alpha = spec.has_alpha() ? spec.alpha() : 2 * static_cast<double>(config.rank);
  config.rslora = spec.rslora();
  config.dropout = spec.dropout();
  for (const std::string& target : spec.targets()) {
    if (target != kAll) config.targets.push_back(target);
  }
  std::sort(config.targets.begin(), config.targets.end());
  return config;
}

absl::StatusOr<LoraConfig> LoraConfigFromJson(absl::string_view adapter_config_json) {
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(adapter_config_json));
  RETURN_IF_ERROR(CheckSupported(object));
  JsonKeys keys(object, kAdapterConfigName);
  LoraConfig config;
  keys.Require("r");
  config.rank = keys.Integer("r", config.rank);
  if (config.rank < 1 || config.rank > kMostRank) keys.Wrong("r", "from 1 to 4096");
  config.alpha = keys.Real("lora_alpha", 8);
  if (!(config.alpha > 0) || !std::isfinite(config.alpha)) keys.Wrong("lora_alpha", "positive");
  config.dropout = keys.Real("lora_dropout", 0);
  config.rslora = keys.Flag("use_rslora", false);
  RETURN_IF_ERROR(keys.status());
  ASSIGN_OR_RETURN(config.targets, TargetsOf(object));
  return config;
}

std::string AdapterConfigToJson(const LoraConfig& config, const AdapterFacts& facts) {
  const bool whole = config.alpha == std::floor(config.alpha) && config.alpha < 1e15;
  const json alpha = whole ? json(static_cast<int64_t>(config.alpha)) : json(config.alpha);
  const json object = {{"peft_type", "LORA"},
                       {"task_type", "CAUSAL_LM"},
                       {"base_model_name_or_path", facts.base.empty() ? json() : json(facts.base)},
                       {"r", config.rank},
                       {"lora_alpha", alpha},
                       {"lora_dropout", config.dropout},
                       {"use_rslora", config.rslora},
                       {"target_modules", facts.targets.empty() ? json(kAll) : json(facts.targets)},
                       {"bias", "none"},
                       {"fan_in_fan_out", facts.weights_are_in_out},
                       {"inference_mode", true},
                       {"init_lora_weights", true},
                       {"modules_to_save", json()},
                       {"use_dora", false}};
  return object.dump(2) + "\n";
}

}  // namespace espalier
