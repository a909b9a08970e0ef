// The rules of the table of nodes: who holds which, and who speaks for it. Used by inspector.cc.
// Pure functions.
#pragma once

#include <string>
#include <vector>

#include "coordinator/core/effect.h"
#include "coordinator/core/state.h"
#include "tests/sim/scene.h"

namespace espalier::sim {

// Empty, or which node is in two jobs, or in the wrong one by the table of nodes.
std::string FindWrongHolder(const ClusterState& state);

// Empty, or of which node the agent is not known as it should be: it has at most one, which is told
// from workers by its stream, and whose certificate is not refused.
std::string FindWrongAgent(const ClusterState& state, const Scene& scene);

// Empty, or which job trains on a drained node, or is started by one of the effects on such a node
// or on one that is set aside.
std::string FindJobOnBarredNode(const ClusterState& state, const std::vector<Effect>& effects);

// Empty, or whose memory, which holds a newer state than any disk, a start on these nodes leaves
// aside. The step in which its processes were killed counts for nothing.
std::string FindForgottenMemory(const ClusterState& state, const JobRecord& record,
                                const std::vector<NodeName>& nodes);

// The job has trained on nodes without this one, and has enough of them.
bool CouldGoOn(const ClusterState& state, const JobRecord& record, const NodeName& without);

}  // namespace espalier::sim
