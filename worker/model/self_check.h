// SelfTest: whether a device computes a decoder in a precision as the CPU does in fp32, tried
// before anything is trained on it. Used by worker/state when a replica is made, and by
// worker/rehearse_verb.cc. Compute thread.
#pragma once

#include <torch/torch.h>

#include "absl/status/statusor.h"

namespace espalier {

// Runs single operations (operator_trials.h) and tiny decoders, which between them need every
// operation of a pass, forward and backward on the device in that type, and on the CPU in fp32; all
// of it twice on an accelerator, since some compute rightly until much was allocated. A few
// seconds. Returns by how much a result, or the gradient of a parameter, differs at most, relative
// to its norm. FAILED_PRECONDITION when the device cannot do it with this LibTorch, or comes to
// something else than the CPU: it names the operation.
absl::StatusOr<double> SelfTest(torch::Device device, torch::ScalarType type);

}  // namespace espalier
