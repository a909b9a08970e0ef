// A device: its selection, where "auto" takes cuda, then mps, then cpu, and a device that is asked
// for by name and missing is an error, never a quiet substitute; and what LibTorch's allocator
// holds there. On the CPU, and on MPS, whose allocations are part of the process's footprint, the
// process itself is measured instead (common/platform). Used by worker/model, worker/memory,
// worker/state, worker/rollout, worker/train, worker/job_inputs.cc, worker/session.cc,
// worker/run.cc, worker/open_model.cc, worker/rehearse_verb.cc and worker/self_test_verb.cc. Any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/tensor/torch.h"

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

// How many threads compute on the CPU: as many as asked for; 0: the cores that pay, shared by the
// workers of this machine. INVALID_ARGUMENT for more than could be of use here.
absl::Status SetComputeThreads(int asked, int workers_here);

// "fp32", "bf16", "fp16".
absl::string_view PrecisionName(torch::ScalarType type);

struct DeviceMemory {
  int64_t now_bytes = 0;    // in tensors, and by everybody else on the device: contexts, libraries
  int64_t peak_bytes = 0;   // the same, when tensors held most since RestartDevicePeak
  int64_t free_bytes = 0;   // what LibTorch keeps for tensors to come
  int64_t total_bytes = 0;  // of the device
};

// None where the device's memory is the process's, and where LibTorch (before 2.9) does not say.
std::optional<DeviceMemory> ReadDeviceMemory(torch::Device device);
void RestartDevicePeak(torch::Device device);
// What the device says that it can well hold (MPS); 0: it does not say. Makes LibTorch's allocator,
// as the next does.
int64_t RecommendedDeviceMemory(torch::Device device);
// Has an allocation on MPS fail that would pass this part of what the device recommends.
void LimitDeviceMemory(torch::Device device, double part);
// Gives what LibTorch keeps for later back to the device.
void FreeDeviceCache(torch::Device device);

}  // namespace espalier
