#include "worker/model/decoder.h"

#include <algorithm>
#include <utility>

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
    : config_(config),
      layers_(DecoderLayers(config, parameters)),
      final_norm_(FinalNorm(config, parameters)),
      embedding_(parameters.Embedding().leaf),
      head_(parameters.Head()),
      head_end_(HeadEnd(parameters)),
      trained_elements_(parameters.trained_elements()),
      table_with_head_(config.tie_word_embeddings &&
                       parameters.embedding() == EmbeddingGradient::kDense) {
  for (const Parameter& parameter : parameters.all()) {
    if (parameter.shape.role == ParameterRole::kPositions) positions_ = parameter.leaf;
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
  if (positions_.defined()) return {};
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
  const int64_t begin = cache == nullptr ? 0 : cache->length;
  Context context{RopeOf(begin, ids.size(1)), cache, inputs, 0};
  Tensor x = Input(ids, begin, inputs);
  for (const DecoderLayer& layer : layers_) {
    TellWhenFinal(x, layer.attention_end, inputs);
    if (inputs.worked) {
      OnGradient(x, [worked = inputs.worked, next = context.layer - 1] { worked(next); });
    }
    x = KeptOrRecomputed(x, context);
    ++context.layer;
    if (inputs.worked) inputs.worked(context.layer);
  }
  TellWhenFinal(x, head_end_, inputs);
  return ops::Normalize(x, final_norm_, head_.scalar_type());
}

Tensor Decoder::Input(const Tensor& ids, int64_t begin, const PassInputs& inputs) const {
  const Tensor embedded = Embedded(ids, inputs.lookup);
  Tensor x = embedded;
  if (positions_.defined()) {
    const int64_t end = begin + ids.size(1);
    TORCH_CHECK_INDEX(end <= positions_.size(0), "a sequence of ", end,
                      " tokens is longer than the ", positions_.size(0),
                      " positions that the model has learned");
    x = ops::AddPositions(embedded, positions_, begin);
  }
  if (inputs.gradients_final) {  // the embedding's backward pass comes last
    AfterBackward(embedded.requires_grad() ? embedded : x,
                  [callback = inputs.gradients_final, end = trained_elements_] { callback(end); });
  }
  return x.to(ops::ResidualType(device(), head_.scalar_type()));
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
  const DecoderLayer& layer = layers_[context.layer];
  const Tensor middle = Attention(layer, x, context);
  TellWhenFinal(middle, layer.feed_forward_end, context.inputs);
  return FeedForward(layer, middle, context);
}

ops::Heads Decoder::HeadsOf(const DecoderLayer& layer, std::vector<Tensor> products) const {
  const int64_t q = config_.heads * config_.head_dim, kv = config_.kv_heads * config_.head_dim;
  if (products.size() == 1) products = ops::Split(products[0], {q, kv, kv});
  const auto heads = [&](const Tensor& product, int64_t count) {
    return product.view({product.size(0), product.size(1), count, config_.head_dim});
  };
  ops::Heads qkv{heads(products[0], config_.heads), heads(products[1], config_.kv_heads),
                 heads(products[2], config_.kv_heads)};
  if (layer.q_norm.weight.defined()) {
    qkv.q = ops::Normalize(qkv.q, layer.q_norm, qkv.q.scalar_type());
    qkv.k = ops::Normalize(qkv.k, layer.k_norm, qkv.k.scalar_type());
  }
  return qkv;
}

Tensor Decoder::Attention(const DecoderLayer& layer, const Tensor& x,
                          const Context& context) const {
  ops::Branches in = ops::NormLinears(x, layer.input_norm, layer.qkv);
  ops::Heads qkv = HeadsOf(layer, std::move(in.products));
  Tensor mixed;
  if (context.cache == nullptr) {
    mixed = ops::RotaryAttention(qkv, context.rope, layer.window, masks_);
  } else {
    qkv = ops::Rope(qkv, context.rope);
    auto& [q, k, v] = qkv;
    k = Extended(context.cache->keys[context.layer], k, *context.cache);
    v = Extended(context.cache->values[context.layer], v, *context.cache);
    mixed = ops::CausalAttention(q, k, v, layer.window, masks_);
  }
  mixed = mixed.reshape({x.size(0), x.size(1), -1});
  TellWhenFinal(mixed, layer.output_end, context.inputs);
  const auto add = [&](const Tensor& to) { return ops::LinearAdd(mixed, layer.o, to); };
  return WithDropout(in.residual, context, /*site=*/0, add);
}

Tensor Decoder::FeedForward(const DecoderLayer& layer, const Tensor& x,
                            const Context& context) const {
  const ops::Branches in = ops::NormLinears(x, layer.post_norm, layer.inner);
  const auto add = [&](const Tensor& to) {
    if (in.products.size() == 1) return ops::GeluLinearAdd(in.products[0], layer.down, to);
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
