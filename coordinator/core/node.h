// Node: one machine of the cluster as the core knows it: what is remembered of it, and what its
// agent says. Used by node_table.h and agent_event.h. Plain values: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

// One stream of a worker or of an agent; no two have the same. Never used again once closed.
using StreamId = Number<struct StreamIdTag>;

// The numbers equal those of operator.proto.
enum class AgentState {
  // None has ever spoken for the node: it is used over the remote shell, nothing is known of it.
  kNone = 0,
  kAttached = 1,
  // Attached, but not heard of for longer than kAgentSilence.
  kSilent = 2,
  // There was one, and its stream is gone, or it has not come back since espalierd started.
  kGone = 3,
};

// What is remembered of a node. Journaled on PersistNode.
struct NodeRecord {
  NodeName name;
  // Recent faults blamed on it, oldest first.
  std::vector<absl::Time> faults;
  // Times it was set aside without a good spell since; doubles the next one.
  int32_t set_asides = 0;
  std::string set_aside_reason;
  // Not used before then.
  absl::Time set_aside_until = absl::UnixEpoch();
  // An agent has spoken for it: from then on it is used only while one does.
  bool has_agent = false;
  // SHA-256 of the certificate that its agent showed last, in hex; empty without TLS.
  std::string certificate;
};

// The agent that speaks for a node, or the last one that did.
struct AgentSession {
  AgentState state = AgentState::kNone;
  // Absent: gone.
  std::optional<StreamId> stream;
  // Names the agent's process; may be empty.
  std::string instance;
  // When it attached, was last heard of, and when its state began.
  absl::Time attached_at = absl::UnixEpoch();
  absl::Time heard_at = absl::UnixEpoch();
  absl::Time state_since = absl::UnixEpoch();
  // Its newest one. Absent: none since espalierd started.
  std::optional<v1::NodeReport> report;
  // Its clock less espalierd's, when that report came.
  absl::Duration clock_ahead;
};

struct Node {
  NodeRecord record;
  AgentSession agent;
  // The job whose nodes it is one of; empty: none.
  JobId holder;
  // Grows with every change, so that a view knows what to show anew.
  int64_t revision = 0;
};

}  // namespace espalier
