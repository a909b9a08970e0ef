#include <algorithm>
#include <string>
#include <utility>

#include "worker/formats/config_json.h"
#include "worker/formats/decoder_config.h"
#include "worker/formats/json_fields.h"

namespace espalier {
namespace {

using Positions = RecursionConfig::Positions;

constexpr std::pair<const char*, Positions> kPositions[] = {
    {"rope", Positions::kRope}, {"learned", Positions::kLearned}, {"none", Positions::kNone}};
constexpr char kStablemax[] = "stablemax_cross_entropy";
constexpr char kSoftmax[] = "softmax_cross_entropy";

absl::Status ReadPositions(JsonKeys& keys, RecursionConfig& recursion) {
  const std::string wanted = keys.Text("pos_encodings", "rope");
  for (const auto& [name, positions] : kPositions) {
    if (wanted != name) continue;
    recursion.positions = positions;
    return absl::OkStatus();
  }
  return UnsupportedConfig(absl::StrCat("pos_encodings '", wanted, "'"), "rope, learned, none");
}

absl::Status ReadLoss(JsonKeys& keys, RecursionConfig& recursion) {
  const std::string wanted = keys.Text("loss_type", kStablemax);
  recursion.stablemax = wanted == kStablemax;
  if (recursion.stablemax || wanted == kSoftmax) return absl::OkStatus();
  return UnsupportedConfig(absl::StrCat("loss_type '", wanted, "'"),
                           absl::StrCat(kStablemax, ", ", kSoftmax));
}

absl::Status CheckOptions(JsonKeys& keys) {
  if (const int64_t width = keys.Integer("puzzle_emb_ndim", 0); width != 0) {
    return UnsupportedConfig(absl::StrCat("puzzle_emb_ndim ", width), "0");
  }
  return absl::OkStatus();
}

void ReadRecursion(JsonKeys& keys, RecursionConfig& recursion) {
  recursion.high_cycles = keys.Integer("H_cycles", recursion.high_cycles);
  recursion.low_cycles = keys.Integer("L_cycles", recursion.low_cycles);
  recursion.halt_max_steps = keys.Integer("halt_max_steps", recursion.halt_max_steps);
  recursion.halt_exploration = keys.Real("halt_exploration_prob", recursion.halt_exploration);
  recursion.halt_continue = !keys.Flag("no_ACT_continue", true);
  recursion.halt_reads_last = keys.Text("halt_position", "first") == "last";
  recursion.mix_positions = keys.Flag("mlp_t", false);
  recursion.causal = keys.Flag("causal", false);
  recursion.expansion = keys.Real("expansion", recursion.expansion);
}

}  // namespace

absl::Status ReadTrmConfig(JsonKeys& keys, DecoderConfig& config) {
  for (const char* key : {"vocab_size", "hidden_size", "num_heads", "L_layers", "seq_len"}) {
    keys.Require(key);
  }
  config.architecture = Architecture::kTrm;
  config.vocab_size = keys.Integer("vocab_size", 0);
  config.hidden_size = keys.Integer("hidden_size", 0);
  config.layers = keys.Integer("L_layers", 0);
  config.heads = std::max<int64_t>(keys.Integer("num_heads", 0), 1);
  config.kv_heads = config.heads;
  config.head_dim = config.hidden_size / config.heads;
  config.max_position_embeddings = keys.Integer("seq_len", 0);
  config.rope_theta = keys.Real("rope_theta", 10000);
  config.rms_norm_eps = keys.Real("rms_norm_eps", 1e-5);
  config.tie_word_embeddings = false;
  RecursionConfig& recursion = config.recursion.emplace();
  ReadRecursion(keys, recursion);
  config.intermediate_size = keys.Integer("intermediate_size", recursion.Inner(config.hidden_size));
  if (const absl::Status read = ReadPositions(keys, recursion); !read.ok()) return read;
  if (const absl::Status read = ReadLoss(keys, recursion); !read.ok()) return read;
  return CheckOptions(keys);
}

void WriteTrmConfig(const DecoderConfig& config, nlohmann::json& json) {
  const RecursionConfig& recursion = *config.recursion;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["L_layers"] = config.layers;
  json["H_layers"] = 0;
  json["num_heads"] = config.heads;
  json["seq_len"] = config.max_position_embeddings;
  json["rope_theta"] = config.rope_theta;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["H_cycles"] = recursion.high_cycles;
  json["L_cycles"] = recursion.low_cycles;
  json["halt_max_steps"] = recursion.halt_max_steps;
  json["halt_exploration_prob"] = recursion.halt_exploration;
  json["no_ACT_continue"] = !recursion.halt_continue;
  json["halt_position"] = recursion.halt_reads_last ? "last" : "first";
  json["mlp_t"] = recursion.mix_positions;
  json["causal"] = recursion.causal;
  json["expansion"] = recursion.expansion;
  json["loss_type"] = recursion.stablemax ? kStablemax : kSoftmax;
  json["puzzle_emb_ndim"] = 0;
  for (const auto& [name, positions] : kPositions) {
    if (positions == recursion.positions) json["pos_encodings"] = name;
  }
}

}  // namespace espalier
