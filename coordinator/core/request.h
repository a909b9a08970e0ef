// What people ask of the core, and what agents say of their nodes: the part of Event that does not
// come from workers, launcher and clock. Each request gets one Reply. Used by coordinator/core and
// tests, through event.h. Plain values: any thread.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "coordinator/core/node.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/job.pb.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

// A call of an operator that waits for its Reply.
using RequestId = Number<struct RequestIdTag>;

struct SubmitRequested {
  RequestId request;
  // Makes a repeated submission give the same job; may be empty.
  std::string request_id;
  // Checked against its rules, defaults filled in.
  v1::JobSpec spec;
  std::string yaml;
};
enum class PauseKind { kSoft, kHard };
struct PauseRequested {
  RequestId request;
  JobId job;
  PauseKind kind = PauseKind::kSoft;
};
struct ResumeRequested {
  RequestId request;
  JobId job;
  // Without the state that nodes hold which cannot be had.
  bool from_scratch = false;
};
struct CancelRequested {
  RequestId request;
  JobId job;
  // Write a checkpoint before stopping.
  bool checkpoint = false;
};
struct CheckpointRequested {
  RequestId request;
  JobId job;
};

// How long a token for joining lives.
inline constexpr absl::Duration kInvitationLife = absl::Minutes(10);

// `espalier nodes add`: a machine may join under this name. Replaces an earlier invitation.
struct NodeInvited {
  RequestId request;
  v1::NodeSpec spec;
  std::string token_sha256;
};
// A machine has come with the token, and this certificate was made for it, which it gets when the
// reply is OK: the token is used up and the certificate remembered by one commit.
struct NodeJoined {
  RequestId request;
  NodeName node;
  std::string token_sha256;
  // SHA-256, in hex, and serial number.
  std::string certificate;
  std::string serial;
  // Where the files of its certificate lie there.
  v1::TlsSpec files;
  // Its espalier-worker, where it is another than the launcher's.
  std::string worker;
};
// `espalier nodes forget`: as if no agent had ever spoken for the node; one that has joined is no
// node any more. Its certificates are refused from then on, if `revoke` says so or it had joined.
struct NodeForgotten {
  RequestId request;
  NodeName node;
  bool revoke = false;
};

// `espalier nodes drain`: jobs leave the node at their next step, and none starts there.
struct NodeDrained {
  RequestId request;
  NodeName node;
  // For people; may be empty.
  std::string reason;
};
// `espalier nodes allow`: jobs may use the node again, and what was held against it is forgotten.
struct NodeAllowed {
  RequestId request;
  NodeName node;
};

// `espalier nodes set`: another policy of a node that has joined (planner/node_share.h); what it
// does not say stays as it is.
struct NodeSet {
  RequestId request;
  NodeName node;
  v1::NodeSpec policy;
  bool clear_hours = false;
  bool clear_quiet_hours = false;
};

// The hello of a node's agent, and its first report.
struct AgentAttached {
  StreamId stream;
  NodeName node;
  v1::NodeReport report;
  // Names the agent's process, so that it may attach anew before its old stream was seen to break;
  // may be empty.
  std::string instance;
  // SHA-256 of the certificate it showed, in hex, and its serial number; empty without TLS.
  std::string certificate;
  std::string serial;
  // Its clock less espalierd's, when the report came. Set by the loop.
  absl::Duration clock_ahead;
};
// Comes every kAgentReportEvery.
struct AgentReported {
  StreamId stream;
  v1::NodeReport report;
  // As of AgentAttached.
  absl::Duration clock_ahead;
};
// The stream is gone.
struct AgentDetached {
  StreamId stream;
};

}  // namespace espalier
