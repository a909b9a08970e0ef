#include "worker/tensor/device.h"

#include "absl/strings/str_cat.h"
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

absl::string_view PrecisionName(torch::ScalarType type) {
  if (type == torch::kBFloat16) return "bf16";
  return type == torch::kHalf ? "fp16" : "fp32";
}

}  // namespace espalier
