#include "worker/model/decoder_layer.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace espalier {
namespace {

using torch::Tensor;

class Leaves {
 public:
  Leaves(const DecoderConfig& config, const Parameters& parameters)
      : config_(config), parameters_(parameters) {}

  DecoderLayer Layer(int64_t layer) const {
    DecoderLayer made =
        config_.architecture == Architecture::kGpt2 ? Gpt2Layer(layer) : LlamaLayer(layer);
    made.window = config_.Window(layer);
    return made;
  }

  ops::Norm Norm(const std::string& name, bool bias) const {
    return {Get(name + ".weight"), bias ? Get(name + ".bias") : Tensor(), config_.rms_norm_eps,
            constants_};
  }

 private:
  DecoderLayer LlamaLayer(int64_t layer) const {
    const DecoderConfig& c = config_;
    const std::string at = absl::StrCat("model.layers.", layer, ".");
    const std::string attention = at + "self_attn.", mlp = at + "mlp.";
    DecoderLayer made;
    made.input_norm = Norm(at + "input_layernorm", /*bias=*/false);
    made.post_norm = Norm(at + "post_attention_layernorm", /*bias=*/false);
    if (c.qk_norm) {
      made.q_norm = Norm(attention + "q_norm", /*bias=*/false);
      made.k_norm = Norm(attention + "k_norm", /*bias=*/false);
    }
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
      made.qkv.push_back(Projection(attention + name, c.attention_bias));
    }
    made.o = Projection(attention + "o_proj", c.output_bias);
    for (const char* name : {"gate_proj", "up_proj"}) {
      made.inner.push_back(Projection(mlp + name, c.mlp_bias));
    }
    made.down = Projection(mlp + "down_proj", c.mlp_bias);
    return made;
  }

  DecoderLayer Gpt2Layer(int64_t layer) const {
    const std::string at = absl::StrCat("transformer.h.", layer, ".");
    const auto projection = [&](const char* name) {
      ops::Projection one = Projection(at + name, /*bias=*/true);
      one.transposed = true;
      return one;
    };
    DecoderLayer made;
    made.input_norm = Norm(at + "ln_1", /*bias=*/true);
    made.post_norm = Norm(at + "ln_2", /*bias=*/true);
    made.qkv = {projection("attn.c_attn")};
    made.o = projection("attn.c_proj");
    made.inner = {projection("mlp.c_fc")};
    made.down = projection("mlp.c_proj");
    return made;
  }

  ops::Projection Projection(const std::string& name, bool bias) const {
    ops::Projection made{Get(name + ".weight"), bias ? Get(name + ".bias") : Tensor()};
    if (!parameters_.lora() || !parameters_.lora()->Targets(name)) return made;
    made.adapter = {Get(AdapterName(name, ParameterRole::kAdapterA)),
                    Get(AdapterName(name, ParameterRole::kAdapterB)), parameters_.lora()->scale()};
    return made;
  }
  Tensor Get(const std::string& name) const {
    const Parameter* parameter = parameters_.Find(name);
    ESPALIER_CHECK(parameter != nullptr, "the parameters were made for another config");
    return parameter->leaf;
  }

  const DecoderConfig& config_;
  const Parameters& parameters_;
  c10::intrusive_ptr<NormConstants> constants_ = c10::make_intrusive<NormConstants>();
};

// A stage of which nothing is trained ends where the one before it does.
void FindStageEnds(const Parameters& parameters, std::vector<DecoderLayer>& layers) {
  int64_t end = 0;
  for (const Parameter& parameter : parameters.all()) {
    if (parameter.trained) end = parameter.offset + parameter.size;
    const ParameterShape& shape = parameter.shape;
    switch (shape.stage) {
      case BackwardStage::kHead:
        break;
      case BackwardStage::kFeedForward:
        layers[shape.layer].feed_forward_end = end;
        break;
      case BackwardStage::kOutput:
        layers[shape.layer].output_end = end;
        break;
      case BackwardStage::kAttention:
        layers[shape.layer].attention_end = end;
        break;
      case BackwardStage::kPositions:
      case BackwardStage::kEmbedding:
        break;
    }
  }
}

}  // namespace

std::vector<DecoderLayer> DecoderLayers(const DecoderConfig& config, const Parameters& parameters) {
  const Leaves leaves(config, parameters);
  std::vector<DecoderLayer> layers;
  for (int64_t layer = 0; layer < config.layers; ++layer) layers.push_back(leaves.Layer(layer));
  for (const Parameter& parameter : parameters.all()) {
    const int64_t layer = parameter.shape.layer;
    if (layer >= 0) layers[layer].leaves.push_back(parameter.leaf);
  }
  FindStageEnds(parameters, layers);
  return layers;
}

int64_t HeadEnd(const Parameters& parameters) {
  int64_t end = 0;
  for (const Parameter& parameter : parameters.all()) {
    if (parameter.shape.stage != BackwardStage::kHead) break;
    if (parameter.trained) end = parameter.offset + parameter.size;
  }
  return end;
}

ops::Norm FinalNorm(const DecoderConfig& config, const Parameters& parameters) {
  const bool gpt2 = config.architecture == Architecture::kGpt2;
  return Leaves(config, parameters).Norm(gpt2 ? "transformer.ln_f" : "model.norm", /*bias=*/gpt2);
}

}  // namespace espalier
