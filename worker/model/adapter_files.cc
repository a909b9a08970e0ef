#include "worker/model/adapter_files.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "worker/formats/safetensors.h"
#include "worker/model/copy_tensor.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

constexpr int64_t kJsonLimitBytes = int64_t{16} << 20;

absl::Status Named(const absl::Status& status, absl::string_view path) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

absl::Status CopyAdapters(const Safetensors& file, const Parameters& parameters) {
  size_t used = 0;
  for (const Parameter& parameter : parameters.all()) {
    if (!parameter.shape.is_adapter()) continue;
    const TensorView* const found = file.Find(parameter.shape.name);
    if (found == nullptr) {
      return absl::NotFoundError(absl::StrCat("it has no tensor ", parameter.shape.name, ", which ",
                                              kAdapterConfigName, " asks for"));
    }
    RETURN_IF_ERROR(CopyTensor(file, *found, parameter));
    ++used;
  }
  if (used == file.tensors().size()) return absl::OkStatus();
  for (const TensorView& tensor : file.tensors()) {
    if (parameters.Find(tensor.spec.name) != nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "it holds tensor ", tensor.spec.name,
        ", for which the model has no place with the targets of ", kAdapterConfigName));
  }
  return absl::OkStatus();
}

}  // namespace

bool HoldsAdapter(const std::string& folder) {
  const auto text = PosixFileSystem().Read(JoinPath(folder, kAdapterConfigName), kJsonLimitBytes);
  return !folder.empty() && text.ok();
}

absl::StatusOr<LoraConfig> ReadLoraConfig(const std::string& folder) {
  const std::string path = JoinPath(folder, kAdapterConfigName);
  ASSIGN_OR_RETURN(const std::string text, PosixFileSystem().Read(path, kJsonLimitBytes));
  absl::StatusOr<LoraConfig> config = LoraConfigFromJson(text);
  if (!config.ok()) return Named(config.status(), folder);
  return config;
}

absl::StatusOr<std::optional<LoraConfig>> JobLora(const DecoderConfig& config,
                                                  const v1::TrainSpec& train) {
  if (!train.has_lora()) return std::nullopt;
  LoraConfig lora = LoraConfigFromSpec(train.lora());
  const bool given = train.lora().has_from();
  if (given) {
    ASSIGN_OR_RETURN(lora, ReadLoraConfig(train.lora().from()));
    lora.dropout = train.lora().dropout();
  }
  RETURN_IF_ERROR(
      CheckLoraTargets(config, lora, given ? LoraTargetsFound::kSome : LoraTargetsFound::kAll));
  return lora;
}

std::string AdaptersText(const DecoderConfig& config, const std::optional<LoraConfig>& lora) {
  if (!lora) return "";
  std::string text = absl::StrFormat("scale %.17g\n", lora->scale());
  for (const ParameterShape& shape : ParameterShapes(config, lora)) {
    if (!shape.is_adapter()) continue;
    absl::StrAppend(&text, shape.name, " ", absl::StrJoin(shape.shape, "x"), "\n");
  }
  return text;
}

absl::Status LoadAdapter(const std::string& folder, Parameters& parameters) {
  const std::string path = JoinPath(folder, kAdapterModelName);
  ASSIGN_OR_RETURN(const Safetensors file, Safetensors::Open(path));
  const absl::Status status = CopyAdapters(file, parameters);
  if (!status.ok()) return Named(status, path);
  return CatchTorch("narrowing the adapters", [&] { parameters.RefreshCopy(); });
}

torch::Tensor MergedValue(const DecoderConfig& config, const Parameters& parameters,
                          const Parameter& parameter) {
  torch::NoGradGuard no_grad;
  const auto on_host = [](const torch::Tensor& value) {
    return value.detach().to(torch::kCPU).to(torch::kFloat);
  };
  torch::Tensor value = on_host(parameter.value);
  const std::string projection(absl::StripSuffix(parameter.shape.name, ".weight"));
  const Parameter* const a = parameters.Find(AdapterName(projection, ParameterRole::kAdapterA));
  if (a == nullptr || parameter.shape.role != ParameterRole::kMatrix) return value;
  const Parameter* const b = parameters.Find(AdapterName(projection, ParameterRole::kAdapterB));
  const torch::Tensor added =
      on_host(b->value).mm(on_host(a->value)).mul_(parameters.lora()->scale());
  return value + (config.architecture == Architecture::kGpt2 ? added.t() : added);
}

}  // namespace espalier
