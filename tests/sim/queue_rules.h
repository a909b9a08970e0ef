// The rules of the queue, seen from outside: nothing is idle beside a job that could use it, and
// nobody is preempted for nothing. Used by inspector.cc. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "coordinator/core/effect.h"
#include "coordinator/core/state.h"

namespace espalier::sim {

// Empty, or which job could start on idle nodes that no job ahead of it has a right to: one that
// starts as soon as what leaves has left, or one of the same priority, which it would not let go.
// Always empty while the queue waits for agents after a restart.
std::string FindIdleBesideAJob(const ClusterState& state);

// Empty, or which of the jobs preempted by these journal effects of one event gave its nodes up for
// nobody: nothing would be started on them, neither when these jobs have left, nor when all that
// leaves has. `state` is the one after the effects.
std::string FindVainPreemption(const ClusterState& state, const std::vector<Effect>& effects);

}  // namespace espalier::sim
