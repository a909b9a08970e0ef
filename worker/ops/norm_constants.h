// Numbers that norms of root mean squares add and multiply with, on the device: made once and kept,
// since all norms of a model need the same, and making them is a launch each time.
// A decoder layer's norms share one (worker/model/decoder_layer.cc), which lives as long as what
// was recorded of their passes. Used by worker/ops/generic_norms.cc and worker/ops/operands.h. One
// thread at a time: the one that computes, or autograd's while that one waits for it.
#pragma once

#include <cstdint>

#include "worker/tensor/torch.h"

namespace espalier {

class NormConstants : public torch::CustomClassHolder {
 public:
  // A number 0, [], in the type and on the device of `options`.
  torch::Tensor Zero(const torch::TensorOptions& options) {
    if (!IsOf(zero_, options)) zero_ = torch::zeros({}, options);
    return zero_;
  }
  // Ones, [count], likewise.
  torch::Tensor Ones(int64_t count, const torch::TensorOptions& options) {
    if (!IsOf(ones_, options) || ones_.size(0) < count) ones_ = torch::ones({count}, options);
    return ones_.narrow(0, 0, count);
  }

 private:
  static bool IsOf(const torch::Tensor& kept, const torch::TensorOptions& options) {
    return kept.defined() && kept.dtype() == options.dtype() && kept.device() == options.device();
  }

  torch::Tensor zero_, ones_;
};

}  // namespace espalier
