// AdamW over the flat buffers of Parameters, with its moments in two flat buffers of their own, and
// the norm of the gradient. On the CPU: one pass over raw memory, in blocks of a fixed size, so
// that the result does not depend on the number of threads; elsewhere LibTorch's operators. Used by
// the trainer. Compute thread only.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/job.pb.h"
#include "worker/model/parameters.h"

namespace espalier {

class AdamW {
 public:
  // Allocates the moments, zeroed, on the device of the parameters, which must have gradients and
  // outlive this. RESOURCE_EXHAUSTED names the bytes needed.
  static absl::StatusOr<AdamW> Create(const v1::OptimizerSpec& spec, Parameters& parameters);

  struct Update {
    double learning_rate = 0;
    // The gradient is multiplied by this first: 1 / tokens, and clipping.
    double gradient_scale = 1;
  };
  // One update of every parameter and of its copy in the compute type; the gradient is zero
  // afterwards.
  void Apply(const Update& update);

  // L2 norm of the flat gradient as it stands (not scaled); not finite when an element is not.
  double GradientNorm() const;

  torch::Tensor& first_moment() { return first_; }    // [elements], fp32
  torch::Tensor& second_moment() { return second_; }  // [elements], fp32
  // Updates applied, on which the correction of the moments' bias depends.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

 private:
  // Neighbouring parameters that are treated alike.
  struct Group {
    int64_t begin = 0;
    int64_t end = 0;
    bool decay = false;
    bool copied = false;  // into the compute type
  };
  struct Factors;
  AdamW(const v1::OptimizerSpec& spec, Parameters& parameters);
  Factors FactorsOf(const Update& update) const;
  void ApplyOnCpu(const Factors& factors);
  void ApplyOnCuda(const Factors& factors);
  void ApplyOnDevice(const Factors& factors);

  v1::OptimizerSpec spec_;
  Parameters* parameters_;
  std::vector<Group> groups_;
  torch::Tensor first_;
  torch::Tensor second_;
  int64_t updates_ = 0;
};

// The factor that shortens a gradient of length `norm` to at most `clip_norm` (0: never).
double ClipFactor(double norm, double clip_norm);

}  // namespace espalier
