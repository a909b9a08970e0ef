// Pretrained: a model folder in the Hugging Face layout (config.json, model.safetensors or its
// shards under model.safetensors.index.json) into Parameters. Used by the trainer (model.from,
// checkpoints) and by generation. Compute thread.
#pragma once

#include <torch/torch.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/formats/decoder_config.h"
#include "worker/model/parameters.h"

namespace espalier {

// config.json of the folder. Every message of this header names the file.
absl::StatusOr<DecoderConfig> ReadModelConfig(const std::string& folder);

// Fills every parameter from the folder's weights, converting bfloat16, float16 and float64 to
// fp32. Files are mapped and copied tensor by tensor, so that nothing is held twice.
// NOT_FOUND for a missing file or tensor; INVALID_ARGUMENT for a wrong shape and for a tensor that
// the config has no place for; UNIMPLEMENTED for other types. On an error the parameters are
// partly filled and of no use.
absl::Status LoadWeights(const std::string& folder, const DecoderConfig& config,
                         Parameters& parameters);

struct PretrainedModel {
  DecoderConfig config;
  Parameters parameters;
};
struct PretrainedOptions {
  torch::Device device = torch::kCPU;
  Parameters::Gradients gradients = Parameters::Gradients::kNone;
  torch::ScalarType compute_type = torch::kFloat;
};
absl::StatusOr<PretrainedModel> LoadPretrained(const std::string& folder,
                                               const PretrainedOptions& options);

}  // namespace espalier
