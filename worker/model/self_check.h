// SelfTest: whether a device computes a decoder in a precision as the CPU does in fp32, tried
// before anything is trained on it. Used by worker/session.cc, worker/rehearse_verb.cc,
// worker/self_test_verb.cc and worker/open_model.cc. Compute thread.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/formats/decoder_config.h"
#include "worker/tensor/torch.h"

namespace espalier {

struct DeviceTrial {
  // FAILED_PRECONDITION when the device cannot do it with this LibTorch, or comes to something else
  // than the CPU; RESOURCE_EXHAUSTED when it has no memory for that now.
  absl::Status status;
  // The operation that was at fault, as "attention, or its gradients"; empty: none was.
  std::string failed;
  // By how much a result, or the gradient of a parameter, differs at most, relative to its norm.
  double difference = 0;
};

// Runs single operations (operator_trials.h) and tiny decoders, which between them need every
// operation of a pass, forward and backward on the device in that type, and on the CPU in fp32; all
// of it twice on an accelerator, since some compute rightly until much was allocated. A few
// seconds. Only what a decoder of the architecture needs is tried.
DeviceTrial TryDevice(torch::Device device, torch::ScalarType type,
                      Architecture architecture = Architecture::kLlama);
// Its difference, or its status, which names the operation.
absl::StatusOr<double> SelfTest(torch::Device device, torch::ScalarType type,
                                Architecture architecture = Architecture::kLlama);
// Logs it. Absent on the CPU in fp32, which the others are compared with.
absl::StatusOr<std::optional<double>> SelfTestBeforeTraining(torch::Device device,
                                                             torch::ScalarType type,
                                                             Architecture architecture);

}  // namespace espalier
