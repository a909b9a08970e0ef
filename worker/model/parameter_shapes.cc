#include "worker/model/parameter_shapes.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

constexpr int64_t kOutside = -1;

class ShapeList {
 public:
  explicit ShapeList(const DecoderConfig& config) : config_(config) {}

  // Outside of layers.
  void Table(ParameterRole role, std::string name, int64_t rows) {
    Add(role, std::move(name), {rows, config_.hidden_size});
  }
  void Norm(absl::string_view name, int64_t size, bool bias) {
    if (bias) Add(ParameterRole::kNormBias, absl::StrCat(name, ".bias"), {size});
    Add(ParameterRole::kNorm, absl::StrCat(name, ".weight"), {size});
  }

  // The reverse of the forward pass.
  void Layer(int64_t layer) {
    switch (config_.architecture) {
      case Architecture::kLlama:
        return LlamaLayer(layer);
      case Architecture::kGpt2:
        return Gpt2Layer(layer);
      case Architecture::kTrm:
        return TrmLayer(layer);
    }
  }
  // All of a recursive model, by the names that TinyRecursiveModels gives them. Its layers are used
  // many times in a pass, so that their gradients are final together.
  void Trm() {
    const int64_t width = config_.hidden_size, positions = config_.max_position_embeddings;
    Table(ParameterRole::kHead, "inner.lm_head.weight", config_.vocab_size);
    Drawn(width);
    for (int64_t layer = config_.layers - 1; layer >= 0; --layer) Layer(layer);
    At(BackwardStage::kPositions, kOutside);
    if (config_.recursion->positions == RecursionConfig::Positions::kLearned) {
      Table(ParameterRole::kPositions, "inner.embed_pos.embedding_weight", positions);
      Drawn(width);
    }
    // Behind all matrices, which would begin at odd places after a bias of two numbers.
    Add(ParameterRole::kMatrix, "inner.q_head.weight", {2, width});
    shapes_.back().spread = 0;
    Add(ParameterRole::kBias, "inner.q_head.bias", {2});
    shapes_.back().initial = -5;  // begins by not halting
    At(BackwardStage::kEmbedding, kOutside);
    for (const char* state : {"inner.H_init", "inner.L_init"}) {
      Add(ParameterRole::kState, state, {width});
      Drawn(1);
    }
    Table(ParameterRole::kEmbedding, EmbeddingName(config_), config_.vocab_size);
    Drawn(width);
  }
  void At(BackwardStage stage, int64_t layer) {
    stage_ = stage;
    layer_ = layer;
  }
  std::vector<ParameterShape> Take() { return std::move(shapes_); }

 private:
  void LlamaLayer(int64_t layer) {
    const DecoderConfig& c = config_;
    const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    const std::string at = absl::StrCat("model.layers.", layer, ".");
    const std::string attention = at + "self_attn.", mlp = at + "mlp.";
    At(BackwardStage::kFeedForward, layer);
    Projection(mlp + "down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
    Projection(mlp + "up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    Projection(mlp + "gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    Norm(at + "post_attention_layernorm", c.hidden_size, /*bias=*/false);
    At(BackwardStage::kOutput, layer);
    Projection(attention + "o_proj", c.hidden_size, q, c.output_bias);
    At(BackwardStage::kAttention, layer);
    if (c.qk_norm) {
      Norm(attention + "k_norm", c.head_dim, /*bias=*/false);
      Norm(attention + "q_norm", c.head_dim, /*bias=*/false);
    }
    Projection(attention + "v_proj", kv, c.hidden_size, c.attention_bias);
    Projection(attention + "k_proj", kv, c.hidden_size, c.attention_bias);
    Projection(attention + "q_proj", q, c.hidden_size, c.attention_bias);
    Norm(at + "input_layernorm", c.hidden_size, /*bias=*/false);
  }

  // Weights are [in, out] there. What adds to the residual stream begins smaller, the more layers
  // do (Radford et al. 2019, section 2.3).
  void Gpt2Layer(int64_t layer) {
    const int64_t width = config_.hidden_size, inner = config_.intermediate_size;
    const double less = 1 / std::sqrt(2 * static_cast<double>(config_.layers));
    const std::string at = absl::StrCat("transformer.h.", layer, ".");
    At(BackwardStage::kFeedForward, layer);
    Projection(at + "mlp.c_proj", inner, width, /*bias=*/true, width);
    shapes_.back().spread = less;
    Projection(at + "mlp.c_fc", width, inner, /*bias=*/true, inner);
    Norm(at + "ln_2", width, /*bias=*/true);
    At(BackwardStage::kOutput, layer);
    Projection(at + "attn.c_proj", width, width, /*bias=*/true, width);
    shapes_.back().spread = less;
    At(BackwardStage::kAttention, layer);
    Projection(at + "attn.c_attn", width, 3 * width, /*bias=*/true, 3 * width);
    Norm(at + "ln_1", width, /*bias=*/true);
  }

  void TrmLayer(int64_t layer) {
    const int64_t width = config_.hidden_size, positions = config_.max_position_embeddings;
    const std::string at = absl::StrCat("inner.L_level.layers.", layer, ".");
    At(BackwardStage::kFeedForward, layer);
    Gated(at + "mlp.", width, config_.intermediate_size);
    At(BackwardStage::kAttention, layer);
    if (config_.recursion->mix_positions) {
      return Gated(at + "mlp_t.", positions, config_.recursion->Inner(positions));
    }
    Projection(at + "self_attn.o_proj", width, width, /*bias=*/false);
    Drawn(width);
    Projection(at + "self_attn.qkv_proj", 3 * width, width, /*bias=*/false);
    Drawn(width);
  }
  void Gated(const std::string& at, int64_t width, int64_t inner) {
    Projection(at + "down_proj", width, inner, /*bias=*/false);
    Drawn(inner);
    Projection(at + "gate_up_proj", 2 * inner, width, /*bias=*/false);
    Drawn(width);
  }
  // The last one is drawn with a variance of 1 / `inputs`.
  void Drawn(int64_t inputs) {
    shapes_.back().truncated = true;
    shapes_.back().spread = 1 / std::sqrt(static_cast<double>(inputs));
  }

  void Projection(const std::string& name, int64_t rows, int64_t columns, bool bias) {
    Projection(name, rows, columns, bias, rows);
  }
  void Projection(const std::string& name, int64_t rows, int64_t columns, bool bias, int64_t out) {
    if (bias) Add(ParameterRole::kBias, name + ".bias", {out});
    Add(ParameterRole::kMatrix, name + ".weight", {rows, columns});
  }
  void Add(ParameterRole role, std::string name, std::vector<int64_t> shape) {
    const bool matrix = shape.size() == 2;
    shapes_.push_back({.name = std::move(name),
                       .shape = std::move(shape),
                       .stage = stage_,
                       .layer = layer_,
                       .role = role,
                       .decay = matrix});
  }

  const DecoderConfig& config_;
  BackwardStage stage_ = BackwardStage::kHead;
  int64_t layer_ = kOutside;
  std::vector<ParameterShape> shapes_;
};

}  // namespace

namespace {

// Of a weight without its last word.
absl::string_view ProjectionName(const ParameterShape& weight) {
  return absl::StripSuffix(weight.name, ".weight");
}

ParameterShape AdapterOf(const DecoderConfig& config, const ParameterShape& weight,
                         ParameterRole role, int64_t rank) {
  const bool turned = config.architecture == Architecture::kGpt2;  // [in, out]
  const int64_t out = weight.shape[turned ? 1 : 0], in = weight.shape[turned ? 0 : 1];
  ParameterShape adapter = weight;
  adapter.role = role;
  adapter.name = AdapterName(ProjectionName(weight), role);
  adapter.shape = role == ParameterRole::kAdapterA ? std::vector<int64_t>{rank, in}
                                                   : std::vector<int64_t>{out, rank};
  return adapter;
}

// "self_attn.q_proj" of "model.layers.0.self_attn.q_proj".
std::string WordsInLayer(absl::string_view projection) {
  const std::vector<absl::string_view> words = absl::StrSplit(projection, '.');
  return absl::StrJoin(words.begin() + 3, words.end(), ".");
}

}  // namespace

std::string AdapterName(absl::string_view projection, ParameterRole role) {
  const char* const which = role == ParameterRole::kAdapterA ? "A" : "B";
  return absl::StrCat("base_model.model.", projection, ".lora_", which, ".weight");
}

std::vector<ParameterShape> ParameterShapes(const DecoderConfig& config,
                                            const std::optional<LoraConfig>& lora) {
  std::vector<ParameterShape> base = ParameterShapes(config);
  if (!lora) return base;
  std::vector<ParameterShape> all;
  for (size_t begin = 0, end = 0; begin < base.size(); begin = end) {
    while (end < base.size() && base[end].stage == base[begin].stage &&
           base[end].layer == base[begin].layer) {
      ++end;
    }
    all.insert(all.end(), base.begin() + begin, base.begin() + end);
    for (const ParameterRole role : {ParameterRole::kAdapterB, ParameterRole::kAdapterA}) {
      for (size_t i = begin; i < end; ++i) {
        if (base[i].role != ParameterRole::kMatrix) continue;
        if (!lora->Targets(ProjectionName(base[i]))) continue;
        all.push_back(AdapterOf(config, base[i], role, lora->rank));
      }
    }
  }
  return all;
}

absl::Status CheckLoraTargets(const DecoderConfig& config, const LoraConfig& lora,
                              LoraTargetsFound wanted) {
  std::vector<std::string> names;
  std::set<std::string> projections;
  for (const ParameterShape& shape : ParameterShapes(config)) {
    if (shape.role != ParameterRole::kMatrix) continue;
    names.emplace_back(ProjectionName(shape));
    projections.insert(WordsInLayer(names.back()));
  }
  const auto is_one = [&](const std::string& target) {
    LoraConfig one;
    one.targets = {target};
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return one.Targets(name); });
  };
  const auto& targets = lora.targets;
  if (wanted == LoraTargetsFound::kSome && std::any_of(targets.begin(), targets.end(), is_one)) {
    return absl::OkStatus();
  }
  for (const std::string& target : targets) {
    if (is_one(target)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "adapters are asked for on '", target, "', and the model has no such projection; it has ",
        absl::StrJoin(projections, ", "), "; all-linear stands for all of them"));
  }
  return absl::OkStatus();
}

std::vector<std::string> LoraTargets(const DecoderConfig& config, const LoraConfig& lora) {
  if (!lora.targets.empty()) return lora.targets;
  std::set<std::string> words;
  for (const ParameterShape& shape : ParameterShapes(config)) {
    if (shape.role != ParameterRole::kMatrix) continue;
    const std::vector<std::string> parts = absl::StrSplit(ProjectionName(shape), '.');
    words.insert(parts.back());
  }
  return {words.begin(), words.end()};
}

std::string EmbeddingName(const DecoderConfig& config) {
  switch (config.architecture) {
    case Architecture::kLlama:
      break;
    case Architecture::kGpt2:
      return "transformer.wte.weight";
    case Architecture::kTrm:
      return "inner.embed_tokens.embedding_weight";
  }
  return kEmbeddingName;
}

int64_t ParameterShape::elements() const {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

bool ParameterShape::is_norm() const {
  return role == ParameterRole::kNorm || role == ParameterRole::kNormBias;
}

bool ParameterShape::read_in_full() const {
  return is_norm() || is_embedding() || role == ParameterRole::kPositions ||
         role == ParameterRole::kState;
}

std::vector<ParameterShape> ParameterShapes(const DecoderConfig& config) {
  const bool gpt2 = config.architecture == Architecture::kGpt2;
  const auto embedding = [&](ShapeList& list) {
    list.Table(ParameterRole::kEmbedding, EmbeddingName(config), config.vocab_size);
  };
  ShapeList list(config);
  if (config.architecture == Architecture::kTrm) {
    list.Trm();
    return list.Take();
  }
  if (config.tie_word_embeddings) {
    embedding(list);
  } else {
    list.Table(ParameterRole::kHead, kHeadName, config.vocab_size);
  }
  list.Norm(gpt2 ? "transformer.ln_f" : "model.norm", config.hidden_size, /*bias=*/gpt2);
  for (int64_t layer = config.layers - 1; layer >= 0; --layer) list.Layer(layer);
  if (gpt2) {
    list.At(BackwardStage::kPositions, kOutside);
    list.Table(ParameterRole::kPositions, "transformer.wpe.weight", config.max_position_embeddings);
  }
  list.At(BackwardStage::kEmbedding, kOutside);
  if (!config.tie_word_embeddings) embedding(list);
  return list.Take();
}

}  // namespace espalier
