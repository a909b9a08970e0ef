#include "worker/model/decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/kernels/rows_apart.h"
#include "worker/ops/recompute.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

// Sites of dropout for adapters, beyond those of what layers add to the residual stream; inputs of
// a layer's projections.
constexpr int64_t kAdapterSites = int64_t{1} << 40, kInputs = 4;

// Those of the last positions of hidden [B, T, C], as many as `targets` has, as rows.
Tensor RowsOfTargets(const Tensor& hidden, const Tensor& targets) {
  const int64_t positions = hidden.size(1), last = targets.size(1);
  TORCH_CHECK_INDEX(last <= positions, last, " targets of a sequence of ", positions, " tokens");
  const Tensor rows = last == positions ? hidden : hidden.narrow(1, positions - last, last);
  return rows.reshape({-1, hidden.size(2)});
}

}  // namespace

const Decoder& DecoderOf(const Model& model) {
  const auto* decoder = dynamic_cast<const Decoder*>(&model);
  ESPALIER_CHECK(decoder != nullptr, "the task was opened for a decoder");
  return *decoder;
}

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
  const Tensor hidden = RowsOfTargets(Hidden(ids, inputs), targets);
  std::function<void()> worked;
  if (inputs.worked) worked = [on = inputs.worked, loss = config_.layers] { on(loss); };
  return ops::LossSum(hidden, head_, targets.flatten(), loss, worked);
}

Tensor Decoder::TargetLogProbabilities(const Tensor& ids, const Tensor& targets, double temperature,
                                       const PassInputs& inputs) const {
  torch::NoGradGuard no_grad;
  CheckIds(targets, config_, kIgnoredTarget);
  const Tensor hidden = RowsOfTargets(Hidden(ids, inputs), targets);
  return ops::TargetLogProbabilities(hidden, head_, targets.flatten(), temperature)
      .view_as(targets);
}

Tensor Decoder::Logits(const Tensor& ids) const { return ops::Linear(Hidden(ids), {head_, {}}); }

absl::StatusOr<KeyValueCache> Decoder::MakeCache(const KeyValueCache::Size& size) const {
  RETURN_IF_ERROR(KeyValueCache::CheckSize(
      config_, size, static_cast<int64_t>(torch::elementSize(head_.scalar_type()))));
  std::optional<KeyValueCache> made;
  RETURN_IF_ERROR(CatchTorch("making room for keys and values", [&] {
    made.emplace(config_, size, torch::TensorOptions(device()).dtype(head_.scalar_type()));
  }));
  return *std::move(made);
}

Tensor Decoder::NextLogits(const Tensor& ids, KeyValueCache& cache) const {
  torch::NoGradGuard no_grad;
  const cpu::RowsApart rows_apart(cache.is_step());
  Tensor x = KeptHidden(ids, cache)[0];
  if (!cache.is_step()) x = x.narrow(0, cache.prompt_last(), 1);
  return ops::Linear(ops::Normalize(x, final_norm_, head_.scalar_type()), {head_, {}});
}

void Decoder::Keep(const Tensor& ids, KeyValueCache& cache) const {
  torch::NoGradGuard no_grad;
  const cpu::RowsApart rows_apart(cache.is_step());
  KeptHidden(ids, cache);
}

Tensor Decoder::KeptHidden(const Tensor& ids, KeyValueCache& cache) const {
  TORCH_CHECK_INDEX(ids.size(0) == cache.pass_positions(), "a pass over ", ids.size(0),
                    " ids, of which the cache expects ", cache.pass_positions());
  CheckIds(ids, config_, 0);
  Context context{KeptRope(cache), &cache, {}, 0, masks_};
  Tensor x = KeptInput(ids, cache);
  for (const DecoderLayer& layer : layers_) {
    x = FeedForward(layer, Attention(layer, x, context), context);
    cache.Worked(++context.layer);
  }
  cache.Finish();
  return x;
}

// A step's sequences are positions of one, which the angles and learned positions follow.
Tensor Decoder::KeptInput(const Tensor& ids, const KeyValueCache& cache) const {
  Tensor x = ops::Embedding(ids.unsqueeze(0), embedding_);
  if (positions_.defined()) {
    const bool step = cache.is_step();
    CheckPositions(step ? cache.step_longest() : cache.prompt_begin() + ids.size(0));
    x = step ? ops::AddPositions(x, positions_.index_select(0, cache.step_positions()), 0)
             : ops::AddPositions(x, positions_, cache.prompt_begin());
  }
  return x.to(ops::ResidualType(device(), head_.scalar_type()));
}

RopeTable Decoder::KeptRope(const KeyValueCache& cache) const {
  if (!cache.is_step()) return RopeOf(cache.prompt_begin(), cache.pass_positions());
  if (positions_.defined()) return {};
  // Alike also in the table, as long as angles do not depend on lengths.
  const int64_t end = cache.StepsAreAlike() && !RopeDependsOnLength(config_, cache.size().positions)
                          ? cache.size().positions
                          : cache.step_longest();
  RopeOf(0, end);
  return rope_.At(cache.step_positions());
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

// Of each column of each row. Where angles depend on how long a sequence is, that is the longest
// example; else the table is one for all passes.
RopeTable Decoder::SharedRope(const SharedRows& shared, const Tensor& places) const {
  if (positions_.defined()) return {};
  const int64_t columns = places.size(1);
  const bool by_length = RopeDependsOnLength(config_, columns);
  return RopeOf(0, by_length ? shared.longest : columns).At(places.flatten());
}

// Everything from `input` to the loss contributes to the gradient of `input`, so when that is known
// all of it has run backward.
void Decoder::TellWhenFinal(const Tensor& input, int64_t end, const PassInputs& inputs) const {
  if (!inputs.gradients_final || (table_with_head_ && !inputs.lookup.rows.defined())) return;
  OnGradient(input, [callback = inputs.gradients_final, end] { callback(end); });
}

Tensor Decoder::Hidden(const Tensor& ids, const PassInputs& inputs) const {
  CheckIds(ids, config_, 0);
  const SharedRows& shared = inputs.shared;
  Context context{{}, nullptr, inputs, 0, masks_};
  Tensor places;
  if (shared.begins.defined()) {
    places = shared.Positions();
    context.rope = SharedRope(shared, places);
    context.masks = c10::make_intrusive<CausalMasks>(shared.begins);
  } else {
    context.rope = RopeOf(0, ids.size(1));
  }
  Tensor x = Input(ids, inputs, places);
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

void Decoder::CheckPositions(int64_t end) const {
  TORCH_CHECK_INDEX(end <= positions_.size(0), "a sequence of ", end, " tokens is longer than the ",
                    positions_.size(0), " positions that the model has learned");
}

Tensor Decoder::Input(const Tensor& ids, const PassInputs& inputs, const Tensor& places) const {
  const Tensor embedded = EmbeddedIds(ids, embedding_, inputs.lookup);
  Tensor x = embedded;
  if (positions_.defined()) {
    CheckPositions(places.defined() ? inputs.shared.longest : ids.size(1));
    x = places.defined() ? ops::AddPositions(embedded, positions_, places)
                         : ops::AddPositions(embedded, positions_, 0);
  }
  if (inputs.gradients_final) {  // the embedding's backward pass comes last
    AfterBackward(embedded.requires_grad() ? embedded : x,
                  [callback = inputs.gradients_final, end = trained_elements_] { callback(end); });
  }
  return x.to(ops::ResidualType(device(), head_.scalar_type()));
}

Tensor Decoder::KeptOrRecomputed(const Tensor& x, const Context& context) const {
  if (recompute_.empty() || !recompute_[context.layer] || !torch::GradMode::is_enabled()) {
    return RunLayer(x, context);
  }
  return Recompute(
      [this, context](const std::vector<Tensor>& inputs) { return RunLayer(inputs[0], context); },
      {x}, layers_[context.layer].leaves);
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

std::vector<ops::Projection> Decoder::Dropping(std::vector<ops::Projection> projections,
                                               const Context& context, int64_t place) {
  const DropoutKeys& keys = context.inputs.dropout;
  for (ops::Projection& one : projections) {
    if (!context.inputs.adapters) {
      one.adapter = {};
      continue;
    }
    one.adapter.dropout = {
        .rate = keys.adapter_rate, .of_row = keys.of_row, .positions = keys.positions};
    one.adapter.site = kAdapterSites + kInputs * static_cast<int64_t>(context.layer) + place;
  }
  return projections;
}

Tensor Decoder::Attention(const DecoderLayer& layer, const Tensor& x,
                          const Context& context) const {
  ops::Branches in = ops::NormLinears(x, layer.input_norm, Dropping(layer.qkv, context, 0));
  ops::Heads qkv = HeadsOf(layer, std::move(in.products));
  Tensor mixed;
  if (context.cache == nullptr) {
    mixed = ops::RotaryAttention(qkv, context.rope, layer.window, context.masks);
  } else {
    mixed = context.cache->Attend(context.layer, qkv, context.rope, layer.window, context.masks);
  }
  mixed = mixed.reshape({x.size(0), x.size(1), -1});
  TellWhenFinal(mixed, layer.output_end, context.inputs);
  const ops::Projection o = Dropping({layer.o}, context, 1)[0];
  const auto add = [&](const Tensor& to) { return ops::LinearAdd(mixed, o, to); };
  return WithDropout(in.residual, context, /*site=*/0, add);
}

Tensor Decoder::FeedForward(const DecoderLayer& layer, const Tensor& x,
                            const Context& context) const {
  const ops::Branches in = ops::NormLinears(x, layer.post_norm, Dropping(layer.inner, context, 2));
  const ops::Projection down = Dropping({layer.down}, context, 3)[0];
  const auto add = [&](const Tensor& to) {
    if (in.products.size() == 1) return ops::GeluLinearAdd(in.products[0], down, to);
    return ops::SwiGluLinearAdd(in.products[0], in.products[1], down, to);
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
