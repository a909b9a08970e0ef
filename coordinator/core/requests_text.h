// What operators read when they ask something of a job. Pure: any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/state.h"

namespace espalier {

// NOT_FOUND, with the jobs that exist.
absl::Status UnknownJob(const ClusterState& state, const JobId& id);
// FAILED_PRECONDITION that names the state, its reason, and what is allowed.
absl::Status NotAllowed(const JobRecord& record, absl::string_view what, absl::string_view allowed);
// FAILED_PRECONDITION: how the job ends is settled, its processes are leaving.
absl::Status Ending(const JobRecord& record);

// What a pause frees and what resuming will cost.
std::string ExplainSoftPause(const Job& job);
std::string ExplainHardPause(const Job& job);

}  // namespace espalier
