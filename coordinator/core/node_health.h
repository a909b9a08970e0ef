// Node health: a node to which several faults are traced is set aside for a while, longer each
// time, and then used again. Used by the core's handlers. One thread.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "coordinator/core/context.h"

namespace espalier {

// So many faults within this time set a node aside, for the first span, then twice as long each
// further time up to the longest; a good spell without being set aside starts over.
struct NodePolicy {
  size_t faults = 3;
  absl::Duration window = absl::Minutes(10);
  absl::Duration first_set_aside = absl::Minutes(1);
  absl::Duration longest_set_aside = absl::Hours(1);
  absl::Duration good_spell = absl::Hours(1);
};
inline constexpr size_t kSetAsideFaults = NodePolicy{}.faults;

bool IsSetAside(const NodeHealth& node);
// Null when the cluster file does not name it.
NodeHealth* FindNode(ClusterState& state, const NodeName& name);
const NodeHealth* FindNode(const ClusterState& state, const NodeName& name);

// Books a fault on the rank's node. The node is set aside only when the job can go on without it: a
// small lab would otherwise stand still because one of its machines had a bad hour.
void BlameNode(Context& context, const Job& job, Rank rank, const std::string& reason);
// Takes nodes back whose time is over.
void ReturnNodes(Context& context);

}  // namespace espalier
