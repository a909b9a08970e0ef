// The agents of the nodes: who may speak for a node, and when one is silent. An agent's stream is
// no worker's: it outlives jobs, and nothing ends with it; while it is gone, the node gets no job.
// Used by advance.cc and usable.cc. One thread.
#pragma once

#include "absl/time/time.h"
#include "coordinator/core/context.h"

namespace espalier {

// How often an agent reports, and after how long without a report its node is not used. A second
// agent of the same name is refused until then.
inline constexpr absl::Duration kAgentReportEvery = absl::Seconds(2);
inline constexpr absl::Duration kAgentSilence = absl::Seconds(10);

// Takes the agent in, or closes its stream: NOT_FOUND for a name that the cluster file does not
// have, ALREADY_EXISTS while another process speaks for the node. The agent may try again later.
void OnAgent(Context& context, const AgentAttached& hello);
// A stream that has not attached (to this coordinator) is closed with UNAVAILABLE.
void OnAgent(Context& context, const AgentReported& report);
void OnAgent(Context& context, const AgentDetached& gone);

// Finds those that have become silent.
void WatchAgents(Context& context);
// Every agent counts as heard of later by `slept`, in which nobody was listened to.
void ShiftDeadlines(NodeTable& nodes, absl::Duration slept);

}  // namespace espalier
