// Advance: the whole of the coordinator's decisions as one pure function. Used by
// coordinator/loop/loop.cc and by the simulator, by nobody else. Thread rule: one caller at a time
// per state.
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"
#include "coordinator/core/state.h"

namespace espalier {

// The new state replaces `state` (in place, to save a copy); the result depends on the arguments
// alone. The effects are to be applied in their order, and none before the journal ones
// (PersistJob, PersistNode, AppendEvent) are committed together; when that commit fails, the
// coordinator must stop, and goes on from the journal when it is started again. `now` is wall-clock
// time that should not go back; an earlier one counts as the last one.
std::vector<Effect> Advance(ClusterState& state, const Event& event, absl::Time now);

}  // namespace espalier
