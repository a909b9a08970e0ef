// SelfTest: whether a device computes a decoder in a precision as the CPU does in fp32, tried
// before anything is trained on it. Used by worker/state when a replica is made. Compute thread.
#pragma once

#include <torch/torch.h>

#include "absl/status/statusor.h"

namespace espalier {

// Runs a tiny decoder forward and backward on the device in that type, and on the CPU in fp32.
// Returns by how much the gradients differ, relative to their norm. FAILED_PRECONDITION when the
// device cannot do it with this LibTorch, or comes to something else than the CPU.
absl::StatusOr<double> SelfTest(torch::Device device, torch::ScalarType type);

}  // namespace espalier
