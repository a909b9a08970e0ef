// Advance: the whole of the coordinator's decisions as one pure function; and the core's handlers,
// which it calls for each event. Each of these is in the source named after its subject: submit.cc,
// requests.cc, attach.cc, hand_started.cc, reports.cc, agents.cc, queue.cc, regroup.cc. Used by
// coordinator/core, coordinator/loop/loop.cc and tests; outside the core Advance alone. Thread
// rule: one caller at a time per state.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"
#include "coordinator/core/state.h"
#include "coordinator/core/transaction.h"
#include "coordinator/core/usable.h"

namespace espalier {

// The new state replaces `state` (in place, to save a copy); the result depends on the arguments
// alone. The effects are to be applied in their order, and none before the journal ones
// (PersistJob, PersistNode, AppendEvent) are committed together; when that commit fails, the
// coordinator must stop, and goes on from the journal when it is started again. `now` is wall-clock
// time that should not go back; an earlier one counts as the last one.
std::vector<Effect> Advance(ClusterState& state, const Event& event, absl::Time now);

// What operators ask, in every state that a job may be in.
void OnSubmit(Transaction& transaction, const SubmitRequested& request);
void OnRequest(Transaction& transaction, const PauseRequested& request);
void OnRequest(Transaction& transaction, const ResumeRequested& request);
void OnRequest(Transaction& transaction, const CancelRequested& request);
void OnRequest(Transaction& transaction, const CheckpointRequested& request);

// Hello: who may join, and who is fenced.
void OnAttached(Transaction& transaction, const WorkerAttached& hello);

// What attached workers say. Each finds the rank by its stream; a stream that has not said hello
// (to this coordinator) is closed with UNAVAILABLE, so that the worker attaches again.
void OnReport(Transaction& transaction, const WorkerFoundState& report);
void OnReport(Transaction& transaction, const WorkerReady& report);
void OnReport(Transaction& transaction, const WorkerHeartbeat& report);
void OnReport(Transaction& transaction, const WorkerStepReported& report);
void OnReport(Transaction& transaction, const WorkerPractised& report);
void OnReport(Transaction& transaction, const WorkerEvaluated& report);
void OnReport(Transaction& transaction, const WorkerCheckpointed& report);
void OnReport(Transaction& transaction, const DirectiveAcked& report);
void OnReport(Transaction& transaction, const WorkerFinished& report);
void OnReport(Transaction& transaction, const WorkerDetached& report);

// The agents of the nodes (agents.cc): who may speak for a node, and when one is silent. An agent's
// stream is no worker's: it outlives jobs, and nothing ends with it; while it is gone, the node
// gets no job.
//
// Takes the agent in, or closes its stream: NOT_FOUND for a name that the cluster file does not
// have, ALREADY_EXISTS while another process speaks for the node. The agent may try again later.
void OnAgent(Transaction& transaction, const AgentAttached& hello);
// A stream that has not attached (to this coordinator) is closed with UNAVAILABLE.
void OnAgent(Transaction& transaction, const AgentReported& report);
void OnAgent(Transaction& transaction, const AgentDetached& gone);

// Nodes that come and go while espalierd runs (agents.cc), and whose certificates are good. Each
// answers its request; on error nothing was changed.
void OnNode(Transaction& transaction, const NodeInvited& request);
void OnNode(Transaction& transaction, const NodeJoined& request);
void OnNode(Transaction& transaction, const NodeForgotten& request);
void OnNode(Transaction& transaction, const NodeDrained& request);
void OnNode(Transaction& transaction, const NodeAllowed& request);
void OnNode(Transaction& transaction, const NodeSet& request);
// Nodes are compared with them from now on.
void OnVersions(Transaction& transaction, const VersionsFound& found);

// Finds those that have become silent.
void WatchAgents(Transaction& transaction);
// Every agent counts as heard of later by `slept`, in which nobody was listened to.
void ShiftDeadlines(NodeTable& nodes, absl::Duration slept);

// Starts what can be started.
void Schedule(Transaction& transaction);
// Running jobs leave nodes that are drained, and take in those that they can have beside what is
// kept for the ones that wait.
void ChangeNodes(Transaction& transaction, const KeptNodes& kept);
// A job that stops for a change of nodes, and cannot write the checkpoint for it, goes on from
// memory, or with the nodes that it has. What an operator drained it leaves even so, when it can.
void WatchChange(Transaction& transaction, Job& job);
// It has heard too late that a change was called off, and stopped for it.
void TakeUpChange(Transaction& transaction, Job& job);
// The job may be given more nodes now.
bool MayTakeIn(const Job& job, absl::Time now);
// Has the queue looked at when a wait of its own is over: a back-off, that for the agents, or that
// of a job for more nodes.
void WatchQueue(Transaction& transaction);

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
void ForgetOldJobs(Transaction& transaction, const RetentionPolicy& policy = {});

// For attach.cc: the job of a hand-started worker is found or made, and the first rank of a new
// mpirun starts a generation. Null when the worker was refused.
Job* JobOfHandStarted(Transaction& transaction, const WorkerAttached& hello);
// For attach.cc and hand_started.cc: FAILED_PRECONDITION, upon which the worker exits.
void Fence(Transaction& transaction, StreamId stream, const std::string& why);

// For submit.cc and hand_started.cc.
struct NewJob {
  std::string request_id;
  v1::JobSpec spec;
  std::string yaml;
};
// In state QUEUED. The spec has been checked.
Job& AddJob(Transaction& transaction, NewJob job);
// INVALID_ARGUMENT when the spec cannot be met by this cluster at all.
absl::Status CheckAgainstCluster(const ClusterState& state, const v1::JobSpec& spec);

}  // namespace espalier
