// Node: one machine of the cluster as the core knows it: what is remembered of it and what its
// agent says. NodeTable: the nodes in the order of the cluster file, then those that have joined,
// found by name, with the job that holds each. Used by coordinator/ and tests. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "coordinator/planner/node_health.h"
#include "coordinator/planner/node_share.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

// How often an agent reports, and after how long without a report its node is not used. A second
// agent of the same name is refused until then.
inline constexpr absl::Duration kAgentReportEvery = absl::Seconds(2);
inline constexpr absl::Duration kAgentSilence = absl::Seconds(10);

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

// A machine that knows the token may join as this node, once.
struct Invitation {
  std::string token_sha256;
  absl::Time expires_at = absl::UnixEpoch();
  // Absent: nobody has joined with it.
  std::optional<absl::Time> used_at;
  // As the cluster file would have it.
  v1::NodeSpec spec;
};

// What is remembered of a node, or of a name that may become one. Journaled on PersistNode.
struct NodeRecord {
  NodeName name;
  // Recent faults blamed on it, oldest first.
  std::vector<absl::Time> faults;
  // Times it was set aside without a good spell since; doubles the next one.
  int32_t set_asides = 0;
  std::string set_aside_reason;
  // Not used before then.
  absl::Time set_aside_until = absl::UnixEpoch();
  // Why an operator has jobs leave it and none start there; absent: they may.
  std::optional<std::string> drained = {};
  // An agent has spoken for it: from then on it is used only while one does.
  bool has_agent = false;
  // SHA-256 of the certificate that its agent showed last, in hex; empty without TLS.
  std::string certificate;
  // Serial numbers of all that it joined with or showed, and of those that are refused for ever.
  // (Who has a certificate can change its fingerprint.)
  std::vector<std::string> serials = {};
  std::vector<std::string> revoked = {};
  std::optional<Invitation> invitation = {};
  // It has joined; absent: the cluster file names it.
  std::optional<v1::NodeSpec> joined = {};
  int64_t joined_as = 0;  // in the order of those that have joined, from 1
  // Its agent's health, as it turned last.
  Illness illness = {};
};

// The agent that speaks for a node, or the last one that did.
struct AgentSession {
  AgentState state = AgentState::kNone;
  // Absent: gone.
  std::optional<StreamId> stream;
  // Names the agent's process; may be empty.
  std::string instance;
  absl::Time attached_at = absl::UnixEpoch();
  absl::Time heard_at = absl::UnixEpoch();
  absl::Time state_since = absl::UnixEpoch();
  // Its newest one, and its clock less espalierd's then. Absent: none since espalierd started.
  std::optional<v1::NodeReport> report;
  absl::Duration clock_ahead;
  NodeHealth health;
  std::map<JobId, absl::Time> unfit = {};  // jobs that it could not train when it last tried
  std::string told_of_rehearsal = {};
  NodeShare share;
};

struct Node {
  NodeRecord record;
  // As the cluster file says, or as it joined. Nodes of one address are one machine; empty: not
  // known.
  v1::NodeSpec spec;
  AgentSession agent;
  JobId holder;  // whose nodes it is one of; empty: no job's
  // Grows with every change, so that a view knows what to show anew.
  int64_t revision = 0;

  // It has joined. What the policy says replaces what it had, and counts from now on.
  void Adopt(const v1::NodeSpec& policy, bool clear_hours, bool clear_quiet_hours, Moment at);
};

class NodeTable {
 public:
  // At the end. The name is a new one.
  void Add(NodeRecord record, v1::NodeSpec spec = {});
  // Nobody holds it.
  void Remove(const NodeName& name);

  std::vector<Node>::const_iterator begin() const { return nodes_.begin(); }
  std::vector<Node>::const_iterator end() const { return nodes_.end(); }
  size_t size() const { return nodes_.size(); }
  bool empty() const { return nodes_.empty(); }

  // Null when the cluster file does not name it and it has not joined.
  const Node* Find(const NodeName& name) const;
  // The same, to be changed: its revision grows.
  Node* Edit(const NodeName& name);

  // The job that holds the node, which may be one that the cluster file does not name: hand-started
  // workers run anywhere. Null: nobody.
  const JobId* HolderOf(const NodeName& name) const;
  // The job holds these nodes now and no others. Nodes without a name are not known yet.
  void SetHeld(const JobId& job, const std::vector<NodeName>& nodes);

 private:
  void Release(const JobId& job, const NodeName& name);

  std::vector<Node> nodes_;
  std::map<NodeName, size_t> index_;
  std::map<NodeName, JobId> holders_;
  std::map<JobId, std::vector<NodeName>> held_;
};

// NOT_FOUND, with the names that there are.
absl::Status NoSuchNode(const NodeTable& nodes, const NodeName& name);
// "studio, macbook"; "none" without any.
std::string NamesOfNodes(const NodeTable& nodes);

}  // namespace espalier
