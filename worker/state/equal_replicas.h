// Whether all ranks still hold the same bits, as they must at every step boundary: memory that
// flipped a bit, or an exchange that did, would go unnoticed into every checkpoint. Used by
// worker/train/milestones.h before a checkpoint. Compute thread.
#pragma once

#include "absl/status/status.h"
#include "worker/state/replica.h"
#include "worker/sync/together.h"

namespace espalier {

// Every rank calls this at the same step. INTERNAL, the same on all: those whose bits are not those
// of most ranks are named (FailedRanks), all of them where there is no majority.
absl::Status CheckReplicasEqual(const RankContext& context, Replica& replica);

}  // namespace espalier
