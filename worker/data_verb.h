// `espalier-worker data prepare|inspect`. Used by command_line.cc. One thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/data/dataset.h"
#include "worker/data/prepare.h"

namespace espalier {

struct PrepareCommand {
  PrepareOptions options;
  std::string format = "text";  // or prompt-completion
  std::string split = "auto";   // auto, document, tail, files or none
};
// Prints what was made to standard output, progress to standard error.
absl::Status RunPrepare(PrepareCommand command);

struct InspectCommand {
  std::string folder;
  InspectOptions options;
  // Hash every shard now, whatever was verified before.
  VerifyShards verify = VerifyShards::kOncePerFile;
};
absl::Status RunInspect(const InspectCommand& command);

}  // namespace espalier
