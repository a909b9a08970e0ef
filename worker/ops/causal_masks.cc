#include "worker/ops/causal_masks.h"

#include <cmath>

namespace espalier {
namespace {

using torch::Tensor;

constexpr CausalMasks::Place kAnywhere{0, 0, 0};

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

Tensor CausalMasks::Find(const Shape& shape, const Place& place,
                         const torch::TensorOptions& options) const {
  for (const Kept& kept : kept_) {
    if (kept.shape == shape && kept.place == place && kept.mask.dtype() == options.dtype() &&
        kept.mask.device() == options.device()) {
      return kept.mask;
    }
  }
  return {};
}

// What is kept stays as long as this does: passes that were recorded read it where it is.
Tensor CausalMasks::Keep(const Shape& shape, const Place& place, Tensor mask) {
  const auto bytes = static_cast<int64_t>(mask.nbytes());
  if (bytes_ + bytes <= kMostBytes) {
    kept_.push_back({shape, place, mask});
    bytes_ += bytes;
  }
  return mask;
}

Tensor CausalMasks::Of(const Shape& shape, const torch::TensorOptions& options) {
  const Tensor mask = Find(shape, kAnywhere, options);
  return mask.defined() ? mask : Keep(shape, kAnywhere, MakeMask(shape, options));
}

Tensor CausalMasks::Of(const Shape& shape, const Place& place,
                       const torch::TensorOptions& options) {
  const Tensor mask = Find(shape, place, options);
  if (mask.defined()) return mask;
  const Tensor key =
      torch::arange(place.key, place.key + shape.keys, options.dtype(torch::kLong)).unsqueeze(0);
  const Tensor begins = begins_.narrow(0, place.sequence, place.sequences)
                            .narrow(1, place.key + shape.keys - shape.rows, shape.rows)
                            .unsqueeze(2);
  const Tensor plain = MakeMask(shape, options);
  const Tensor hidden = key < begins;
  return Keep(shape, place,
              torch::empty(hidden.sizes(), options)
                  .copy_(plain)
                  .masked_fill_(hidden, -INFINITY)
                  .unsqueeze(1));
}

}  // namespace espalier
