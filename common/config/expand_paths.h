// ExpandPaths: "~" in the path fields of a configuration message. Used by job_file. Pure but for
// asking for the home folder.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace espalier {

// Applies ExpandHome to every single text field whose rule says that it is a path. `path` names the
// section in messages.
absl::Status ExpandPaths(const std::string& path, google::protobuf::Message& message);

}  // namespace espalier
