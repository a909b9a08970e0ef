#include "worker/model/recursive_model.h"

#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/model/decoder.h"
#include "worker/ops/recompute.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

Tensor LeafOf(const Parameters& parameters, const std::string& name) {
  const Parameter* parameter = parameters.Find(name);
  ESPALIER_CHECK(parameter != nullptr, "the parameters were made for the config");
  return parameter->leaf;
}

}  // namespace

std::unique_ptr<Model> MakeModel(const DecoderConfig& config, const Parameters& parameters) {
  if (config.architecture == Architecture::kTrm) {
    return std::make_unique<RecursiveModel>(config, parameters);
  }
  return std::make_unique<Decoder>(config, parameters);
}

const RecursiveModel& RecursiveModelOf(const Model& model) {
  const auto* recursive = dynamic_cast<const RecursiveModel*>(&model);
  ESPALIER_CHECK(recursive != nullptr, "the task was opened for a recursive model");
  return *recursive;
}

RecursiveModel::RecursiveModel(const DecoderConfig& config, const Parameters& parameters)
    : config_(config),
      embedding_(parameters.Embedding().leaf),
      head_(parameters.Head()),
      high_(LeafOf(parameters, "inner.H_init")),
      low_(LeafOf(parameters, "inner.L_init")),
      halting_{LeafOf(parameters, "inner.q_head.weight"), LeafOf(parameters, "inner.q_head.bias")},
      stream_(ops::ResidualType(embedding_.device(), head_.scalar_type())),
      trained_elements_(parameters.trained_elements()) {
  for (const Parameter& parameter : parameters.all()) {
    if (parameter.shape.role == ParameterRole::kPositions) positions_ = parameter.leaf;
  }
  norm_ = NormOf(config.hidden_size);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    layers_.push_back(MakeLayer(layer, parameters));
  }
}

ops::Norm RecursiveModel::NormOf(int64_t width) const {
  const auto type = stream_ == torch::kDouble ? torch::kDouble : torch::kFloat;
  return {torch::ones({width}, torch::TensorOptions(device()).dtype(type)), Tensor(),
          config_.rms_norm_eps, c10::make_intrusive<NormConstants>()};
}

ops::Projection RecursiveModel::Share(const std::string& name, const Parameters& parameters) {
  const Tensor leaf = LeafOf(parameters, name + ".weight");
  if (!leaf.requires_grad()) return {leaf, Tensor()};
  Tensor of_pass = leaf.variable_data().set_requires_grad(true);
  of_pass.mutable_grad() = torch::zeros_like(leaf.grad());
  shared_.push_back({leaf, of_pass});
  return {of_pass, Tensor()};
}

RecursiveModel::Gated RecursiveModel::MakeGated(const std::string& name, int64_t width,
                                                const Parameters& parameters) {
  return {Share(name + "gate_up_proj", parameters), Share(name + "down_proj", parameters),
          width == config_.hidden_size ? norm_ : NormOf(width)};
}

RecursiveModel::Layer RecursiveModel::MakeLayer(int64_t layer, const Parameters& parameters) {
  const std::string at = absl::StrCat("inner.L_level.layers.", layer, ".");
  Layer made;
  made.feed_forward = MakeGated(at + "mlp.", config_.hidden_size, parameters);
  if (recursion().mix_positions) {
    made.mixer = MakeGated(at + "mlp_t.", config_.max_position_embeddings, parameters);
  } else {
    made.qkv = Share(at + "self_attn.qkv_proj", parameters);
    made.o = Share(at + "self_attn.o_proj", parameters);
  }
  for (const ops::Projection& one : {made.feed_forward.gate_up, made.feed_forward.down,
                                     made.mixer.gate_up, made.mixer.down, made.qkv, made.o}) {
    if (one.weight.defined()) made.leaves.push_back(one.weight);
  }
  return made;
}

RecursiveModel::State RecursiveModel::Begin(int64_t rows, int64_t positions) const {
  const auto all = [&](const Tensor& state) {
    return state.detach().to(stream_).view({1, 1, -1}).expand({rows, positions, -1}).contiguous();
  };
  return {all(high_), all(low_)};
}

Tensor RecursiveModel::Embedded(const Tensor& ids, const PassInputs& inputs) const {
  CheckIds(ids, config_, 0);
  const Tensor embedded = EmbeddedIds(ids, embedding_, inputs.lookup);
  double scale = std::sqrt(static_cast<double>(config_.hidden_size));
  Tensor x = embedded;
  if (positions_.defined()) {
    TORCH_CHECK_INDEX(ids.size(1) <= positions_.size(0), "a sequence of ", ids.size(1),
                      " tokens is longer than the ", positions_.size(0),
                      " positions that the model has learned");
    x = ops::AddPositions(embedded, positions_, 0);
    scale *= std::sqrt(0.5);  // as large as without
  }
  Tensor injected = (x * scale).to(stream_);
  if (torch::GradMode::is_enabled() && !shared_.empty()) {
    if (!injected.requires_grad()) injected = injected.detach().set_requires_grad(true);
    BeginPass(injected, embedded.requires_grad() ? embedded : x, inputs);
  }
  return injected;
}

// All layers have run backward for good when the gradient of what is injected is known, since the
// first of them takes it. `first` is what the last backward pass begins from, if it has any: that
// of the embedding, or of the positions where the embedding is not trained.
void RecursiveModel::BeginPass(const Tensor& injected, const Tensor& first,
                               const PassInputs& inputs) const {
  for (const Shared& weight : shared_) {
    Tensor(weight.of_pass).set_requires_grad(weight.leaf.requires_grad());
    weight.of_pass.grad().zero_();
  }
  std::function<void()> final;
  if (inputs.gradients_final) {
    final = [callback = inputs.gradients_final, end = trained_elements_] { callback(end); };
  }
  const bool more_follows = first.requires_grad();
  OnGradient(injected, [this, final, more_follows] {
    torch::NoGradGuard no_grad;
    for (const Shared& weight : shared_) {
      if (weight.leaf.requires_grad()) weight.leaf.grad().add_(weight.of_pass.grad());
    }
    if (final && !more_follows) final();
  });
  if (final && more_follows) AfterBackward(first, final);
}

RecursiveModel::State RecursiveModel::Think(const Tensor& ids, const State& from,
                                            const PassInputs& inputs) const {
  const Tensor injected = Embedded(ids, inputs);
  State state = from;
  {
    torch::NoGradGuard no_grad;
    for (int64_t i = 1; i < recursion().high_cycles; ++i) state = Cycle(state, injected, inputs);
  }
  return Cycle(state, injected, inputs);
}

RecursiveModel::State RecursiveModel::Cycle(const State& from, const Tensor& injected,
                                            const PassInputs& inputs) const {
  State state = from;
  const Tensor above = state.high + injected;
  Tensor sum = state.low + above;
  for (int64_t i = 1; i < recursion().low_cycles; ++i) sum = Through(sum, inputs, above);
  state.low = Through(sum, inputs);
  state.high = Through(state.high + state.low, inputs);
  return state;
}

Tensor RecursiveModel::Through(Tensor x, const PassInputs& inputs, const Tensor& plus) const {
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const auto number = static_cast<int64_t>(layer);
    if (inputs.worked) {
      OnGradient(x, [worked = inputs.worked, next = number - 1] { worked(next); });
    }
    x = KeptOrRecomputed(x, layer, layer + 1 == layers_.size() ? plus : Tensor());
    if (inputs.worked) inputs.worked(number + 1);
  }
  return x;
}

Tensor RecursiveModel::KeptOrRecomputed(const Tensor& x, size_t layer, const Tensor& plus) const {
  if (recompute_.empty() || !recompute_[layer] || !torch::GradMode::is_enabled()) {
    return RunLayer(x, layer, plus);
  }
  std::vector<Tensor> inputs = {x};
  if (plus.defined()) inputs.push_back(plus);
  return Recompute(
      [this, layer](const std::vector<Tensor>& in) {
        return RunLayer(in[0], layer, in.size() > 1 ? in[1] : Tensor());
      },
      inputs, layers_[layer].leaves);
}

// Norms stand behind what they normalise: the sum of a block's input and output.
Tensor RecursiveModel::RunLayer(const Tensor& x, size_t layer, const Tensor& plus) const {
  const Layer& of = layers_[layer];
  if (of.qkv.weight.defined()) return FeedForward(of.feed_forward, Attend(of, x), plus);
  const Tensor mixed = FeedForward(of.mixer, x.transpose(1, 2).contiguous());
  return FeedForward(of.feed_forward, mixed.transpose(1, 2).contiguous(), plus);
}

Tensor RecursiveModel::Attend(const Layer& layer, const Tensor& x) const {
  const Tensor narrow = x.to(layer.qkv.weight.scalar_type());
  const ops::Branches in = ops::NormLinears(narrow, {}, {layer.qkv});
  const int64_t width = config_.hidden_size;
  const std::vector<Tensor> parts = ops::Split(in.products[0], {width, width, width});
  const auto heads = [&](const Tensor& part) {
    return part.view({x.size(0), x.size(1), config_.heads, config_.head_dim});
  };
  const Tensor mixed =
      ops::RotaryAttention({heads(parts[0]), heads(parts[1]), heads(parts[2])}, RopeOf(x.size(1)),
                           recursion().causal ? 0 : kBothWays, masks_);
  const bool same = narrow.scalar_type() == x.scalar_type();
  const Tensor sum = ops::LinearAdd(mixed.reshape(x.sizes()), layer.o, same ? in.residual : x);
  return ops::Normalize(sum, norm_, stream_);
}

Tensor RecursiveModel::FeedForward(const Gated& part, const Tensor& x, const Tensor& plus) const {
  const Tensor narrow = x.to(part.gate_up.weight.scalar_type());
  const bool same = narrow.scalar_type() == x.scalar_type();
  const Tensor sum = ops::GatedLinearAdd(narrow, part.gate_up, part.down, same ? Tensor() : x);
  return plus.defined() ? ops::NormalizeAdd(sum, part.norm, plus)
                        : ops::Normalize(sum, part.norm, stream_);
}

RopeTable RecursiveModel::RopeOf(int64_t positions) const {
  if (recursion().positions != RecursionConfig::Positions::kRope) return {};
  if (!rope_.cosine.defined() || rope_.cosine.size(0) < positions) {
    rope_ = MakeRopeTable(config_, positions, device());
  }
  return rope_.Of(0, positions);
}

Tensor RecursiveModel::LossSum(const Tensor& high, const Tensor& targets, const RowLoss& loss,
                               const PassInputs& inputs) const {
  CheckIds(targets, config_, kIgnoredTarget);
  std::function<void()> worked;
  if (inputs.worked) worked = [on = inputs.worked, next = config_.layers] { on(next); };
  return ops::LossSum(high.to(head_.scalar_type()).view({-1, high.size(2)}), head_,
                      targets.flatten(), loss, worked);
}

Tensor RecursiveModel::Halting(const Tensor& high, const Tensor& last) const {
  Tensor read = high.select(1, 0);
  if (recursion().halt_reads_last) {
    // Dense, as the gradient is scattered by it.
    const Tensor place = last.view({-1, 1, 1}).expand({-1, 1, high.size(2)}).contiguous();
    read = high.gather(1, place).squeeze(1);
  }
  const Tensor narrow = read.to(halting_.weight.scalar_type()).contiguous();
  return ops::Linear(narrow, halting_)
      .to(head_.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
}

Tensor RecursiveModel::Logits(const Tensor& high) const {
  return ops::Linear(high.to(head_.scalar_type()), {head_, {}});
}

}  // namespace espalier
