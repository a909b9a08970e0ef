// Where the model lies that a person named: a folder of checkpoints stands for the newest of them
// that is whole. Used by worker/job_inputs.cc and worker/open_model.cc. Reads files and writes to
// the log: any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace espalier {

// `folder` itself where it is a model or a checkpoint, which is not verified; or the checkpoint in
// it, which is, and the log says which. INVALID_ARGUMENT, with what would do, for what is neither;
// DATA_LOSS: none of its checkpoints is whole.
absl::StatusOr<std::string> FindModelFolder(const std::string& folder);

}  // namespace espalier
