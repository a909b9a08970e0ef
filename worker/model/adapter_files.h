// Folders of adapters, as PEFT has them: adapter_config.json and adapter_model.safetensors; and
// weights with their adapters in them. Used by pretrained.cc, worker/state, worker/job_inputs.cc
// and tests/reference_models. Compute thread.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/job.pb.h"
#include "worker/formats/lora_config.h"
#include "worker/model/parameters.h"

namespace espalier {

// Whether the folder holds an adapter_config.json.
bool HoldsAdapter(const std::string& folder);

// NOT_FOUND without the file; else as LoraConfigFromJson.
absl::StatusOr<LoraConfig> ReadLoraConfig(const std::string& folder);

// The adapters of a job, of train.lora.from where that is given; none without train.lora.
// INVALID_ARGUMENT when a target is no projection of the model.
absl::StatusOr<std::optional<LoraConfig>> JobLora(const DecoderConfig& config,
                                                  const v1::TrainSpec& train);

// What tells one function of the adapters' parameters from another: their shapes and their factor.
// Empty without adapters.
std::string AdaptersText(const DecoderConfig& config, const std::optional<LoraConfig>& lora);

// Fills the adapters of `parameters`, which were made for the folder's LoraConfig. NOT_FOUND for a
// missing file or tensor; INVALID_ARGUMENT for a wrong shape and for tensors beyond those.
absl::Status LoadAdapter(const std::string& folder, Parameters& parameters);

// W + scale B A where `parameter` is a weight that has an adapter, else W: in fp32, on the host.
torch::Tensor MergedValue(const DecoderConfig& config, const Parameters& parameters,
                          const Parameter& parameter);

}  // namespace espalier
