// Names of states and the facts that follow from a state alone. Used by the core for its reasons,
// and by whoever shows a job. Pure: any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/state.h"

namespace espalier {

// As in README.md: "PAUSED_SOFT".
absl::string_view JobStateName(JobState state);
// For sentences: "exchange", "data wait".
absl::string_view PhaseName(Phase phase);

bool IsFinal(JobState state);
// The job's nodes are its own: something of it runs there, or soon will.
bool HoldsNodes(const JobRecord& record);
// Somebody starts its mpirun by hand.
bool IsExternal(const JobRecord& record);
// health.failure_timeout_seconds: the one setting from which every deadline derives.
absl::Duration FailureTimeout(const JobRecord& record);

// "studio, macbook"; "no node" when empty.
std::string NodeList(const std::vector<NodeName>& nodes);
// "rank 1 on macbook".
std::string RankOnNode(const Job& job, Rank rank);

}  // namespace espalier
