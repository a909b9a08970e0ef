// Advance: the whole of the coordinator's decisions as one pure function; and the core's handlers,
// which it calls for each event. Each of these is in the source named after its subject: start.cc,
// submit.cc, requests.cc, attach.cc, hand_started.cc, reports.cc, agents.cc, queue.cc. Used by
// coordinator/core, coordinator/loop/loop.cc and tests; outside the core Advance alone. Thread
// rule: one caller at a time per state.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/context.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"
#include "coordinator/core/state.h"

namespace espalier {

// The new state replaces `state` (in place, to save a copy); the result depends on the arguments
// alone. The effects are to be applied in their order, and none before the journal ones
// (PersistJob, PersistNode, AppendEvent) are committed together; when that commit fails, the
// coordinator must stop, and goes on from the journal when it is started again. `now` is wall-clock
// time that should not go back; an earlier one counts as the last one.
std::vector<Effect> Advance(ClusterState& state, const Event& event, absl::Time now);

// The first event of a coordinator's life: takes up what the journal holds.
void OnStarted(Context& context, const CoordinatorStarted& start);

// What operators ask, in every state that a job may be in.
void OnSubmit(Context& context, const SubmitRequested& request);
void OnRequest(Context& context, const PauseRequested& request);
void OnRequest(Context& context, const ResumeRequested& request);
void OnRequest(Context& context, const CancelRequested& request);
void OnRequest(Context& context, const CheckpointRequested& request);

// Hello: who may join, and who is fenced.
void OnAttached(Context& context, const WorkerAttached& hello);

// What attached workers say. Each finds the rank by its stream; a stream that has not said hello
// (to this coordinator) is closed with UNAVAILABLE, so that the worker attaches again.
void OnReport(Context& context, const WorkerFoundState& report);
void OnReport(Context& context, const WorkerReady& report);
void OnReport(Context& context, const WorkerHeartbeat& report);
void OnReport(Context& context, const WorkerStepReported& report);
void OnReport(Context& context, const WorkerEvaluated& report);
void OnReport(Context& context, const WorkerCheckpointed& report);
void OnReport(Context& context, const DirectiveAcked& report);
void OnReport(Context& context, const WorkerFinished& report);
void OnReport(Context& context, const WorkerDetached& report);

// The agents of the nodes (agents.cc): who may speak for a node, and when one is silent. An agent's
// stream is no worker's: it outlives jobs, and nothing ends with it; while it is gone, the node
// gets no job.
//
// Takes the agent in, or closes its stream: NOT_FOUND for a name that the cluster file does not
// have, ALREADY_EXISTS while another process speaks for the node. The agent may try again later.
void OnAgent(Context& context, const AgentAttached& hello);
// A stream that has not attached (to this coordinator) is closed with UNAVAILABLE.
void OnAgent(Context& context, const AgentReported& report);
void OnAgent(Context& context, const AgentDetached& gone);

// Nodes that come and go while espalierd runs (agents.cc), and whose certificates are good. Each
// answers its request; on error nothing was changed.
void OnNode(Context& context, const NodeInvited& request);
void OnNode(Context& context, const NodeJoined& request);
void OnNode(Context& context, const NodeForgotten& request);
// Nodes are compared with them from now on.
void OnVersions(Context& context, const VersionsFound& found);

// Finds those that have become silent.
void WatchAgents(Context& context);
// Every agent counts as heard of later by `slept`, in which nobody was listened to.
void ShiftDeadlines(NodeTable& nodes, absl::Duration slept);

// Starts what can be started.
void Schedule(Context& context);
// Has the queue looked at when a wait of its own is over: a back-off, or that for the agents.
void WatchQueue(Context& context);

// How long jobs that have ended are remembered (submit.cc), so that years of runs neither fill the
// journal nor slow what looks at all jobs. Their checkpoints are the user's and stay.
struct RetentionPolicy {
  // The newest are kept whatever their age.
  size_t always = 50;
  // Of the others, those that ended so recently, and no more than `most` in all.
  absl::Duration age = absl::Hours(24 * 90);
  size_t most = 1000;
};

// Forgets final jobs beyond the policy, oldest first: removes them from the state and asks for the
// same of the journal. Looks at most once an hour.
void ForgetOldJobs(Context& context, const RetentionPolicy& policy = {});

// For attach.cc: the job of a hand-started worker is found or made, and the first rank of a new
// mpirun starts a generation. Null when the worker was refused.
Job* JobOfHandStarted(Context& context, const WorkerAttached& hello);
// For attach.cc and hand_started.cc: FAILED_PRECONDITION, upon which the worker exits.
void Fence(Context& context, StreamId stream, const std::string& why);

// For submit.cc and hand_started.cc.
struct NewJob {
  std::string request_id;
  v1::JobSpec spec;
  std::string yaml;
};
// In state QUEUED. The spec has been checked.
Job& AddJob(Context& context, NewJob job);
// INVALID_ARGUMENT when the spec cannot be met by this cluster at all.
absl::Status CheckAgainstCluster(const ClusterState& state, const v1::JobSpec& spec);

}  // namespace espalier
