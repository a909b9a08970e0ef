// Settings from the command line: "train.steps=100", put into a tree before it is read. Used by
// job_file. Pure: any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/config/yaml_tree.h"

namespace espalier {

// Sets KEY.KEY=VALUE (VALUE as YAML) in `root`; sections that are absent are made. Relative paths
// in it are taken from `folder`. INVALID_ARGUMENT: no '=', an empty key, a key below a value.
absl::Status ApplyOverride(const std::string& setting, const std::string& folder, YamlNode& root);

}  // namespace espalier
