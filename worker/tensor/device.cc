#include "worker/tensor/device.h"

#include <torch/version.h>

#include <algorithm>

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
#define ESPALIER_DEVICE_ALLOCATOR 1
#include <c10/core/CachingDeviceAllocator.h>
#endif
#if TORCH_VERSION_MAJOR >= 2
#include <ATen/detail/MPSHooksInterface.h>
#endif

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/platform/platform.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {

namespace {

torch::Device CudaDevice(int local_rank) {
  const auto count = static_cast<int>(torch::cuda::device_count());
  return torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(local_rank % count));
}

absl::Status Missing(absl::string_view name) {
  return absl::FailedPreconditionError(
      absl::StrCat("device '", name, "' was asked for, but LibTorch ", TorchVersion(),
                   " sees none on this machine; choose 'auto' or 'cpu', or install a LibTorch and "
                   "a driver with ",
                   name));
}

}  // namespace

absl::StatusOr<SelectedDevice> SelectDevice(const DeviceChoice& choice) {
  const bool any = choice.name == "auto";
  if (choice.name == "cuda" && !HasCuda()) return Missing("cuda");
  if (choice.name == "mps" && !HasMps()) return Missing("mps");
  if (!any && choice.name != "cuda" && choice.name != "mps" && choice.name != "cpu") {
    return absl::InvalidArgumentError(
        absl::StrCat("device is '", choice.name, "'; allowed: auto, cpu, cuda, mps"));
  }
  torch::Device device(torch::kCPU);
  if (choice.name == "cuda" || (any && HasCuda())) {
    device = CudaDevice(choice.local_rank);
  } else if (choice.name == "mps" || (any && HasMps())) {
    device = torch::Device(torch::kMPS);
  }
  return SelectedDevice{device, absl::StrCat(device.str(), any ? " (chosen by 'auto')" : "",
                                             ", LibTorch ", TorchVersion())};
}

absl::Status SetComputeThreads(int asked, int workers_here) {
  ASSIGN_OR_RETURN(const Processor processor, ReadProcessor());
  const int most = std::max(64, 4 * processor.logical);
  if (asked < 0 || asked > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "compute threads: ", asked, " were asked for on a machine with ", processor.logical,
        " processors; allowed: 1 to ", most, ", or 0 for as many as pay"));
  }
  const int paying = std::max(1, processor.performance_cores / workers_here);
  at::set_num_threads(asked > 0 ? asked : paying);
  return absl::OkStatus();
}

absl::string_view PrecisionName(torch::ScalarType type) {
  if (type == torch::kBFloat16) return "bf16";
  return type == torch::kHalf ? "fp16" : "fp32";
}

int64_t RecommendedDeviceMemory(torch::Device device) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 5)
  if (device.is_mps()) {
    return static_cast<int64_t>(at::detail::getMPSHooks().getRecommendedMaxMemory());
  }
#endif
  (void)device;
  return 0;
}

void LimitDeviceMemory(torch::Device device, double part) {
#if TORCH_VERSION_MAJOR >= 2
  if (device.is_mps()) at::detail::getMPSHooks().setMemoryFraction(part);
#endif
  (void)device;
  (void)part;
}

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
