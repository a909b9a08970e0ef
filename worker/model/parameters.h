// Parameters: every tensor of a decoder under its Hugging Face name. What is trained are views of
// flat fp32 arenas, with gradients as views of others (no packing copies, one fused pass of the
// optimizer, one contiguous state); a model that computes in 16 bits has a flat copy of the values
// in that type besides. Where the device shares the machine's memory (MPS), values and sums of
// gradients lie on the host, where they are updated and outlive the process; the device has the
// copy that it computes with. What is frozen has storages of its own, in the type it is computed
// with, and no gradient. Used by decoder.h, worker/sync, worker/optimizer, worker/memory,
// worker/state and worker/train. Compute thread; another reader of flat memory is told when.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/model/parameter.h"
#include "worker/model/parameter_shapes.h"
#include "worker/tensor/flat_tensor.h"
#include "worker/tensor/torch.h"

namespace espalier {

class Parameters {
 public:
  struct Options {
    torch::Device device = torch::kCPU;
    torch::ScalarType compute_type = torch::kFloat;
    // Which parameters are trained. Null: none, as for inference.
    std::function<bool(const ParameterShape&)> trained;
    // The type in which an untied embedding that is frozen is kept.
    torch::ScalarType frozen_embedding_type = torch::kFloat;
    // Of an untied embedding that is trained.
    EmbeddingGradient untied_embedding = EmbeddingGradient::kRowsApart;
    std::optional<LoraConfig> lora = std::nullopt;
    int64_t arena_elements = kArenaElements;  // most of an arena
    bool values_on_host = false;              // what is trained; the device has copies
  };
  // All are trained, with the embedding as training keeps it on that device: on CUDA passes are
  // recorded, in which nothing may change from step to step but the ids, so the gradient is dense.
  static Options ForTraining(torch::Device device, torch::ScalarType compute_type = torch::kFloat);

  // What Create would allocate.
  struct Size {
    int64_t elements = 0;
    int64_t trained_elements = 0;
    int64_t dense_elements = 0;  // of the flat gradient
    int64_t elements_before_embedding = 0;
    int64_t bytes = 0;  // of all of it
  };
  static Size SizeOf(const DecoderConfig& config, const Options& options);
  // Allocates values and zeroed gradients. RESOURCE_EXHAUSTED names the bytes needed.
  static absl::StatusOr<Parameters> Create(const DecoderConfig& config, const Options& options);

  // The same with other values of what is trained, [trained_elements()] where flat() lies, which
  // are read where they are; without gradients. What is frozen is shared. RESOURCE_EXHAUSTED names
  // the bytes of the copy in the compute type.
  absl::StatusOr<Parameters> WithValues(const FlatTensor& values) const;

  // Normal(0, initializer_range) matrices (times their spread), zero biases, ones for norms; each
  // tensor from its own stream of `seed`, whatever the device, threads, and what is trained.
  void Initialize(uint64_t seed, double initializer_range);
  // Of adapters alone: A kaiming-uniform(sqrt 5), B zero, so that they add nothing.
  void InitializeAdapters(uint64_t seed);
  const std::optional<LoraConfig>& lora() const { return lora_; }

  // In flat order; those that are trained have places in the flat buffers.
  absl::Span<const Parameter> all() const { return all_; }
  absl::Span<const Parameter> trained() const { return trained_; }
  // Null when there is no such parameter.
  const Parameter* Find(absl::string_view name) const;
  const Parameter& Embedding() const;
  // Its value; an undefined tensor when there is no such parameter.
  torch::Tensor Get(absl::string_view name) const;
  // The head in the compute type; of a tied head a leaf of its own that shares the memory of
  // the embedding's values, or copy, and of its gradient.
  torch::Tensor Head() const;
  // Every leaf that the decoder computes with and that has a gradient: parameters, and a tied head.
  // The version of its grad() moves exactly when a pass has added its part to it (see MarkAdded in
  // fused_tensor.h), so that a pass that failed halfway can be told from one that did not begin.
  std::vector<torch::Tensor> GradientLeaves() const;
  EmbeddingGradient embedding() const { return embedding_; }

  // Of what is trained: [trained_elements()] fp32.
  FlatTensor& flat() { return flat_; }
  const FlatTensor& flat() const { return flat_; }
  // [dense_elements()] fp32: of all but an embedding whose rows are apart, which comes last.
  FlatTensor& flat_gradient() { return gradient_; }
  // The sums of it that an update reads: itself, or, of values that lie on the host, others there,
  // which come from the exchange (worker/sync).
  FlatTensor& summed_gradient() { return values_on_host_ ? sums_ : gradient_; }
  bool values_on_host() const { return values_on_host_; }
  // Of the step; none with a gradient of the whole table.
  LookupGradient& lookup_gradient() { return lookup_gradient_; }
  // The first elements in the compute type, as far as they are computed with in it: an untied
  // embedding, which comes last, is not. Undefined when all is computed with in fp32, and here.
  // Whoever writes to flat() makes it equal again, by RefreshCopy or in the same pass.
  FlatTensor& flat_copy() { return copy_; }
  void RefreshCopy();
  void ZeroGradients();

  int64_t elements() const { return elements_; }  // trained and frozen
  int64_t trained_elements() const { return flat_.numel(); }
  int64_t dense_elements() const { return gradient_.numel(); }
  int64_t elements_before_embedding() const { return before_embedding_; }
  torch::Device device() const { return all_.front().leaf.device(); }

 private:
  void Place(const DecoderConfig& config, const Options& options);
  void Allocate(const Options& options);
  void MakeViews(Parameter& parameter);
  torch::Tensor FullCopyOf(const Parameter& parameter);
  void MakeTiedHead();

  std::vector<Parameter> all_, trained_;
  std::optional<LoraConfig> lora_;
  EmbeddingGradient embedding_ = EmbeddingGradient::kFrozen;
  int64_t elements_ = 0;
  std::vector<int64_t> arena_ends_;
  int64_t dense_ = 0, before_embedding_ = 0;  // elements
  int64_t copied_ = 0, norms_ = 0;            // elements of copy_, and of those in norms_copy_
  int64_t bytes_ = 0;
  bool values_on_host_ = false;
  FlatTensor flat_, copy_, gradient_;
  FlatTensor sums_;  // on the host; defined with values_on_host_
  // Of values on the host, beside a copy in 16 bits: all norms in fp32, and where they are joined.
  torch::Tensor norms_copy_, norms_host_;
  LookupGradient lookup_gradient_;
  torch::Tensor tied_head_;
};

}  // namespace espalier
