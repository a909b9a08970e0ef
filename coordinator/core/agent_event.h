// What agents say of their nodes: the part of Event that machines cause. Used by coordinator/core,
// coordinator/loop, coordinator/service and tests, through event.h. Plain values: any thread.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "coordinator/core/node.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

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
