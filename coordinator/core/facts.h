// Facts that follow from the core's state alone, and the words for them. Used by coordinator/core,
// coordinator/loop and coordinator/service. Pure: any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/state.h"

namespace espalier {

// It has committed steps, or much was kept of what is done before the first one.
bool HasGotOn(const JobRecord& record);

// The job's nodes are its own: something of it runs there, or soon will.
bool HoldsNodes(const JobRecord& record);
// Somebody starts its mpirun by hand.
bool IsExternal(const JobRecord& record);
// health.failure_timeout_seconds: the one setting from which every deadline derives.
absl::Duration FailureTimeout(const JobRecord& record);
// It is running, with fewer nodes than it may have.
bool HasRoom(const Job& job);
// The only rank says that something is missing or damaged there, which the job has had: no other
// machine was asked.
bool LacksWhatItHad(const Job& job);
// In the queue: by priority, then age.
bool GoesBefore(const JobRecord& a, const JobRecord& b);
// parallel.max_nodes; without it parallel.min_nodes.
int32_t MaxNodes(const JobRecord& record);
// parallel.nodes and exclude_nodes allow the node.
bool MayUse(const v1::ParallelSpec& parallel, const NodeName& node);
bool MayUse(const JobRecord& record, const NodeName& node);

// How fast the node computes the job, as far as that was measured.
SpeedModel SpeedOf(const JobRecord& record, const NodeName& node);

bool IsSetAside(const NodeRecord& node);
// Brings the table of nodes up to date with what the job holds.
void NoteHeldNodes(ClusterState& state, const JobRecord& record);

// For sentences: "exchange", "data wait".
absl::string_view PhaseName(Phase phase);
// "studio, macbook"; "no node" when empty.
std::string NodeList(const std::vector<NodeName>& nodes);
// "rank 1 on macbook".
std::string RankOnNode(const Job& job, Rank rank);

}  // namespace espalier
