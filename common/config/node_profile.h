// Node profiles: files that describe a kind of machine (configs/nodes), whose fields a node of a
// cluster file takes over where it gives none itself. Used by cluster_file. Pure but for reading
// the files: any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/cluster.pb.h"

namespace espalier {

// The fields that profile `name` sets, from the first folder that has NAME.yaml. NOT_FOUND lists
// the profiles there are; INVALID_ARGUMENT what is wrong with the file.
absl::StatusOr<v1::NodeSpec> LoadNodeProfile(const std::string& name,
                                             const std::vector<std::string>& folders);

}  // namespace espalier
