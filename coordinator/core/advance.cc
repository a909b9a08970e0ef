#include "coordinator/core/advance.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "coordinator/core/context.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/faults.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/liveness.h"

namespace espalier {
namespace {

void On(Context& context, const CoordinatorStarted& event) { OnStarted(context, event); }

void On(Context& context, const Tick&) {
  ReturnNodes(context);
  WatchAgents(context);
  for (auto& [id, job] : context.state().jobs) {
    if (!IsFinal(job.record.state)) WatchJob(context, job);
  }
  ForgetOldJobs(context);
  WatchQueue(context);
}

void On(Context& context, const SubmitRequested& event) { OnSubmit(context, event); }
void On(Context& context, const PauseRequested& event) { OnRequest(context, event); }
void On(Context& context, const ResumeRequested& event) { OnRequest(context, event); }
void On(Context& context, const CancelRequested& event) { OnRequest(context, event); }
void On(Context& context, const CheckpointRequested& event) { OnRequest(context, event); }

void On(Context& context, const WorkerAttached& event) { OnAttached(context, event); }
void On(Context& context, const WorkerFoundState& event) { OnReport(context, event); }
void On(Context& context, const WorkerReady& event) { OnReport(context, event); }
void On(Context& context, const WorkerHeartbeat& event) { OnReport(context, event); }
void On(Context& context, const WorkerStepReported& event) { OnReport(context, event); }
void On(Context& context, const WorkerEvaluated& event) { OnReport(context, event); }
void On(Context& context, const WorkerCheckpointed& event) { OnReport(context, event); }
void On(Context& context, const DirectiveAcked& event) { OnReport(context, event); }
void On(Context& context, const WorkerFinished& event) { OnReport(context, event); }
void On(Context& context, const WorkerDetached& event) { OnReport(context, event); }

void On(Context& context, const AgentAttached& event) { OnAgent(context, event); }
void On(Context& context, const AgentReported& event) { OnAgent(context, event); }
void On(Context& context, const AgentDetached& event) { OnAgent(context, event); }

void On(Context& context, const NodeInvited& event) { OnNode(context, event); }
void On(Context& context, const NodeJoined& event) { OnNode(context, event); }
void On(Context& context, const NodeForgotten& event) { OnNode(context, event); }
void On(Context& context, const VersionsFound& event) { OnVersions(context, event); }

// Null when the generation is not the one that runs.
Job* Newest(Context& context, const GenerationKey& key) {
  Job* job = context.FindJob(key.job);
  const bool newest = job != nullptr && job->record.generation == key.generation &&
                      job->record.processes != Processes::kNone;
  return newest ? job : nullptr;
}

void On(Context& context, const LaunchFailed& event) {
  if (Job* job = Newest(context, event.key)) {
    OnGone(context, *job, "could not be started: " + event.reason);
  }
}

void On(Context& context, const ProcessesExited& event) {
  Job* job = Newest(context, event.key);
  if (job == nullptr || job->world.exited_at) return;
  job->world.exited_at = context.now();
  job->world.exit_reason = event.reason;
  job->world.unconfirmed = event.unconfirmed;
  const auto ranks = static_cast<int64_t>(job->world.ranks.size());
  if (event.culprit && event.culprit->value() < ranks) job->world.exit_culprit = event.culprit;
  CheckGone(context, *job);
}

// Between the last event and this one nobody was listened to.
void ExcuseSilence(ClusterState& state, absl::Time now) {
  if (state.now == absl::InfinitePast() || now - state.now < kShortestSleep) return;
  for (auto& [id, job] : state.jobs) {
    const absl::Duration slept = now - state.now - LongestAttention(job.record);
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
  Context context(state, now);
  std::visit([&](const auto& one) { On(context, one); }, event);
  while (context.TakeQueueChanged()) Schedule(context);
  return context.TakeEffects();
}

}  // namespace espalier
