// Parameters: every tensor of a decoder under its Hugging Face name, each a view of one flat fp32
// allocation, with the gradient of each a view of a second one (architecture, section 5: no
// packing copies, one fused optimizer pass, one contiguous state). A model that computes in another
// type has a third one besides: a copy of the values that it computes with in that type.
// Used by worker/model (compute), worker/sync, worker/optimizer and worker/state.
// Thread rule: owned by the compute thread; a reader of the flat memory must be told when (ticket).
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/random.h"
#include "worker/formats/decoder_config.h"

namespace espalier {

struct ParameterShape {
  std::string name;  // "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  // Of the decoder; the number of layers: final norm, head and a table tied to it; -1: an
  // embedding of its own, whose gradient is of lookups alone.
  int64_t layer = 0;
  bool decay = false;  // matrices are decayed, norms and biases are not
};

// All parameters of the shape, in flat order: the order in which the backward pass finishes them
// (head, or the table that is tied to it, and final norm, last layer ... first layer, embedding),
// so that a prefix of the flat gradient is final early. A tied head has no entry of its own.
std::vector<ParameterShape> ParameterShapes(const DecoderConfig& config);

struct Parameter {
  ParameterShape shape;
  int64_t offset = 0;   // elements from the start of the flat buffers
  int64_t size = 0;     // elements
  torch::Tensor value;  // view of the flat fp32 values
  // What the decoder computes with: its copy in the compute type where it is multiplied as a matrix
  // or added as a bias, else `value` itself. A leaf; with gradients it requires grad, and
  // leaf.grad() is the fp32 view of the flat gradient also where the leaf is of another type:
  // operations add to it in place.
  torch::Tensor leaf;
};

// The gradient of an embedding of its own, as the rows that a step has looked up; all others are
// zero.
struct LookupGradient {
  std::vector<int64_t> ids;  // growing
  torch::Tensor rows;        // [ids, C] fp32, on any device; undefined without ids
};

class Parameters {
 public:
  enum class Gradients {
    kAllocate,
    // But an embedding of its own has none in flat_gradient(), which is shorter by it: its leaf
    // needs no gradient, and whoever looks ids up sets lookup_gradient().
    kLookupsApart,
    kNone,  // the model is only used for inference
  };
  // What training keeps on a device. On CUDA passes are recorded, in which nothing may change from
  // step to step but the ids.
  static Gradients ForTraining(torch::Device device) {
    return device.is_cuda() ? Gradients::kAllocate : Gradients::kLookupsApart;
  }
  // Allocates values and gradients, zeroed. RESOURCE_EXHAUSTED names the bytes needed.
  static absl::StatusOr<Parameters> Create(const DecoderConfig& config, torch::Device device,
                                           Gradients gradients,
                                           torch::ScalarType compute_type = torch::kFloat);

  // Normal(0, initializer_range) matrices, zero biases, ones for norms; each tensor from its own
  // stream of `seed`, so that the weights do not depend on device, rank or thread count.
  void Initialize(uint64_t seed, double initializer_range);

  absl::Span<const Parameter> all() const { return all_; }
  // Null when there is no such parameter.
  const Parameter* Find(absl::string_view name) const;
  // Its fp32 value; an undefined tensor when there is no such parameter.
  torch::Tensor Get(absl::string_view name) const;
  // lm_head.weight in the compute type; of a tied head a leaf of its own that shares the memory of
  // the embedding's values, or copy, and of its gradient.
  torch::Tensor Head() const;
  // Every leaf that the decoder computes with and that has a gradient: parameters, and a tied head.
  // The version of its grad() moves exactly when a pass has added its part to it (see MarkAdded in
  // fused_tensor.h), so that a pass that failed halfway can be told from one that did not begin.
  std::vector<torch::Tensor> Roles() const;
  torch::Tensor& flat() { return flat_; }               // [elements], fp32
  torch::Tensor& flat_gradient() { return gradient_; }  // [elements] or less, fp32
  // Of the step; none with a gradient of the whole table.
  LookupGradient& lookup_gradient() { return lookup_gradient_; }
  // The first elements in the compute type, as far as they are computed with in it: an embedding of
  // its own, which comes last, is not. Undefined when the compute type is fp32. Whoever writes to
  // flat() makes it equal again, by RefreshCopy or in the same pass.
  torch::Tensor& flat_copy() { return copy_; }
  void RefreshCopy();
  int64_t elements() const { return flat_.numel(); }
  // Those before an embedding of its own, which comes last.
  int64_t elements_before_lookups() const;
  void ZeroGradients();

 private:
  std::vector<Parameter> all_;
  torch::Tensor flat_;
  torch::Tensor copy_;
  torch::Tensor gradient_;
  LookupGradient lookup_gradient_;
  torch::Tensor tied_head_;
};

}  // namespace espalier
