#include "coordinator/core/advance.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "coordinator/core/facts.h"
#include "coordinator/core/faults.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/liveness.h"
#include "coordinator/core/transaction.h"

namespace espalier {
namespace {

void On(Transaction& transaction, const CoordinatorStarted& event) {
  OnStarted(transaction, event);
}

void On(Transaction& transaction, const Tick&) {
  ReturnNodes(transaction);
  WatchAgents(transaction);
  for (auto& [id, job] : transaction.state().jobs) {
    if (!IsFinal(job.record.state)) WatchJob(transaction, job);
  }
  ForgetOldJobs(transaction);
  WatchQueue(transaction);
}

void On(Transaction& transaction, const SubmitRequested& event) { OnSubmit(transaction, event); }
void On(Transaction& transaction, const PauseRequested& event) { OnRequest(transaction, event); }
void On(Transaction& transaction, const ResumeRequested& event) { OnRequest(transaction, event); }
void On(Transaction& transaction, const CancelRequested& event) { OnRequest(transaction, event); }
void On(Transaction& transaction, const CheckpointRequested& event) {
  OnRequest(transaction, event);
}

void On(Transaction& transaction, const WorkerAttached& event) { OnAttached(transaction, event); }
void On(Transaction& transaction, const WorkerFoundState& event) { OnReport(transaction, event); }
void On(Transaction& transaction, const WorkerReady& event) { OnReport(transaction, event); }
void On(Transaction& transaction, const WorkerHeartbeat& event) { OnReport(transaction, event); }
void On(Transaction& transaction, const WorkerStepReported& event) { OnReport(transaction, event); }
void On(Transaction& transaction, const WorkerEvaluated& event) { OnReport(transaction, event); }
void On(Transaction& transaction, const WorkerCheckpointed& event) { OnReport(transaction, event); }
void On(Transaction& transaction, const DirectiveAcked& event) { OnReport(transaction, event); }
void On(Transaction& transaction, const WorkerFinished& event) { OnReport(transaction, event); }
void On(Transaction& transaction, const WorkerDetached& event) { OnReport(transaction, event); }

void On(Transaction& transaction, const AgentAttached& event) { OnAgent(transaction, event); }
void On(Transaction& transaction, const AgentReported& event) { OnAgent(transaction, event); }
void On(Transaction& transaction, const AgentDetached& event) { OnAgent(transaction, event); }

void On(Transaction& transaction, const NodeInvited& event) { OnNode(transaction, event); }
void On(Transaction& transaction, const NodeJoined& event) { OnNode(transaction, event); }
void On(Transaction& transaction, const NodeForgotten& event) { OnNode(transaction, event); }
void On(Transaction& transaction, const NodeDrained& event) { OnNode(transaction, event); }
void On(Transaction& transaction, const NodeAllowed& event) { OnNode(transaction, event); }
void On(Transaction& transaction, const VersionsFound& event) { OnVersions(transaction, event); }

// Null when the generation is not the one that runs.
Job* Newest(Transaction& transaction, const GenerationKey& key) {
  Job* job = transaction.FindJob(key.job);
  const bool newest = job != nullptr && job->record.generation == key.generation &&
                      job->record.processes != Processes::kNone;
  return newest ? job : nullptr;
}

void On(Transaction& transaction, const LaunchFailed& event) {
  if (Job* job = Newest(transaction, event.key)) {
    OnGone(transaction, *job, "could not be started: " + event.reason);
  }
}

void On(Transaction& transaction, const ProcessesExited& event) {
  Job* job = Newest(transaction, event.key);
  if (job == nullptr || job->world.exited_at) return;
  job->world.exited_at = transaction.now();
  job->world.exit_reason = event.reason;
  job->world.unconfirmed = event.unconfirmed;
  const auto ranks = static_cast<int64_t>(job->world.ranks.size());
  if (event.culprit && event.culprit->value() < ranks) job->world.exit_culprit = event.culprit;
  CheckGone(transaction, *job);
}

// Between the last event and this one nobody was listened to.
void ExcuseSilence(ClusterState& state, absl::Time now) {
  if (state.now == absl::InfinitePast() || now - state.now < kShortestSleep) return;
  for (auto& [id, job] : state.jobs) {
    const absl::Duration slept = Excused(job, now - state.now);
    if (slept > absl::ZeroDuration()) ShiftDeadlines(job, slept);
  }
  const absl::Duration slept = now - state.now;
  if (slept > kAgentReportEvery) ShiftDeadlines(state.nodes, slept);
}

}  // namespace

std::vector<Effect> Advance(ClusterState& state, const Event& event, absl::Time now) {
  now = std::max(now, state.now);
  ExcuseSilence(state, now);
  state.now = now;
  Transaction transaction(state, now);
  std::visit([&](const auto& one) { On(transaction, one); }, event);
  while (transaction.TakeQueueChanged()) Schedule(transaction);
  return transaction.TakeEffects();
}

}  // namespace espalier
