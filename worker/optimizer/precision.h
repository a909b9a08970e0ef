// What `train.precision` means on a device: the type of activations and of the weights that the
// passes use, and whether losses are scaled. Used by worker/state, worker/sync and the
// trainer. Any thread.
#pragma once

#include "absl/status/statusor.h"
#include "espalier/v1/job.pb.h"
#include "worker/tensor/torch.h"

namespace espalier {

// FAILED_PRECONDITION when the device does not compute in that precision: never another one in its
// place.
absl::StatusOr<torch::ScalarType> ComputeType(v1::Precision precision, torch::Device device);

// Dynamic loss scaling (Micikevicius et al. 2018, section 3.2) for fp16, whose smallest numbers are
// too large for many gradients: the loss is multiplied by 2^exponent before the backward pass, and
// the update divides by it. A gradient that is not finite skips the update and halves the scale;
// kGrowAfter finite ones in a row double it. The scale of every other precision is 1 for ever.
// Plain: it travels as bytes, and is part of the checkpoint.
struct LossScale {
  static constexpr int64_t kFirstExponent = 8;  // losses are sums over tokens, not means
  static constexpr int64_t kLastExponent = 40;
  static constexpr int64_t kGrowAfter = 2000;

  int64_t dynamic = 0;  // 0 or 1
  int64_t exponent = 0;
  int64_t finite_in_a_row = 0;

  static LossScale For(v1::Precision precision);
  double value() const { return static_cast<double>(int64_t{1} << exponent); }
  // A number that is another for another state.
  uint64_t Fingerprint() const {
    return static_cast<uint64_t>(dynamic << 62 | exponent << 48 | finite_in_a_row);
  }
  // After a step whose gradient is finite or not. False when it is not and there is no smaller
  // scale to try: then the numbers themselves are at fault.
  bool Adjust(bool finite);
};

}  // namespace espalier
