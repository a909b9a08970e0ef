// One line of text for an event or an effect, and what the coordinator knows. Used by
// sim_coordinator.cc and the inspector, and by tests/scenarios/stage.cc for scenarios. Pure: any
// thread.
#pragma once

#include <string>
#include <vector>

#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"
#include "coordinator/core/state.h"

namespace espalier::sim {

// "job0-1/3".
std::string Describe(const GenerationKey& key);
// Empty for events that come all the time (ticks, progress).
std::string Describe(const Event& event);
std::string Describe(const Effect& effect);
// A line for each job that is not final, and for each node.
std::vector<std::string> Describe(const ClusterState& state);

}  // namespace espalier::sim
