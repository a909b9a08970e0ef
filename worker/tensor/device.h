// Device selection: "auto" takes cuda, then mps, then cpu; a device that
// is asked for by name and missing is an error, never a quiet substitute. The caller logs the
// description. Used by worker/session.cc at start and by generation. Any thread.
#pragma once

#include <torch/torch.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

struct DeviceChoice {
  // "auto", "cpu", "cuda" or "mps".
  absl::string_view name = "auto";
  // Rank among the workers of this machine: they take the CUDA devices in turn.
  int local_rank = 0;
};

struct SelectedDevice {
  torch::Device device = torch::kCPU;
  std::string description;  // "cuda:1 (chosen by 'auto'), LibTorch 2.11.0"
};

// INVALID_ARGUMENT for a name that is none of these; FAILED_PRECONDITION when this machine or this
// LibTorch has no such device.
absl::StatusOr<SelectedDevice> SelectDevice(const DeviceChoice& choice);

// "fp32", "bf16", "fp16".
absl::string_view PrecisionName(torch::ScalarType type);

}  // namespace espalier
