#include "worker/tensor/device_memory.h"

#include <torch/version.h>

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
#define ESPALIER_DEVICE_ALLOCATOR 1
#include <c10/core/CachingDeviceAllocator.h>
#endif
#if TORCH_VERSION_MAJOR >= 2
#include <ATen/detail/MPSHooksInterface.h>
#endif

namespace espalier {

#ifdef ESPALIER_DEVICE_ALLOCATOR
namespace {

// Null where the device has none, as the CPU.
c10::DeviceAllocator* AllocatorOf(torch::Device device) {
  if (device.is_cpu()) return nullptr;
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

c10::DeviceIndex IndexOf(torch::Device device) {
  return device.has_index() ? device.index() : c10::DeviceIndex{0};
}

}  // namespace

std::optional<DeviceMemory> ReadDeviceMemory(torch::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  c10::DeviceAllocator* allocator = AllocatorOf(device);
  if (allocator == nullptr) {  // nothing has been asked of the device yet
    torch::empty({1}, device);
    allocator = AllocatorOf(device);
  }
  if (allocator == nullptr) return std::nullopt;
  const auto [free, total] = allocator->getMemoryInfo(IndexOf(device));
  const auto stats = allocator->getDeviceStats(IndexOf(device));
  const auto& tensors = stats.allocated_bytes[0];
  const int64_t others = static_cast<int64_t>(total - free) - stats.reserved_bytes[0].current;
  return DeviceMemory{.now_bytes = tensors.current + others,
                      .peak_bytes = tensors.peak + others,
                      .free_bytes = stats.reserved_bytes[0].current - tensors.current,
                      .total_bytes = static_cast<int64_t>(total)};
}

void RestartDevicePeak(torch::Device device) {
  if (auto* allocator = AllocatorOf(device)) allocator->resetPeakStats(IndexOf(device));
}

void FreeDeviceCache(torch::Device device) {
  if (auto* allocator = AllocatorOf(device)) return allocator->emptyCache();
  if (device.is_mps()) at::detail::getMPSHooks().emptyCache();
}
#else
std::optional<DeviceMemory> ReadDeviceMemory(torch::Device) { return std::nullopt; }

void RestartDevicePeak(torch::Device) {}

void FreeDeviceCache(torch::Device device) {
#if TORCH_VERSION_MAJOR >= 2
  if (device.is_mps()) at::detail::getMPSHooks().emptyCache();
#else
  (void)device;
#endif
}
#endif

}  // namespace espalier
