#include "worker/model/decoder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/ops/recompute.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

// Room for at least `needed` positions in a cache of one layer.
void Reserve(Tensor& slots, const Tensor& like, int64_t needed, int64_t capacity) {
  if (slots.defined() && slots.size(1) >= needed) return;
  const int64_t grown = slots.defined() ? std::max(needed, 2 * slots.size(1)) : needed;
  Tensor larger = torch::empty(
      {like.size(0), std::max(grown, capacity), like.size(2), like.size(3)}, like.options());
  if (slots.defined()) larger.narrow(1, 0, slots.size(1)).copy_(slots);
  slots = larger;
}

// Appends to one layer's keys or values and returns all of them.
Tensor Extended(Tensor& slots, const Tensor& added, const KeyValueCache& cache) {
  const int64_t end = cache.length + added.size(1);
  Reserve(slots, added, end, cache.capacity);
  slots.narrow(1, cache.length, added.size(1)).copy_(added);
  return slots.narrow(1, 0, end);
}

// The kernels index memory with ids. On other devices the check would cost a wait for the device,
// which checks by itself.
void CheckIds(const Tensor& ids, const DecoderConfig& config, int64_t extra) {
  if (!ids.is_cpu() || ids.numel() == 0) return;
  const Tensor wrong = ids.lt(0).logical_and(ids.ne(extra)).logical_or(ids.ge(config.vocab_size));
  if (!wrong.any().item<bool>()) return;
  TORCH_CHECK_INDEX(false, "token id ", ids.masked_select(wrong)[0].item<int64_t>(),
                    " is outside the model's vocabulary of ", config.vocab_size,
                    " ids; was the data prepared with another tokenizer?");
}

}  // namespace

Decoder::Decoder(const DecoderConfig& config, const Parameters& parameters)
    : config_(config), trained_elements_(parameters.trained_elements()) {
  const auto get = [&](const std::string& name) {
    const Parameter* parameter = parameters.Find(name);
    ESPALIER_CHECK(parameter != nullptr, "the parameters were made for another config");
    return parameter->leaf;
  };
  const auto projection = [&](const std::string& name, bool bias) {
    return ops::Projection{get(name + ".weight"), bias ? get(name + ".bias") : Tensor()};
  };
  for (int64_t i = 0; i < config_.layers; ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
    Layer& layer = layers_.emplace_back();
    layer.input_norm = get(prefix + "input_layernorm.weight");
    layer.post_norm = get(prefix + "post_attention_layernorm.weight");
    if (config_.qk_norm) {
      layer.q_norm = get(attention + "q_norm.weight");
      layer.k_norm = get(attention + "k_norm.weight");
    }
    layer.q = projection(attention + "q_proj", config_.attention_bias);
    layer.k = projection(attention + "k_proj", config_.attention_bias);
    layer.v = projection(attention + "v_proj", config_.attention_bias);
    layer.o = projection(attention + "o_proj", config_.output_bias);
    layer.gate = projection(mlp + "gate_proj", config_.mlp_bias);
    layer.up = projection(mlp + "up_proj", config_.mlp_bias);
    layer.down = projection(mlp + "down_proj", config_.mlp_bias);
    layer.window = config_.Window(i);
  }
  for (const Parameter& parameter : parameters.all()) {
    const int64_t layer = parameter.shape.layer;
    if (layer >= 0) layers_[layer].leaves.push_back(parameter.leaf);
  }
  FindStageEnds(parameters);
  embedding_ = get(kEmbeddingName);
  final_norm_ = get("model.norm.weight");
  head_ = parameters.Head();
  table_with_head_ =
      config_.tie_word_embeddings && parameters.embedding() == EmbeddingGradient::kDense;
}

// A stage of which nothing is trained ends where the one before it does.
void Decoder::FindStageEnds(const Parameters& parameters) {
  int64_t end = 0;
  for (const Parameter& parameter : parameters.all()) {
    if (parameter.trained) end = parameter.offset + parameter.size;
    const ParameterShape& shape = parameter.shape;
    switch (shape.stage) {
      case BackwardStage::kHead:
        head_end_ = end;
        break;
      case BackwardStage::kFeedForward:
        layers_[shape.layer].feed_forward_end = end;
        break;
      case BackwardStage::kOutput:
        layers_[shape.layer].output_end = end;
        break;
      case BackwardStage::kAttention:
        layers_[shape.layer].attention_end = end;
        break;
      case BackwardStage::kEmbedding:
        break;
    }
  }
}

Tensor Decoder::LossSum(const Tensor& ids, const Tensor& targets, const RowLoss& loss,
                        const PassInputs& inputs) const {
  CheckIds(targets, config_, kIgnoredTarget);
  const Tensor hidden = Hidden(ids, nullptr, inputs);
  std::function<void()> worked;
  if (inputs.worked) worked = [on = inputs.worked, loss = config_.layers] { on(loss); };
  return ops::LossSum(hidden.view({-1, hidden.size(2)}), head_, targets.flatten(), loss, worked);
}

Tensor Decoder::TargetLogProbabilities(const Tensor& ids, const Tensor& targets) const {
  torch::NoGradGuard no_grad;
  CheckIds(targets, config_, kIgnoredTarget);
  const Tensor hidden = Hidden(ids, nullptr);
  return ops::TargetLogProbabilities(hidden.view({-1, hidden.size(2)}), head_, targets.flatten())
      .view_as(targets);
}

Tensor Decoder::Logits(const Tensor& ids) const {
  return ops::Linear(Hidden(ids, nullptr), {head_, {}});
}

Tensor Decoder::NextLogits(const Tensor& ids, KeyValueCache& cache) const {
  torch::NoGradGuard no_grad;
  cache.keys.resize(layers_.size());
  cache.values.resize(layers_.size());
  const Tensor hidden = Hidden(ids, &cache);
  cache.length += ids.size(1);
  return ops::Linear(hidden.select(1, ids.size(1) - 1), {head_, {}});
}

RopeTable Decoder::RopeOf(int64_t begin, int64_t positions) const {
  const int64_t end = begin + positions;
  const int64_t held = rope_.cosine.defined() ? rope_.cosine.size(0) : 0;
  if (RopeDependsOnLength(config_, std::max(end, held))) {
    rope_ = MakeRopeTable(config_, end, embedding_.device());
  } else if (held < end) {
    const int64_t room = std::min(2 * held, config_.max_position_embeddings);
    rope_ = MakeRopeTable(config_, std::max(end, room), embedding_.device());
  }
  return rope_.Of(begin, positions);
}

// Everything from `input` to the loss contributes to the gradient of `input`, so when that is known
// all of it has run backward.
void Decoder::TellWhenFinal(const Tensor& input, int64_t end, const PassInputs& inputs) const {
  if (!inputs.gradients_final || (table_with_head_ && !inputs.lookup.rows.defined())) return;
  OnGradient(input, [callback = inputs.gradients_final, end] { callback(end); });
}

Tensor Decoder::Hidden(const Tensor& ids, KeyValueCache* cache, const PassInputs& inputs) const {
  CheckIds(ids, config_, 0);
  Context context{RopeOf(cache == nullptr ? 0 : cache->length, ids.size(1)), cache, inputs, 0};
  const Tensor embedded = Embedded(ids, inputs.lookup);
  if (inputs.gradients_final) {
    AfterBackward(embedded,
                  [callback = inputs.gradients_final, end = trained_elements_] { callback(end); });
  }
  Tensor x = embedded.to(ops::ResidualType(device(), head_.scalar_type()));
  for (const Layer& layer : layers_) {
    TellWhenFinal(x, layer.attention_end, inputs);
    if (inputs.worked) {
      OnGradient(x, [worked = inputs.worked, next = context.layer - 1] { worked(next); });
    }
    x = KeptOrRecomputed(x, context);
    ++context.layer;
    if (inputs.worked) inputs.worked(context.layer);
  }
  TellWhenFinal(x, head_end_, inputs);
  return ops::Normalize(x, {final_norm_, {}, config_.rms_norm_eps}, head_.scalar_type());
}

Tensor Decoder::Embedded(const Tensor& ids, const EmbeddingRows& lookup) const {
  if (!lookup.rows.defined()) return ops::Embedding(ids, embedding_);
  return ops::Embedding(lookup.row_of.index_select(0, ids.flatten()).view_as(ids), lookup.rows);
}

Tensor Decoder::KeptOrRecomputed(const Tensor& x, const Context& context) const {
  if (recompute_.empty() || !recompute_[context.layer] || !torch::GradMode::is_enabled()) {
    return RunLayer(x, context);
  }
  return Recompute([this, context](const Tensor& input) { return RunLayer(input, context); }, x,
                   layers_[context.layer].leaves);
}

Tensor Decoder::RunLayer(const Tensor& x, const Context& context) const {
  const Layer& layer = layers_[context.layer];
  const Tensor middle = Attention(layer, x, context);
  TellWhenFinal(middle, layer.feed_forward_end, context.inputs);
  return FeedForward(layer, middle, context);
}

Tensor Decoder::Attention(const Layer& layer, const Tensor& x, const Context& context) const {
  const int64_t batch = x.size(0), time = x.size(1);
  const ops::Branches in = ops::NormLinears(x, {layer.input_norm, {}, config_.rms_norm_eps},
                                            {layer.q, layer.k, layer.v});
  const auto heads = [&](const Tensor& product, int64_t count) {
    return product.view({batch, time, count, config_.head_dim});
  };
  ops::Heads qkv{heads(in.products[0], config_.heads), heads(in.products[1], config_.kv_heads),
                 heads(in.products[2], config_.kv_heads)};
  auto& [q, k, v] = qkv;
  if (layer.q_norm.defined()) {
    q = ops::Normalize(q, {layer.q_norm, {}, config_.rms_norm_eps}, q.scalar_type());
    k = ops::Normalize(k, {layer.k_norm, {}, config_.rms_norm_eps}, k.scalar_type());
  }
  Tensor mixed;
  if (context.cache == nullptr) {
    mixed = ops::RotaryAttention(qkv, context.rope, layer.window, masks_);
  } else {
    qkv = ops::Rope(qkv, context.rope);
    k = Extended(context.cache->keys[context.layer], k, *context.cache);
    v = Extended(context.cache->values[context.layer], v, *context.cache);
    mixed = ops::CausalAttention(q, k, v, layer.window, masks_);
  }
  mixed = mixed.reshape({batch, time, -1});
  TellWhenFinal(mixed, layer.output_end, context.inputs);
  const auto add = [&](const Tensor& to) { return ops::LinearAdd(mixed, layer.o, to); };
  return WithDropout(in.residual, context, /*site=*/0, add);
}

Tensor Decoder::FeedForward(const Layer& layer, const Tensor& x, const Context& context) const {
  const ops::Branches in =
      ops::NormLinears(x, {layer.post_norm, {}, config_.rms_norm_eps}, {layer.gate, layer.up});
  const auto add = [&](const Tensor& to) {
    return ops::SwiGluLinearAdd(in.products[0], in.products[1], layer.down, to);
  };
  return WithDropout(in.residual, context, /*site=*/1, add);
}

Tensor Decoder::WithDropout(const Tensor& residual, const Context& context, int64_t site,
                            const std::function<Tensor(const Tensor&)>& add) const {
  if (context.inputs.dropout.rate == 0) return add(residual);
  const int64_t place = 2 * static_cast<int64_t>(context.layer) + site;
  return residual + Dropout(add({}), context.inputs.dropout, place);
}

}  // namespace espalier
