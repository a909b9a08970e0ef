#include "worker/ops/causal_masks.h"

#include <cmath>

namespace espalier {
namespace {

using torch::Tensor;

// In operators that are right on MPS: triu of infinities is not a number where it subtracts what it
// hides.
Tensor MakeMask(const CausalMasks::Shape& shape, const torch::TensorOptions& options) {
  const torch::TensorOptions ids = options.dtype(torch::kLong);
  const Tensor position = torch::arange(shape.keys - shape.rows, shape.keys, ids).unsqueeze(1);
  const Tensor key = torch::arange(shape.keys, ids).unsqueeze(0);
  Tensor mask = torch::zeros({shape.rows, shape.keys}, options);
  mask.masked_fill_(key > position, -INFINITY);
  if (shape.window > 0) mask.masked_fill_(key <= position - shape.window, -INFINITY);
  return mask;
}

}  // namespace

Tensor CausalMasks::Of(const Shape& shape, const torch::TensorOptions& options) {
  for (const Kept& kept : kept_) {
    if (kept.shape == shape && kept.mask.dtype() == options.dtype() &&
        kept.mask.device() == options.device()) {
      return kept.mask;
    }
  }
  const Tensor mask = MakeMask(shape, options);
  // What is kept stays as long as this does: passes that were recorded read it where it is.
  const auto bytes = static_cast<int64_t>(mask.nbytes());
  if (bytes_ + bytes <= kMostBytes) {
    kept_.push_back({shape, mask});
    bytes_ += bytes;
  }
  return mask;
}

}  // namespace espalier
