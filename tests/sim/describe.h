// One line of text for an event or an effect. Used by sim_coordinator.cc for traces and by
// tests/scenarios/stage.cc for scenarios. Pure: any thread.
#pragma once

#include <string>

#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"

namespace espalier::sim {

// Empty for events that come all the time (ticks, progress).
std::string Describe(const Event& event);
std::string Describe(const Effect& effect);

}  // namespace espalier::sim
