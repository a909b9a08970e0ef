#include "worker/model/self_check.h"

#include "absl/strings/str_cat.h"
#include "worker/model/decoder.h"
#include "worker/tensor/device.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

// The gradient of one pass of a tiny decoder, on the host.
torch::Tensor TinyGradient(torch::Device device, torch::ScalarType type) {
  DecoderConfig config;
  config.vocab_size = config.hidden_size = config.intermediate_size = 16;
  config.layers = 1;
  config.heads = config.kv_heads = 2;
  config.head_dim = 8;
  Parameters::Options options = Parameters::ForTraining(device, type);
  options.untied_embedding = EmbeddingGradient::kDense;
  Parameters parameters = Parameters::Create(config, options).value();
  parameters.Initialize(1, 0.1);
  const torch::Tensor ids = torch::arange(8, torch::kLong).view({1, 8}).to(device);
  const Decoder decoder(config, parameters);
  decoder.LossSum(ids, ids).backward();
  return parameters.flat_gradient().Only().cpu();
}

// More than rounding explains, with TF32 at most where the type is fp32.
double Allowed(torch::ScalarType type) {
  if (type == torch::kBFloat16) return 0.1;
  return type == torch::kHalf ? 0.05 : 0.01;
}

}  // namespace

absl::StatusOr<double> SelfTest(torch::Device device, torch::ScalarType type) {
  double difference = 0;
  const absl::Status tried = CatchTorch("", [&] {
    const torch::Tensor expected = TinyGradient(torch::kCPU, torch::kFloat);
    const torch::Tensor found = TinyGradient(device, type);
    difference = ((found - expected).norm() / expected.norm()).item<double>();
  });
  if (absl::IsResourceExhausted(tried)) return tried;
  const std::string choose =
      "; choose another train.precision ('fp32' always works) or another launch.device";
  if (!tried.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "train.precision is '", PrecisionName(type), "', which device ", device.str(),
        " does not compute in with LibTorch ", TorchVersion(), tried.message(), choose));
  }
  if (!(difference <= Allowed(type))) {
    return absl::FailedPreconditionError(absl::StrCat(
        "in ", PrecisionName(type), " device ", device.str(), " computes gradients that differ by ",
        difference, " of their norm from the CPU's (at most ", Allowed(type),
        " is allowed) with LibTorch ", TorchVersion(), choose));
  }
  return difference;
}

}  // namespace espalier
