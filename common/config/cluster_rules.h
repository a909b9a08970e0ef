// CheckClusterRules: what must hold between the fields of a cluster. Used by cluster_file. Pure:
// any thread.
#pragma once

#include <string>

#include "common/config/problems.h"
#include "espalier/v1/cluster.pb.h"

namespace espalier {

// The defaults of `spec` are filled in and its single values lie within their ranges. `where`
// stands before each message.
void CheckClusterRules(const v1::ClusterSpec& spec, const std::string& where, Problems& problems);

}  // namespace espalier
