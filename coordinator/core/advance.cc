#include "coordinator/core/advance.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "coordinator/core/directives.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/faults.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/liveness.h"
#include "coordinator/core/transaction.h"

namespace espalier {
namespace {

// The journal's times are of the machine's clock, which may have been set back since: nothing was
// in the future, and no wait of the core's own is longer than it was at its begin. True: one was.
bool LowerTo(absl::Time& time, absl::Time latest) {
  if (time <= latest) return false;
  time = latest;
  return true;
}

bool LowerAllTo(std::vector<absl::Time>& times, absl::Time latest) {
  bool lowered = false;
  for (absl::Time& time : times) lowered = LowerTo(time, latest) || lowered;
  return lowered;
}

bool BoundTimes(JobRecord& record, absl::Time now) {
  const bool since = LowerTo(record.state_since, now);
  const bool faults = LowerAllTo(record.faults, now);
  const bool retry = LowerTo(record.retry_at, now + kLongestBackoff);
  return since || faults || retry;
}

bool BoundTimes(NodeRecord& record, absl::Time now) {
  const bool faults = LowerAllTo(record.faults, now);
  const bool ill = LowerAllTo(record.illness.fell_ill, now);
  const bool since = LowerTo(record.illness.since, now);
  return LowerTo(record.set_aside_until, now + SetAsideSpan(record.set_asides)) || faults || ill ||
         since;
}

void TakeNodes(Transaction& transaction, const CoordinatorStarted& start) {
  ClusterState& state = transaction.state();
  std::map<NodeName, NodeRecord> known;
  for (const NodeRecord& record : start.records) {
    NodeRecord& own = known[record.name] = record;
    if (BoundTimes(own, transaction.now())) transaction.Persist(own);
  }
  for (const NodeName& name : start.nodes) {
    const auto found = known.find(name);
    const auto spec = start.specs.find(name);
    NodeRecord record = found == known.end() ? NodeRecord{.name = name} : found->second;
    record.joined.reset();
    state.nodes.Add(std::move(record), spec == start.specs.end() ? v1::NodeSpec() : spec->second);
  }
  std::vector<NodeRecord> joined;
  for (const auto& [name, record] : known) {
    state.revoked.insert(record.revoked.begin(), record.revoked.end());
    if (state.nodes.Find(name) != nullptr) continue;
    if (record.joined) {
      joined.push_back(record);
    } else {
      state.absent[name] = record;
    }
  }
  // By name where an older espalierd has not numbered them.
  std::stable_sort(joined.begin(), joined.end(), [](const NodeRecord& a, const NodeRecord& b) {
    return a.joined_as < b.joined_as;
  });
  for (const NodeRecord& record : joined) state.nodes.Add(record, *record.joined);
  for (const Node& node : state.nodes) {
    const Illness& illness = node.record.illness;
    state.nodes.Edit(node.record.name)->agent.health = NodeHealth(illness, transaction.now());
  }
}

// What is final is not written again.
void TakeJob(Transaction& transaction, const JobRecord& record) {
  ClusterState& state = transaction.state();
  Job& job = state.jobs[record.id];
  job.record = record;
  job.entered_at = std::min(record.state_since, transaction.now());
  job.health.TakeUp(record.warnings);
  state.next_job = std::max(state.next_job, record.number + 1);
  NoteHeldNodes(state, record);
  if (IsFinal(record.state)) {
    LowerTo(job.record.state_since, transaction.now());
  } else if (BoundTimes(job.record, transaction.now())) {
    transaction.Persist(job);
  }
}

// The generation may still run. Its workers come back; until then, nobody is blamed.
void Adopt(Transaction& transaction, Job& job) {
  const JobRecord& record = job.record;
  ResetWorld(transaction, job, record.nodes.size());
  job.world.unheard_since_restart = true;
  for (TrackedRank& rank : job.world.ranks) {
    rank.heard_at += kReattachWait;
    rank.progressed_at += kReattachWait;
    rank.lease_until = LeaseEnd(record, transaction.now());
  }
  if (record.verdict != Verdict::kOpen) job.world.finished_at = transaction.now();
  if (IsExternal(record) && record.processes == Processes::kEnding)
    LeaveToThemselves(transaction, job);
}

// The journal knows the generation, but its launch never got there: nothing of it can run.
bool NeverStarted(const JobRecord& record, const std::vector<GenerationKey>& launches) {
  const GenerationKey key{record.id, record.generation};
  return !IsExternal(record) && std::find(launches.begin(), launches.end(), key) == launches.end();
}

void TakeUp(Transaction& transaction, Job& job, const std::vector<GenerationKey>& launches) {
  if (IsFinal(job.record.state)) return;
  if (job.record.processes == Processes::kNone) {
    // Settled before the transition was journaled with it; the queue does the rest.
    return;
  }
  Adopt(transaction, job);
  if (NeverStarted(job.record, launches)) {
    OnGone(transaction, job, "espalierd stopped before it was started");
    return;
  }
  if (job.record.processes == Processes::kEnding && !IsExternal(job.record)) {
    transaction.Do(Kill{{job.record.id, job.record.generation}});
  }
}

// The first event of a coordinator's life: takes up what the journal holds.
void On(Transaction& transaction, const CoordinatorStarted& start) {
  ClusterState& state = transaction.state();
  state.versions = start.versions;
  state.agents_due = transaction.now() + kReattachWait;
  state.next_job = start.last_number + 1;
  TakeNodes(transaction, start);
  for (const JobRecord& record : start.jobs) TakeJob(transaction, record);
  for (auto& [id, job] : state.jobs) TakeUp(transaction, job, start.launches);
  transaction.QueueChanged();
}

void On(Transaction& transaction, const Tick& tick) {
  transaction.state().wall_ahead = tick.wall.value_or(transaction.now()) - transaction.now();
  ReturnNodes(transaction);
  WatchAgents(transaction);
  for (auto& [id, job] : transaction.state().jobs) {
    if (IsFinal(job.record.state)) continue;
    WatchJob(transaction, job);
    WatchChange(transaction, job);
    HeedLimits(transaction, job);
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
void On(Transaction& transaction, const WorkerPractised& event) { OnReport(transaction, event); }
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
void On(Transaction& transaction, const NodeSet& event) { OnNode(transaction, event); }
void On(Transaction& transaction, const VersionsFound& event) { OnVersions(transaction, event); }

// Null when the generation is not the one that runs.
Job* Newest(Transaction& transaction, const GenerationKey& key) {
  Job* job = transaction.FindJob(key.job);
  const bool newest = job != nullptr && job->record.generation == key.generation &&
                      job->record.processes != Processes::kNone;
  return newest ? job : nullptr;
}

void On(Transaction& transaction, const LaunchFailed& event) {
  Job* job = Newest(transaction, event.key);
  if (job == nullptr) return;
  const std::string reason = "could not be started: " + event.reason;
  RetryLaunch(transaction, *job, reason);
  OnGone(transaction, *job, reason);
}

// A rank that could not even attach (a command line that its worker does not know, say) has met it
// as one that says so; nobody has said more.
void NoteBadInput(Job& job, const ProcessesExited& event) {
  World& world = job.world;
  const bool told = std::any_of(world.ranks.begin(), world.ranks.end(),
                                [](const TrackedRank& rank) { return rank.outcome.has_value(); });
  if (!world.exit_culprit && world.ranks.size() == 1) world.exit_culprit = Rank(0);
  if (told || world.failed_at || !world.exit_culprit) return;
  NoteFailure(job, *world.exit_culprit,
              {.reason = event.reason, .code = absl::StatusCode::kInvalidArgument});
  world.failed_at = world.exited_at;
}

void On(Transaction& transaction, const ProcessesExited& event) {
  Job* job = Newest(transaction, event.key);
  if (job == nullptr || job->world.exited_at) return;
  job->vain_launches = 0;
  job->world.exited_at = transaction.now();
  job->world.exit_reason = event.reason;
  job->world.unconfirmed = event.unconfirmed;
  const auto ranks = static_cast<int64_t>(job->world.ranks.size());
  if (event.culprit && event.culprit->value() < ranks) job->world.exit_culprit = event.culprit;
  // A job that has got on had good input: what it met may be one machine's, and is tried again.
  if (event.bad_input && !HasGotOn(job->record)) NoteBadInput(*job, event);
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

void OnVersions(Transaction& transaction, const VersionsFound& found) {
  ClusterState& state = transaction.state();
  state.versions = found.versions;
  for (const Node& node : state.nodes) state.nodes.Edit(node.record.name);
  transaction.QueueChanged();
}

void ShiftDeadlines(NodeTable& nodes, absl::Duration slept) {
  for (const Node& node : nodes) nodes.Edit(node.record.name)->agent.heard_at += slept;
}

}  // namespace espalier
