#include "worker/model/parameters.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

// A parameter's part of a flat tensor, with a version of its own.
Tensor ViewOf(const FlatTensor& flat, const Parameter& parameter) {
  return flat.Slice(parameter.offset, parameter.size).view(parameter.shape.shape).variable_data();
}

// What is frozen is kept as it is computed with.
torch::ScalarType FrozenType(const ParameterShape& shape, bool tied,
                             const Parameters::Options& options) {
  if (shape.read_in_full() && !shape.is_embedding()) return torch::kFloat;
  const bool untied_embedding = !tied && shape.is_embedding();
  return untied_embedding ? options.frozen_embedding_type : options.compute_type;
}

// Elements that a refresh of the copy converts at a time, where it may need memory of its own.
constexpr int64_t kCopyPiece = int64_t{1} << 24;

int64_t Width(torch::ScalarType type) { return static_cast<int64_t>(torch::elementSize(type)); }

// Matrices of one input that follow each other lie side by side, so that their products can be one.
void AllocateFrozen(const DecoderConfig& config, const Parameters::Options& options,
                    std::vector<Parameter>& all) {
  const auto type = [&](const Parameter& one) {
    return FrozenType(one.shape, config.tie_word_embeddings, options);
  };
  const auto is_neighbour = [&](const Parameter& a, const Parameter& b) {
    return !a.trained && !b.trained && a.shape.role == ParameterRole::kMatrix &&
           b.shape.role == ParameterRole::kMatrix && a.shape.layer == b.shape.layer &&
           a.shape.stage == b.shape.stage && a.shape.shape[1] == b.shape.shape[1];
  };
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    int64_t elements = all[begin].size;
    for (end = begin + 1; end < all.size() && is_neighbour(all[end - 1], all[end]); ++end) {
      if (elements + all[end].size > options.arena_elements) break;
      elements += all[end].size;
    }
    if (all[begin].trained) continue;
    const Tensor storage = torch::empty(
        {elements}, torch::TensorOptions().dtype(type(all[begin])).device(options.device));
    for (int64_t at = 0; begin < end; at += all[begin++].size) {
      const Tensor part = storage.narrow(0, at, all[begin].size);
      all[begin].value = part.view(all[begin].shape.shape).variable_data();
      all[begin].leaf = all[begin].value;
    }
  }
}

// Adapters that nobody fills add nothing, whatever the memory held.
void ZeroAdapters(const std::vector<Parameter>& all) {
  torch::NoGradGuard no_grad;
  for (const Parameter& parameter : all) {
    if (!parameter.shape.is_adapter()) continue;
    for (const Tensor& values : {parameter.value, parameter.leaf}) Tensor(values).zero_();
  }
}

}  // namespace

Parameters::Options Parameters::ForTraining(torch::Device device, torch::ScalarType compute_type) {
  return {.device = device,
          .compute_type = compute_type,
          .trained = [](const ParameterShape&) { return true; },
          .untied_embedding =
              device.is_cuda() ? EmbeddingGradient::kDense : EmbeddingGradient::kRowsApart,
          .values_on_host = device.is_mps()};
}

Parameters::Size Parameters::SizeOf(const DecoderConfig& config, const Options& options) {
  Parameters placed;
  placed.Place(config, options);
  const int64_t trained = placed.arena_ends_.empty() ? 0 : placed.arena_ends_.back();
  return {placed.elements_, trained, placed.dense_, placed.before_embedding_, placed.bytes_};
}

absl::StatusOr<Parameters> Parameters::Create(const DecoderConfig& config, const Options& options) {
  Parameters parameters;
  parameters.Place(config, options);
  RETURN_IF_ERROR(
      CatchTorch(absl::StrCat("allocating ", parameters.bytes_, " bytes for ", parameters.elements_,
                              " parameters", parameters.dense_ > 0 ? " and their gradients" : "",
                              " on ", options.device.str()),
                 [&] {
                   parameters.Allocate(options);
                   for (Parameter& parameter : parameters.all_) {
                     if (parameter.trained) parameters.MakeViews(parameter);
                   }
                   AllocateFrozen(config, options, parameters.all_);
                   ZeroAdapters(parameters.all_);
                 }));
  for (const Parameter& parameter : parameters.all_) {
    if (parameter.trained) parameters.trained_.push_back(parameter);
  }
  if (config.tie_word_embeddings) parameters.MakeTiedHead();
  return parameters;
}

absl::StatusOr<Parameters> Parameters::WithValues(const FlatTensor& values) const {
  Parameters other = *this;
  other.flat_ = values;
  other.gradient_ = other.sums_ = FlatTensor();
  other.dense_ = other.norms_ = 0;
  other.lookup_gradient_ = {};
  other.trained_.clear();
  RETURN_IF_ERROR(CatchTorch("allocating a copy of the averaged parameters", [&] {
    if (copy_.defined()) {
      other.copy_ = FlatTensor::Empty(copy_.ends(), copy_.arenas().front().options());
    }
    if (norms_copy_.defined()) {
      other.norms_copy_ = torch::empty_like(norms_copy_);
      other.norms_host_ = torch::empty_like(norms_host_);
    }
    for (Parameter& parameter : other.all_) {
      if (!parameter.trained) continue;
      other.MakeViews(parameter);
      other.trained_.push_back(parameter);
    }
    if (tied_head_.defined() && Embedding().trained) {
      other.tied_head_ = ViewOf(other.copy_.defined() ? other.copy_ : values, Embedding());
    }
    other.RefreshCopy();
  }));
  return other;
}

// Numbers what is trained through, and decides what lies where.
void Parameters::Place(const DecoderConfig& config, const Options& options) {
  const bool tied = config.tie_word_embeddings;
  std::vector<int64_t> part_ends;
  int64_t offset = 0;
  lora_ = options.lora;
  for (ParameterShape& shape : ParameterShapes(config, options.lora)) {
    const bool trained = options.trained && options.trained(shape);
    const int64_t size = shape.elements();
    elements_ += size;
    Parameter parameter{std::move(shape), trained, trained ? offset : 0, size, {}, {}};
    if (trained) {
      offset += size;
      part_ends.push_back(offset);
      if (parameter.shape.stage != BackwardStage::kEmbedding) before_embedding_ = offset;
      const bool embedding = parameter.shape.is_embedding();
      if (embedding) embedding_ = tied ? EmbeddingGradient::kDense : options.untied_embedding;
      if (!embedding || embedding_ == EmbeddingGradient::kDense) dense_ = offset;
      // A tied head reads the table's copy.
      const bool all = options.values_on_host && options.compute_type == torch::kFloat;
      if (all || (embedding && tied) || !parameter.shape.read_in_full()) copied_ = offset;
      const bool full_copy = options.values_on_host && !all && parameter.shape.read_in_full();
      if (full_copy) bytes_ += size * Width(torch::kFloat);
      if (full_copy && parameter.shape.is_norm()) norms_ += size;
    } else {
      bytes_ += size * Width(FrozenType(parameter.shape, tied, options));
    }
    all_.push_back(std::move(parameter));
  }
  arena_ends_ = ArenaEnds(part_ends, options.arena_elements);
  values_on_host_ = options.values_on_host;
  bytes_ += (offset + dense_) * Width(torch::kFloat);
  if (values_on_host_) bytes_ += (dense_ + norms_) * Width(torch::kFloat);
  if (values_on_host_ || options.compute_type != torch::kFloat) {
    bytes_ += copied_ * Width(options.compute_type);
  }
}

void Parameters::Allocate(const Options& options) {
  const auto fp32 = torch::TensorOptions().dtype(torch::kFloat).device(options.device);
  flat_ = FlatTensor::Empty(arena_ends_, values_on_host_ ? fp32.device(torch::kCPU) : fp32);
  gradient_ = FlatTensor::Zeros(PrefixEnds(arena_ends_, dense_), fp32);
  if (values_on_host_) {
    sums_ = FlatTensor::Zeros(gradient_.ends(), fp32.device(torch::kCPU));
    norms_copy_ = torch::empty({norms_}, fp32);
    norms_host_ = torch::empty({norms_}, fp32.device(torch::kCPU));
    norms_ = 0;  // those that have a place
  } else if (options.compute_type == torch::kFloat) {
    return;
  }
  copy_ = FlatTensor::Empty(PrefixEnds(arena_ends_, copied_), fp32.dtype(options.compute_type));
}

// An fp32 copy on the device, of a value that is on the host.
Tensor Parameters::FullCopyOf(const Parameter& parameter) {
  if (!parameter.shape.is_norm()) {
    return torch::empty(parameter.shape.shape, norms_copy_.options());
  }
  const int64_t at = std::exchange(norms_, norms_ + parameter.size);
  return norms_copy_.narrow(0, at, parameter.size).view(parameter.shape.shape).variable_data();
}

void Parameters::MakeViews(Parameter& parameter) {
  parameter.value = ViewOf(flat_, parameter);
  const bool same_type = copy_.defined() && copy_.arenas().front().scalar_type() == torch::kFloat;
  if (copy_.defined() && (same_type || !parameter.shape.read_in_full())) {
    parameter.leaf = ViewOf(copy_, parameter);
  } else {
    parameter.leaf = values_on_host_ ? FullCopyOf(parameter) : parameter.value;
  }
  if (parameter.offset >= dense_) return;
  parameter.leaf.set_requires_grad(true);
  parameter.leaf.mutable_grad() = ViewOf(gradient_, parameter);
}

void Parameters::MakeTiedHead() {
  const Parameter& table = Embedding();
  if (!table.trained) {
    tied_head_ = table.leaf;
    return;
  }
  tied_head_ = ViewOf(copy_.defined() ? copy_ : flat_, table).set_requires_grad(true);
  tied_head_.mutable_grad() = ViewOf(gradient_, table);
}

void Parameters::RefreshCopy() {
  torch::NoGradGuard no_grad;
  int64_t begin = 0;
  for (const torch::Tensor& arena : copy_.arenas()) {
    for (int64_t at = 0; at < arena.numel(); at += kCopyPiece) {
      const int64_t size = std::min(kCopyPiece, arena.numel() - at);
      arena.narrow(0, at, size).copy_(flat_.Slice(begin + at, size));
    }
    begin += arena.numel();
  }
  const bool whole = copy_.defined() && copy_.arenas().front().scalar_type() == torch::kFloat;
  if (!values_on_host_ || whole) return;
  int64_t norm = 0;
  for (const Parameter& parameter : trained_) {
    if (!parameter.shape.read_in_full()) continue;
    if (parameter.shape.is_norm()) {
      const int64_t at = std::exchange(norm, norm + parameter.size);
      norms_host_.narrow(0, at, parameter.size).copy_(parameter.value.flatten());
    } else {
      torch::Tensor(parameter.leaf).detach().copy_(parameter.value);
    }
  }
  if (norm > 0) norms_copy_.copy_(norms_host_);
}

const Parameter* Parameters::Find(absl::string_view name) const {
  const auto it = std::find_if(all_.begin(), all_.end(),
                               [name](const Parameter& one) { return one.shape.name == name; });
  return it == all_.end() ? nullptr : &*it;
}

const Parameter& Parameters::Embedding() const {
  return *std::find_if(all_.begin(), all_.end(),
                       [](const Parameter& one) { return one.shape.is_embedding(); });
}

Tensor Parameters::Get(absl::string_view name) const {
  const Parameter* parameter = Find(name);
  return parameter == nullptr ? Tensor() : parameter->value;
}

Tensor Parameters::Head() const {
  if (tied_head_.defined()) return tied_head_;
  return std::find_if(all_.begin(), all_.end(),
                      [](const Parameter& one) { return one.shape.role == ParameterRole::kHead; })
      ->leaf;
}

std::vector<Tensor> Parameters::GradientLeaves() const {
  std::vector<Tensor> leaves;
  for (const Parameter& parameter : trained_) {
    if (parameter.leaf.requires_grad()) leaves.push_back(parameter.leaf);
  }
  if (tied_head_.defined() && tied_head_.requires_grad()) leaves.push_back(tied_head_);
  return leaves;
}

void Parameters::ZeroGradients() {
  gradient_.Zero();
  if (sums_.defined()) sums_.Zero();
  lookup_gradient_ = {};
}

}  // namespace espalier
