// The first event of a coordinator's life: takes up what the journal holds.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/advance.h"
#include "coordinator/core/directives.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/faults.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/liveness.h"

namespace espalier {
namespace {

// The journal's times are of the machine's clock, which may have been set back since: nothing was
// in the future, and no wait of the core's own is longer than its longest.
void NoLaterThan(absl::Time& time, absl::Time latest) { time = std::min(time, latest); }

JobRecord WithTimesOf(absl::Time now, JobRecord record) {
  NoLaterThan(record.state_since, now);
  for (absl::Time& fault : record.faults) NoLaterThan(fault, now);
  NoLaterThan(record.retry_at, now + kLongestBackoff);
  return record;
}

NodeRecord WithTimesOf(absl::Time now, NodeRecord record) {
  for (absl::Time& fault : record.faults) NoLaterThan(fault, now);
  NoLaterThan(record.set_aside_until, now + NodePolicy{}.longest_set_aside);
  return record;
}

void TakeNodes(ClusterState& state, const CoordinatorStarted& start) {
  std::map<NodeName, NodeRecord> known;
  for (const NodeRecord& record : start.records) {
    known[record.name] = WithTimesOf(state.now, record);
  }
  for (const NodeName& name : start.nodes) {
    const auto found = known.find(name);
    const auto address = start.addresses.find(name);
    NodeRecord record = found == known.end() ? NodeRecord{.name = name} : found->second;
    record.joined.reset();
    state.nodes.Add(std::move(record), address == start.addresses.end() ? "" : address->second);
  }
  for (const auto& [name, record] : known) {
    state.revoked.insert(record.revoked.begin(), record.revoked.end());
    if (state.nodes.Find(name) != nullptr) continue;
    if (record.joined) {
      state.nodes.Add(record, record.joined->address());
    } else {
      state.absent[name] = record;
    }
  }
}

// The clock may have been set back since the record was written; no wait is longer for that.
void BoundWaits(Context& context, Job& job) {
  const absl::Time latest = context.now() + kLongestBackoff;
  if (IsFinal(job.record.state) || job.record.retry_at <= latest) return;
  job.record.retry_at = latest;
  context.Persist(job);
}

void BoundWaits(Context& context) {
  NodeTable& nodes = context.state().nodes;
  const absl::Time latest = context.now() + NodePolicy{}.longest_set_aside;
  for (const Node& node : nodes) {
    if (node.record.set_aside_until <= latest) continue;
    nodes.Edit(node.record.name)->record.set_aside_until = latest;
    context.Persist(node.record);
  }
}

// The generation may still run. Its workers come back; until then, nobody is blamed.
void Adopt(Context& context, Job& job) {
  const JobRecord& record = job.record;
  ResetWorld(context, job, record.nodes.size());
  job.world.unheard_since_restart = true;
  for (TrackedRank& rank : job.world.ranks) {
    rank.heard_at += kReattachWait;
    rank.progressed_at += kReattachWait;
    rank.lease_until = LeaseEnd(record, context.now());
  }
  if (record.verdict != Verdict::kOpen) job.world.finished_at = context.now();
  if (IsExternal(record) && record.processes == Processes::kEnding) LeaveToThemselves(context, job);
}

// The journal knows the generation, but its launch never got there: nothing of it can run.
bool NeverStarted(const JobRecord& record, const std::vector<GenerationKey>& launches) {
  const GenerationKey key{record.id, record.generation};
  return !IsExternal(record) && std::find(launches.begin(), launches.end(), key) == launches.end();
}

const NodeName* MissingNode(const ClusterState& state, const JobRecord& record) {
  if (IsExternal(record)) return nullptr;
  for (const NodeName& node : record.nodes) {
    if (state.nodes.Find(node) == nullptr) return &node;
  }
  return nullptr;
}

// The cluster file no longer names a node of the generation.
void LeaveMissingNode(Context& context, Job& job) {
  const NodeName* missing = MissingNode(context.state(), job.record);
  if (missing == nullptr || job.record.state != JobState::kRunning) return;
  context.Enter(job, JobState::kRegrouping,
                absl::StrCat("node ", missing->text(),
                             " is no longer in the cluster file; stops with a checkpoint to go on "
                             "without it"));
  ChangeDirective(context, job, {.run_state = RunState::kStop, .checkpoint_before_stop = true});
}

void TakeUp(Context& context, Job& job, const std::vector<GenerationKey>& launches) {
  if (IsFinal(job.record.state)) return;
  if (job.record.processes == Processes::kNone) {
    // Settled before the transition was journaled with it; the queue does the rest.
    return;
  }
  Adopt(context, job);
  if (NeverStarted(job.record, launches)) {
    OnGone(context, job, "espalierd stopped before it was started");
    return;
  }
  if (job.record.processes == Processes::kEnding && !IsExternal(job.record)) {
    context.Do(Kill{{job.record.id, job.record.generation}});
  }
  LeaveMissingNode(context, job);
}

}  // namespace

void OnStarted(Context& context, const CoordinatorStarted& start) {
  ClusterState& state = context.state();
  state.versions = start.versions;
  state.agents_due = context.now() + kReattachWait;
  state.next_job = start.last_number + 1;
  TakeNodes(state, start);
  BoundWaits(context);
  for (const JobRecord& record : start.jobs) {
    state.jobs[record.id].record = WithTimesOf(context.now(), record);
    state.next_job = std::max(state.next_job, record.number + 1);
    NoteHeldNodes(state, record);
  }
  for (auto& [id, job] : state.jobs) {
    BoundWaits(context, job);
    TakeUp(context, job, start.launches);
  }
  context.QueueChanged();
}

}  // namespace espalier
