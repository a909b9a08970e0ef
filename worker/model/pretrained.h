// Pretrained: a model folder in the Hugging Face layout (config.json, model.safetensors or its
// shards under model.safetensors.index.json; or trained.safetensors above what base.json names)
// into Parameters. Used by worker/open_model.h, worker/job_inputs.cc, worker/state and worker/task.
// Compute thread.
#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/formats/decoder_config.h"
#include "worker/model/parameters.h"
#include "worker/tensor/torch.h"

namespace espalier {

// config.json of the folder, with what ends answers by its generation_config.json. Every message of
// this header names the file.
absl::StatusOr<DecoderConfig> ReadModelConfig(const std::string& folder);

// Of the model that a job trains on data of `data_vocab_size` ids: its model.from, or its preset
// and fields. INVALID_ARGUMENT where the data has ids, or its sequences positions, that the model
// of a folder does not have; one that the job describes is meant for sequences as long as the
// job's.
absl::StatusOr<DecoderConfig> JobModelConfig(const v1::JobSpec& spec, int64_t data_vocab_size);

// Fills every parameter from the folder's weights, which are of type bfloat16, float16, float32 or
// float64: what is trained becomes fp32, what is frozen is kept as it is computed with. Files are
// mapped and copied tensor by tensor, so that nothing is held twice. NOT_FOUND for a missing file
// or tensor; INVALID_ARGUMENT for a wrong shape and for a tensor that the config has no place for;
// UNIMPLEMENTED for other types. On an error the parameters are partly filled and of no use.
absl::Status LoadWeights(const std::string& folder, const DecoderConfig& config,
                         Parameters& parameters);

// The folder with the weights on which a checkpoint of trained parts or of adapters rests; empty:
// the folder's own, or initial ones.
absl::StatusOr<std::string> BaseFolder(const std::string& folder);
// Names of the parameters that were trained above that base (trained.safetensors), in fp32; empty
// for a whole model.
absl::StatusOr<std::set<std::string>> TrainedAboveBase(const std::string& folder);
// The type of most of a folder's weights, by its embedding; fp32 for wider ones.
absl::StatusOr<torch::ScalarType> StoredType(const std::string& folder);

struct PretrainedModel {
  DecoderConfig config;
  Parameters parameters;
};
// An untied embedding that is frozen keeps the type it has in the file, or is fp32 where it was
// trained above a base. A checkpoint of adapters is a model with them. `adapter`: a folder of
// adapters to put on the model; empty: none.
absl::StatusOr<PretrainedModel> LoadPretrained(const std::string& folder,
                                               Parameters::Options options,
                                               const std::string& adapter = "");

}  // namespace espalier
