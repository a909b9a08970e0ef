// What LibTorch's allocator holds on an accelerator. On the CPU, and on MPS, whose allocations are
// part of the process's footprint, the process itself is measured instead (common/platform). Used
// by worker/memory/memory_meter.cc. Any thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>

namespace espalier {

struct DeviceMemory {
  int64_t now_bytes = 0;    // in tensors, and by everybody else on the device: contexts, libraries
  int64_t peak_bytes = 0;   // the same, when tensors held most since RestartDevicePeak
  int64_t free_bytes = 0;   // what LibTorch keeps for tensors to come
  int64_t total_bytes = 0;  // of the device
};

// None where the device's memory is the process's, and where LibTorch (before 2.9) does not say.
std::optional<DeviceMemory> ReadDeviceMemory(torch::Device device);
void RestartDevicePeak(torch::Device device);
// Gives what LibTorch keeps for later back to the device.
void FreeDeviceCache(torch::Device device);

}  // namespace espalier
