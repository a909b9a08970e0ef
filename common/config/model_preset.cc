#include "common/config/model_preset.h"

#include <map>
#include <string>

namespace espalier {
namespace {

struct Shape {
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int intermediate = 0;
};

v1::ModelSpec ModelOf(const Shape& shape) {
  v1::ModelSpec model;
  model.set_num_hidden_layers(shape.layers);
  model.set_hidden_size(shape.hidden);
  model.set_num_attention_heads(shape.heads);
  model.set_intermediate_size(shape.intermediate);
  return model;
}

v1::ModelSpec TwoMacModel() {
  v1::ModelSpec model = ModelOf({.layers = 22, .hidden = 2048, .heads = 16, .intermediate = 5504});
  model.set_num_key_value_heads(4);
  model.set_vocab_size(32000);
  model.set_rope_theta(1e6);
  model.set_tie_word_embeddings(false);
  model.set_max_position_embeddings(8192);
  return model;
}

// Radford et al. 2019, the smallest.
v1::ModelSpec Gpt2Model() {
  v1::ModelSpec model = ModelOf({.layers = 12, .hidden = 768, .heads = 12, .intermediate = 3072});
  model.set_architecture("gpt2");
  model.set_vocab_size(50257);
  model.set_max_position_embeddings(1024);
  return model;
}

}  // namespace

const v1::ModelSpec* FindModelPreset(absl::string_view name) {
  static const auto& presets = *new std::map<std::string, v1::ModelSpec>{
      {"nano", ModelOf({.layers = 3, .hidden = 128, .heads = 4, .intermediate = 344})},
      {"17m", ModelOf({.layers = 6, .hidden = 384, .heads = 6, .intermediate = 1024})},
      {"124m", ModelOf({.layers = 12, .hidden = 768, .heads = 12, .intermediate = 2048})},
      {"1b", TwoMacModel()},
      {"gpt2", Gpt2Model()},
  };
  const auto found = presets.find(std::string(name));
  return found == presets.end() ? nullptr : &found->second;
}

v1::ModelSpec ResolveModel(const v1::ModelSpec& spec) {
  v1::ModelSpec model;
  if (const v1::ModelSpec* preset = FindModelPreset(spec.preset())) model = *preset;
  // Key/value heads of a preset belong to its own number of heads.
  if (spec.has_num_attention_heads()) model.clear_num_key_value_heads();
  model.MergeFrom(spec);
  const int heads = model.num_attention_heads();
  if (heads > 0 && !model.has_num_key_value_heads()) model.set_num_key_value_heads(heads);
  if (heads > 0 && !model.has_head_dim() && model.hidden_size() % heads == 0 &&
      model.hidden_size() > 0) {
    model.set_head_dim(model.hidden_size() / heads);
  }
  return model;
}

}  // namespace espalier
