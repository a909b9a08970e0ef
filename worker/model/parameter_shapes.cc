#include "worker/model/parameter_shapes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

constexpr int64_t kOutside = -1;

class ShapeList {
 public:
  explicit ShapeList(const DecoderConfig& config) : config_(config) {}

  // Outside of layers.
  void Table(absl::string_view name) {
    Add(absl::StripSuffix(name, ".weight"), ".weight", {config_.vocab_size, config_.hidden_size});
  }
  void Norm(absl::string_view name, int64_t size) { Add(name, ".weight", {size}); }

  // The reverse of the forward pass.
  void Layer(int64_t layer) {
    const DecoderConfig& c = config_;
    const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    At(BackwardStage::kFeedForward, layer);
    Projection("mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
    Projection("mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    Projection("mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    Norm("post_attention_layernorm", c.hidden_size);
    At(BackwardStage::kOutput, layer);
    Projection("self_attn.o_proj", c.hidden_size, q, c.output_bias);
    At(BackwardStage::kAttention, layer);
    if (c.qk_norm) {
      Norm("self_attn.k_norm", c.head_dim);
      Norm("self_attn.q_norm", c.head_dim);
    }
    Projection("self_attn.v_proj", kv, c.hidden_size, c.attention_bias);
    Projection("self_attn.k_proj", kv, c.hidden_size, c.attention_bias);
    Projection("self_attn.q_proj", q, c.hidden_size, c.attention_bias);
    Norm("input_layernorm", c.hidden_size);
  }
  void At(BackwardStage stage, int64_t layer) {
    stage_ = stage;
    layer_ = layer;
  }
  std::vector<ParameterShape> Take() { return std::move(shapes_); }

 private:
  void Projection(absl::string_view name, int64_t out, int64_t in, bool bias) {
    if (bias) Add(name, ".bias", {out});
    Add(name, ".weight", {out, in});
  }
  void Add(absl::string_view name, absl::string_view kind, std::vector<int64_t> shape) {
    const bool matrix = shape.size() == 2;
    const std::string prefix = layer_ == kOutside ? "" : absl::StrCat("model.layers.", layer_, ".");
    shapes_.push_back(
        {absl::StrCat(prefix, name, kind), std::move(shape), stage_, layer_, /*decay=*/matrix});
  }

  const DecoderConfig& config_;
  BackwardStage stage_ = BackwardStage::kHead;
  int64_t layer_ = kOutside;
  std::vector<ParameterShape> shapes_;
};

}  // namespace

int64_t ParameterShape::elements() const {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

bool ParameterShape::is_norm() const {
  return shape.size() == 1 && name.find("norm") != std::string::npos;
}

bool ParameterShape::read_in_full() const { return is_norm() || name == kEmbeddingName; }

std::vector<ParameterShape> ParameterShapes(const DecoderConfig& config) {
  ShapeList list(config);
  list.Table(config.tie_word_embeddings ? kEmbeddingName : kHeadName);
  list.Norm("model.norm", config.hidden_size);
  for (int64_t layer = config.layers - 1; layer >= 0; --layer) list.Layer(layer);
  list.At(BackwardStage::kEmbedding, kOutside);
  if (!config.tie_word_embeddings) list.Table(kEmbeddingName);
  return list.Take();
}

}  // namespace espalier
