// Preemption: whether a job that waits will get nodes in time, and which jobs of lower priority
// make room for it. Used by queue.cc. One thread.
#pragma once

#include "coordinator/core/context.h"
#include "coordinator/core/usable.h"

namespace espalier {

// What a job that cannot start has to expect.
enum class Outlook {
  // Fewer than min_nodes would do even if all were free.
  kHopeless,
  // A job that it cannot preempt has to end first, nobody knows when.
  kOpen,
  // It starts as soon as what leaves has left.
  kSoon,
};

// Preempts as few jobs of lower priority as will do, the lowest and youngest first; none when the
// job could not start even so, and none for nodes that are kept for another.
Outlook MakeRoom(Context& context, const Job& waiting, const KeptNodes& kept);

}  // namespace espalier
