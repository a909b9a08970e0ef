// Preemption: a job that must wait makes jobs of lower priority give up their nodes (they stop with
// a checkpoint and queue again). Used by the queue. One thread.
#pragma once

#include "coordinator/core/context.h"

namespace espalier {

enum class Room {
  // Nodes will come free sooner or later.
  kLater,
  // Not with the nodes that are in use now: fewer than min_nodes are allowed and not set aside.
  kNever,
};

// Preempts as few jobs of lower priority as will do, the lowest and youngest first; none when even
// all of them would not do, or when enough nodes are about to come free anyway.
Room MakeRoom(Context& context, const Job& waiting);

}  // namespace espalier
