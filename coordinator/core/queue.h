// The queue: which jobs get which nodes. By priority, then age; a job that waits keeps the nodes it
// could use from those behind it; a higher priority preempts lower ones. Used by the core's
// handlers. MayUse and Place are pure; Schedule acts. One thread.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "coordinator/core/context.h"

namespace espalier {

// parallel.nodes allows the node.
bool MayUse(const JobRecord& record, const NodeName& node);

struct Placement {
  // The node of each rank; empty: the job must wait.
  std::vector<NodeName> nodes;
  // Why so, for people.
  std::string reason;
};
// Up to max_nodes of the free nodes, those of the last generation first because its checkpoints are
// there, in the order of parallel.nodes (of the cluster file when it is empty).
Placement Place(const ClusterState& state, const JobRecord& record,
                const std::set<NodeName>& withheld);

// Starts what can be started.
void Schedule(Context& context);

}  // namespace espalier
