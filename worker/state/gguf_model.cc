#include "worker/state/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "worker/model/adapter_files.h"
#include "worker/ops/ops.h"
#include "worker/tensor/torch.h"

namespace espalier {
namespace {

// Of the parameters outside of layers, and within them behind "model.layers.3.".
constexpr std::pair<absl::string_view, absl::string_view> kOutside[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"transformer.wte", "token_embd"},
    {"transformer.wpe", "position_embd"},
    {"transformer.ln_f", "output_norm"}};
constexpr std::pair<absl::string_view, absl::string_view> kInLayers[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.o_proj", "attn_output"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"ln_1", "attn_norm"},
    {"attn.c_attn", "attn_qkv"},
    {"attn.c_proj", "attn_output"},
    {"ln_2", "ffn_norm"},
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"}};

template <size_t n>
absl::string_view NameIn(const std::pair<absl::string_view, absl::string_view> (&table)[n],
                         absl::string_view name) {
  const auto* const found = std::find_if(std::begin(table), std::end(table),
                                         [&](const auto& entry) { return entry.first == name; });
  return found == std::end(table) ? absl::string_view() : found->second;
}

bool IsLlama3(const DecoderConfig& config) {
  return config.rope_scaling && config.rope_scaling->kind == RopeScalingConfig::Kind::kLlama3;
}

absl::Status Unknown(absl::string_view option) {
  return absl::UnimplementedError(absl::StrCat("llama.cpp has no architecture with ", option,
                                               "; export a folder instead, without --format gguf"));
}

// Which architecture computes the same. Llama's has all biases and Llama 3's scaling too; only
// Qwen 3's has norms of heads.
absl::StatusOr<std::string> ArchitectureOf(const DecoderConfig& config) {
  if (config.architecture == Architecture::kGpt2) return "gpt2";
  if (config.qk_norm) {
    if (config.output_bias) return Unknown("qk_norm and a bias on o");
    if (IsLlama3(config)) return Unknown("qk_norm and rope_scaling of the type llama3");
    return "qwen3";
  }
  const bool is_qwen2 = config.attention_bias && !config.output_bias && !IsLlama3(config) &&
                        config.heads * config.head_dim == config.hidden_size;
  return is_qwen2 ? "qwen2" : "llama";
}

// Adds facts of the architecture: "llama." before each name.
class Facts {
 public:
  Facts(std::string architecture, GgufFacts& facts)
      : prefix_(std::move(architecture) + "."), facts_(facts) {}
  void Integer(absl::string_view name, int64_t value) {
    AddFact(facts_, absl::StrCat(prefix_, name), static_cast<uint32_t>(value));
  }
  void Real(absl::string_view name, double value) {
    AddFact(facts_, absl::StrCat(prefix_, name), static_cast<float>(value));
  }
  void Text(absl::string_view name, std::string value) {
    AddFact(facts_, absl::StrCat(prefix_, name), std::move(value));
  }

 private:
  std::string prefix_;
  GgufFacts& facts_;
};

// llama.cpp multiplies cosines and sines with 0.1 ln(factor) + 1 itself.
absl::Status AddYarn(const DecoderConfig& config, Facts& facts) {
  const RopeScalingConfig& scaling = *config.rope_scaling;
  if (!scaling.truncate) return Unknown("rope_scaling of the type yarn that is not truncated");
  const double own = 0.1 * std::log(scaling.factor) + 1;
  const double wanted = MakeRopeFrequencies(config, config.max_position_embeddings).scale;
  facts.Text("rope.scaling.type", "yarn");
  facts.Real("rope.scaling.factor", scaling.factor);
  facts.Integer("rope.scaling.original_context_length", scaling.original_max_position_embeddings);
  facts.Real("rope.scaling.yarn_beta_fast", scaling.beta_fast);
  facts.Real("rope.scaling.yarn_beta_slow", scaling.beta_slow);
  if (std::abs(wanted / own - 1) > 1e-6) facts.Real("rope.scaling.attn_factor", wanted / own);
  return absl::OkStatus();
}

absl::Status AddRope(const DecoderConfig& config, Facts& facts) {
  facts.Integer("rope.dimension_count", config.head_dim);
  facts.Real("rope.freq_base", config.rope_theta);
  if (!config.rope_scaling) return absl::OkStatus();
  switch (config.rope_scaling->kind) {
    case RopeScalingConfig::Kind::kLlama3:   // a tensor
    case RopeScalingConfig::Kind::kDynamic:  // none up to max_position_embeddings
      return absl::OkStatus();
    case RopeScalingConfig::Kind::kLinear:
      facts.Text("rope.scaling.type", "linear");
      facts.Real("rope.scaling.factor", config.rope_scaling->factor);
      return absl::OkStatus();
    case RopeScalingConfig::Kind::kYarn:
      return AddYarn(config, facts);
  }
  return absl::OkStatus();
}

// The window of the layers that have one; 0: all see all positions.
int64_t WindowOf(const DecoderConfig& config) {
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (config.Window(layer) > 0) return config.Window(layer);
  }
  return 0;
}

int64_t ContextOf(const DecoderConfig& config, std::vector<std::string>& notes) {
  const int64_t positions = config.max_position_embeddings, window = WindowOf(config);
  if (window > 0 && window < positions) {
    notes.push_back(
        absl::StrCat("llama.cpp lets this architecture see all positions, the model a window of ",
                     window, ": the file's context ends there"));
    return window;
  }
  if (config.rope_scaling && config.rope_scaling->kind == RopeScalingConfig::Kind::kDynamic) {
    notes.push_back(absl::StrCat("llama.cpp has no dynamic scaling of RoPE, which begins behind ",
                                 positions, " positions: the file's context ends there"));
  }
  return positions;
}

// Pairs of dimensions that turn together, from half a head apart to side by side.
torch::Tensor PairsTogether(const torch::Tensor& rows, int64_t heads) {
  std::vector<int64_t> apart = {heads, 2, rows.size(0) / heads / 2};
  if (rows.dim() == 2) apart.push_back(rows.size(1));
  return rows.reshape(apart).transpose(1, 2).reshape(rows.sizes()).contiguous();
}

// What changes in a value on its way: rows in another order, or [in, out] to [out, in].
torch::Tensor Turned(const DecoderConfig& config, absl::string_view architecture,
                     const ParameterShape& shape, torch::Tensor value) {
  if (architecture == "gpt2") {
    return shape.role == ParameterRole::kMatrix ? value.t().contiguous() : value;
  }
  if (architecture != "llama") return value;
  if (absl::StrContains(shape.name, ".q_proj.")) return PairsTogether(value, config.heads);
  if (absl::StrContains(shape.name, ".k_proj.")) return PairsTogether(value, config.kv_heads);
  return value;
}

// What llama.cpp divides each frequency by.
torch::Tensor RopeFactors(const DecoderConfig& config) {
  DecoderConfig plain = config;
  plain.rope_scaling.reset();
  return MakeRopeFrequencies(plain, 1).frequency / MakeRopeFrequencies(config, 1).frequency;
}

}  // namespace

std::string GgufTensorName(absl::string_view name) {
  const size_t dot = name.rfind('.');
  const absl::string_view stem = name.substr(0, dot), kind = name.substr(dot);
  absl::string_view rest = stem;
  if (!absl::ConsumePrefix(&rest, "model.layers.") &&
      !absl::ConsumePrefix(&rest, "transformer.h.")) {
    return absl::StrCat(NameIn(kOutside, stem), kind);
  }
  const size_t end = rest.find('.');
  return absl::StrCat("blk.", rest.substr(0, end), ".", NameIn(kInLayers, rest.substr(end + 1)),
                      kind);
}

absl::StatusOr<GgufDecoder> MakeGgufDecoder(const DecoderConfig& config) {
  GgufDecoder made;
  ASSIGN_OR_RETURN(made.architecture, ArchitectureOf(config));
  const bool gpt2 = made.architecture == "gpt2";
  Facts facts(made.architecture, made.facts);
  facts.Integer("context_length", ContextOf(config, made.notes));
  facts.Integer("embedding_length", config.hidden_size);
  facts.Integer("block_count", config.layers);
  facts.Integer("feed_forward_length", config.intermediate_size);
  facts.Integer("vocab_size", config.vocab_size);
  facts.Integer("attention.head_count", config.heads);
  facts.Integer("attention.head_count_kv", config.kv_heads);
  facts.Integer("attention.key_length", config.head_dim);
  facts.Integer("attention.value_length", config.head_dim);
  facts.Real(gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
             config.rms_norm_eps);
  if (!gpt2) RETURN_IF_ERROR(AddRope(config, facts));
  return made;
}

std::vector<ExportedTensor> GgufTensors(const PretrainedModel& model,
                                        absl::string_view architecture) {
  std::vector<ExportedTensor> tensors;
  if (IsLlama3(model.config)) {
    tensors.push_back({"rope_freqs.weight", {model.config.head_dim / 2}, [&config = model.config] {
                         return RopeFactors(config);
                       }});
  }
  for (const Parameter& parameter : model.parameters.all()) {
    if (parameter.shape.is_adapter()) continue;
    std::vector<int64_t> shape = parameter.shape.shape;
    if (architecture == "gpt2" && parameter.shape.role == ParameterRole::kMatrix) {
      std::swap(shape[0], shape[1]);
    }
    tensors.push_back({GgufTensorName(parameter.shape.name), std::move(shape),
                       [&model, &parameter, named = std::string(architecture)] {
                         return Turned(model.config, named, parameter.shape,
                                       MergedValue(model.config, model.parameters, parameter));
                       }});
  }
  return tensors;
}

}  // namespace espalier
