#include "worker/model/device.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/model/decoder.h"
#include "worker/model/torch_compat.h"

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

// One pass of a tiny decoder, forward and backward.
void TryDecoder(torch::Device device, torch::ScalarType type) {
  DecoderConfig config;
  config.vocab_size = config.hidden_size = config.intermediate_size = 16;
  config.layers = 1;
  config.heads = config.kv_heads = 2;
  config.head_dim = 8;
  Parameters parameters =
      Parameters::Create(config, device, Parameters::Gradients::kAllocate, type).value();
  parameters.Initialize(1, 0.1);
  const torch::Tensor ids = torch::arange(8, torch::kLong).view({1, 8}).to(device);
  const Decoder decoder(config, parameters);
  decoder.LossSum(ids, ids).backward();
  const double norm = parameters.flat_gradient().norm().item<double>();
  TORCH_CHECK(std::isfinite(norm) && norm > 0, "the gradient came out as ", norm);
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

absl::Status CheckComputes(torch::Device device, torch::ScalarType type) {
  const absl::Status tried = CatchTorch("", [&] { TryDecoder(device, type); });
  if (tried.ok() || absl::IsResourceExhausted(tried)) return tried;
  return absl::FailedPreconditionError(absl::StrCat(
      "train.precision is '", PrecisionName(type), "', which device ", device.str(),
      " does not compute in with LibTorch ", TorchVersion(), tried.message(),
      "; choose another train.precision ('fp32' always works) or another launch.device"));
}

}  // namespace espalier
