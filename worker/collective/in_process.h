// InProcessGroup: a Collective among threads of one process, for tests and for a rank that is
// alone: no MPI, the same exchange over messages in memory. A message is a copy, so no rank ever
// reads or writes memory of another, whenever one gives up. Operations are carried out in Wait.
// Used by worker/run.cc and tests. Each rank is used by its own thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "worker/collective/collective.h"
#include "worker/collective/layout.h"

namespace espalier {

// Members share mailboxes that live until the last of them is gone. A wait in which no message
// moves for longer than `failure_timeout` is DEADLINE_EXCEEDED.
std::vector<std::unique_ptr<Collective>> InProcessGroup(int ranks, absl::Duration failure_timeout,
                                                        const ExchangeOptions& options = {});

}  // namespace espalier
