// Who holds which state of a job. A generation never starts from an older state than the newest
// that was published, as long as any node holds it; when none of those is to be had, the job waits
// and says for whom. Used by coordinator/core, coordinator/service and tests. Pure:
// any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "coordinator/core/state.h"

namespace espalier {

// The newest state that a node holds; Step(0): none was ever published, or all are gone.
Step NewestHeld(const JobRecord& record);
// Something was published, and every node that had it has looked for it in vain.
bool StateIsGone(const JobRecord& record);

// Only some nodes can start a generation of the job. Never of one that is started by hand, or whose
// nodes share a disk.
bool NeedsHolder(const JobRecord& record);
// The node, or another on the same machine, holds the newest state; or its agent says that it does.
bool HoldsNewest(const ClusterState& state, const JobRecord& record, const NodeName& node);

// By name; not those that only share a machine with them.
std::vector<NodeName> HoldersOfNewest(const JobRecord& record);
// "studio, which holds its state of step 500": for whom a job waits that none of them can start.
std::string WhomItWaitsFor(const JobRecord& record);

// The node has written a state of the job. True: that is news.
bool NoteHolder(JobRecord& record, const NodeName& node, Step step);
// The node has looked for the newest that it holds: Step(0), none. What it was known to hold, when
// that is more.
std::optional<Step> NoteFound(JobRecord& record, const NodeName& node, Step step);
// An operator has given up what is held elsewhere.
void ForgetHolders(JobRecord& record);

}  // namespace espalier
