// The rules of the table of nodes: who holds which, and who speaks for it. Used by inspector.cc.
// Pure functions.
#pragma once

#include <string>

#include "coordinator/core/state.h"
#include "tests/sim/scene.h"

namespace espalier::sim {

// Empty, or which node is in two jobs, or in the wrong one by the table of nodes.
std::string FindWrongHolder(const ClusterState& state);

// Empty, or of which node the agent is not known as it should be: it has at most one, which is told
// from workers by its stream, and whose certificate is not refused.
std::string FindWrongAgent(const ClusterState& state, const Scene& scene);

}  // namespace espalier::sim
