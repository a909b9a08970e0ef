// A tensor of a file into a parameter, whatever the types of the two. Used by pretrained.cc and
// adapter_files.cc. Compute thread.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/formats/safetensors.h"
#include "worker/model/parameters.h"
#include "worker/tensor/torch.h"

namespace espalier {

// UNIMPLEMENTED for types that no weights have.
absl::StatusOr<torch::ScalarType> ScalarType(const TensorSpec& spec);

// In pieces, so that nothing is held twice. INVALID_ARGUMENT when the shapes differ.
absl::Status CopyTensor(const Safetensors& file, const TensorView& from, const Parameter& to);

}  // namespace espalier
