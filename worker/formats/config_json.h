// What reading and writing a config.json of any family shares with those of GPT-2 and of recursive
// models, which have keys of their own. Used by decoder_config.cc, decoder_config_json.cc,
// gpt2_config_json.cc and trm_config_json.cc. Any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace espalier {

class JsonKeys;
struct DecoderConfig;

inline constexpr int64_t kLayersMax = 1 << 10;

inline absl::Status UnsupportedConfig(absl::string_view what, absl::string_view supported) {
  return absl::UnimplementedError(
      absl::StrCat("config.json: ", what, " is not supported; supported: ", supported));
}

// Sizes and options of model_type gpt2. Wrong keys are left to `keys`; UNIMPLEMENTED names an
// option that changes the mathematics and is not known.
absl::Status ReadGpt2Config(JsonKeys& keys, DecoderConfig& config);
// The inverse, without what all families write.
void WriteGpt2Config(const DecoderConfig& config, nlohmann::json& json);

// The same of tiny recursive models, by the names that TinyRecursiveModels gives its options.
absl::Status ReadTrmConfig(JsonKeys& keys, DecoderConfig& config);
void WriteTrmConfig(const DecoderConfig& config, nlohmann::json& json);

}  // namespace espalier
