// InProcessGroup: a Collective among threads of one process, for tests: no MPI, same contract, same
// order of addition. Each rank is used by its own thread. Operations are carried out in Wait.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "worker/collective/collective.h"

namespace espalier {

// Members share state that lives until the last of them is gone. A wait that lasts longer than
// `failure_timeout` is DEADLINE_EXCEEDED.
std::vector<std::unique_ptr<Collective>> InProcessGroup(int ranks, absl::Duration failure_timeout);

}  // namespace espalier
