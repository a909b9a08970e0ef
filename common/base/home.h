// ExpandHome: "~" at the start of a configured path, which the node that opens the file resolves
// (configuration loading leaves it alone, because nodes differ). Used by whoever opens such a path.
// Thread-safe as long as nobody changes the environment.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace espalier {

// "~" and "~/x" with the user's home folder in place of "~"; other paths as they are.
// INVALID_ARGUMENT: "~name"; FAILED_PRECONDITION: the user has no home folder.
absl::StatusOr<std::string> ExpandHome(const std::string& path);

}  // namespace espalier
