// New jobs: from operators, and from mpiruns started by hand. Used by Advance and attach. One
// thread.
#pragma once

#include <string>

#include "coordinator/core/context.h"

namespace espalier {

void OnSubmit(Context& context, const SubmitRequested& request);

struct NewJob {
  std::string request_id;
  v1::JobSpec spec;
  std::string yaml;
};
// In state QUEUED. The spec has been checked.
Job& AddJob(Context& context, NewJob job);

// INVALID_ARGUMENT when the spec cannot be met by this cluster at all.
absl::Status CheckAgainstCluster(const ClusterState& state, const v1::JobSpec& spec);

}  // namespace espalier
