// Planned changes of a running job's nodes: it leaves one that an operator drains, or that is
// unwell and may go by itself, and takes in one that has found out, while the others trained, that
// it can train it (a rehearsal). Both stop the generation at a step boundary; the queue starts the
// next one on what it can have then. Where every node that stays keeps the state in memory, no
// checkpoint is written for it. A change costs the job a stop and a start, so what comes and goes
// is let in later each time.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/advance.h"
#include "coordinator/core/directives.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/faults.h"
#include "coordinator/core/holders.h"
#include "coordinator/core/liveness.h"
#include "coordinator/core/usable.h"

namespace espalier {
namespace {

// So many failure timeouts a generation trains before it takes in a node.
constexpr int kGrowAfter = 3;
constexpr absl::Duration kLongestSteady = absl::Minutes(10);
// A disk without room is asked again so long after it said so.
constexpr absl::Duration kAskAgain = absl::Minutes(1);

// So long a node has been there before it is taken in: twice as long for every fault of late, and
// for every time that it fell ill.
absl::Duration SteadySpan(const JobRecord& record, const Node& node, absl::Time now) {
  const absl::Duration window = NodePolicy().window;
  int64_t doublings = node.record.set_asides + node.agent.health.IllOfLate(now);
  for (const absl::Time fault : node.record.faults) doublings += now - fault <= window ? 1 : 0;
  absl::Duration span = FailureTimeout(record);
  for (int64_t i = 0; i < doublings && span < kLongestSteady; ++i) span *= 2;
  return std::min(span, kLongestSteady);
}

absl::Time SteadySince(const Node& node) {
  if (node.agent.state == AgentState::kNone) return node.record.set_aside_until;
  return std::max({node.record.set_aside_until, node.agent.state_since, node.agent.health.since()});
}

bool IsSteady(const JobRecord& record, const Node& node, absl::Time now) {
  return now - SteadySince(node) >= SteadySpan(record, node, now);
}

bool Obeys(const Job& job, RunState wanted) {
  return job.record.processes == Processes::kRunning && job.record.verdict == Verdict::kOpen &&
         job.record.directive.run_state == wanted;
}

// The stop writes a checkpoint, and waits for the disk for as long as that takes. One copy is
// enough, whatever became of the others.
bool CanWriteCheckpoints(const JobRecord& record) {
  if (!record.checkpoint_failure) return true;
  return record.checkpoint && (record.checkpoint->at > record.checkpoint_failure->at ||
                               record.checkpoint->step >= record.checkpoint_failure->step);
}

// What is left to train takes longer than a stop and a start.
bool IsWorthAChange(const Job& job) {
  const Step last(job.record.spec.train().steps() - 1);
  const std::optional<double> left = job.figures.EtaSeconds(job.record.step, last);
  return !left || *left > absl::ToDoubleSeconds(FailureTimeout(job.record));
}

// It trains on fewer nodes than it may, long enough, and has got on by itself.
bool MayGrow(const Job& job, absl::Time now) {
  const JobRecord& record = job.record;
  if (!HasRoom(job) || !Obeys(job, RunState::kRun) || !CanWriteCheckpoints(record)) return false;
  if (now - job.entered_at < kGrowAfter * FailureTimeout(record)) return false;
  const std::optional<Step> began = job.world.ranks.front().ready;
  return began && (record.step > *began || job.world.practised) && IsWorthAChange(job);
}

// The queue would give it all that it has.
bool KeepsItsNodes(const ClusterState& state, const JobRecord& record, const KeptNodes& kept) {
  return std::all_of(record.nodes.begin(), record.nodes.end(), [&](const NodeName& name) {
    const Node* node = state.nodes.Find(name);
    return node != nullptr && kept.KeptFrom(record, name) == nullptr &&
           Usable(state, *node, record, kept).obstacle == Obstacle::kNone;
  });
}

// One that stays may be the next to go by itself, with what it has in memory.
bool MayFollow(const ClusterState& state, const std::vector<NodeName>& staying) {
  return std::any_of(staying.begin(), staying.end(), [&](const NodeName& name) {
    const Node* node = state.nodes.Find(name);
    if (node == nullptr || !node->agent.report) return false;
    const bool on_battery = node->agent.report->condition().power() == v1::NODE_POWER_BATTERY;
    return on_battery || !node->spec.hours().empty();
  });
}

// No checkpoint is needed to go on with these.
bool StayInMemory(const ClusterState& state, const JobRecord& record,
                  const std::vector<NodeName>& staying) {
  return staying.size() >= static_cast<size_t>(record.spec.parallel().min_nodes()) &&
         KeptInMemory(state, record, staying) && !MayFollow(state, staying);
}

// To go on with these and perhaps others.
void Regroup(Transaction& transaction, Job& job, const std::vector<NodeName>& staying,
             const std::string& why, const std::string& how) {
  const JobRecord& record = job.record;
  const bool in_memory = StayInMemory(transaction.state(), record, staying);
  transaction.Enter(job, JobState::kRegrouping,
                    absl::StrCat(why, in_memory ? "; stops" : kStopsWithCheckpoint, how));
  ChangeDirective(transaction, job,
                  {.run_state = RunState::kStop, .checkpoint_before_stop = !in_memory});
}

// "node studio is drained", "node macbook is too hot (...)"; empty: it may stay.
std::string WhyItLeaves(const ClusterState& state, const NodeName& name) {
  const Node* node = state.nodes.Find(name);
  if (node == nullptr) {
    return absl::StrCat("node ", name.text(), " is no longer in the cluster file");
  }
  if (node->record.drained) return absl::StrCat("node ", name.text(), " is drained");
  if (!IsUnwell(*node)) return "";
  return absl::StrCat("node ", name.text(), " ", node->agent.health.why());
}

// Of a node whose disk is full nothing but that is known to be wrong.
bool LeavesForItsDisk(const ClusterState& state, const NodeName& name) {
  const Node* node = state.nodes.Find(name);
  return node != nullptr && !node->record.drained && IsUnwell(*node) &&
         node->agent.health.ailment() == Ailment::kDisk;
}

// It has somebody's word to leave, or is there no more.
bool HasToLeave(const ClusterState& state, const NodeName& name) {
  const Node* node = state.nodes.Find(name);
  return node == nullptr || node->record.drained;
}

struct Leave {
  // Of the first node that is left; empty: none is.
  std::string why;
  std::vector<NodeName> staying;
  // Of nodes that are unwell alone; of those whose disk is full alone.
  bool for_health = true;
  bool for_disks = true;
};

Leave WhatToLeave(const ClusterState& state, const JobRecord& record) {
  Leave leave;
  for (const NodeName& name : record.nodes) {
    const std::string why = WhyItLeaves(state, name);
    if (why.empty()) {
      leave.staying.push_back(name);
      continue;
    }
    if (leave.why.empty()) leave.why = why;
    leave.for_health = leave.for_health && !HasToLeave(state, name);
    leave.for_disks = leave.for_disks && LeavesForItsDisk(state, name);
  }
  return leave;
}

// Where going on elsewhere needs a checkpoint, and that cannot be written, it goes on where it is.
void Stay(Transaction& transaction, Job& job, const std::string& why) {
  if (std::exchange(job.world.stays, why) == why) return;
  const bool known = !CanWriteCheckpoints(job.record);
  transaction.Note(job, absl::StrCat(why, ", and the job stays: elsewhere it could go on from a ",
                                     "checkpoint alone, which ",
                                     known ? "could not be written" : "cannot be written there"));
  const bool runs = job.record.state == JobState::kRunning;
  if (known && runs && !job.record.checkpoint_wanted) AskForCheckpoint(transaction, job);
}

// There may be room by now, and nobody else asks where every_steps is far away.
void AskAgain(Transaction& transaction, Job& job) {
  const JobRecord& record = job.record;
  const bool stays = !job.world.stays.empty() && record.state == JobState::kRunning &&
                     Obeys(job, RunState::kRun) && !record.checkpoint_wanted;
  if (!stays || CanWriteCheckpoints(record)) return;
  if (transaction.now() - record.checkpoint_failure->at >= kAskAgain) {
    AskForCheckpoint(transaction, job);
  }
}

// What starts or pauses is looked at again when it has.
void LeaveNodes(Transaction& transaction, Job& job) {
  JobRecord& record = job.record;
  const bool paused = record.state == JobState::kPausedSoft && Obeys(job, RunState::kPause);
  const bool runs = record.state == JobState::kRunning && Obeys(job, RunState::kRun);
  if (IsExternal(record) || !(paused || runs)) return;
  const auto [why, staying, for_health, for_disks] = WhatToLeave(transaction.state(), record);
  if (why.empty()) return job.world.stays.clear();
  const bool unsaved = for_health && (for_disks || !CanWriteCheckpoints(record));
  if (unsaved && (paused || !StayInMemory(transaction.state(), record, staying))) {
    return Stay(transaction, job, why);
  }
  job.world.stays.clear();
  if (runs) {
    return Regroup(transaction, job, staying, why, " to go on without it");
  }
  record.desired = DesiredState::kPauseHard;
  transaction.Enter(job, JobState::kPausing,
                    absl::StrCat("was paused in memory, and ", why, kStopsWithCheckpoint));
  ChangeDirective(transaction, job, {.run_state = RunState::kStop, .checkpoint_before_stop = true});
}

void TakeIn(Transaction& transaction, Job& job, const KeptNodes& kept) {
  const JobRecord& record = job.record;
  const ClusterState& state = transaction.state();
  if (!KeepsItsNodes(state, record, kept)) return;
  const auto room = static_cast<size_t>(MaxNodes(record)) - record.nodes.size();
  std::vector<NodeName> more;
  for (const Node& node : state.nodes) {
    if (more.size() == room) break;
    if (node.holder == record.id || !CanTrain(record, node)) continue;
    if (!IsSteady(record, node, transaction.now())) continue;
    if (Usable(state, node, record, kept).obstacle == Obstacle::kNone) {
      more.push_back(node.record.name);
    }
  }
  if (more.empty()) return;
  Regroup(transaction, job, record.nodes, absl::StrCat(NodeList(more), " can be had"),
          absl::StrCat(" to go on with ", record.nodes.size() + more.size(), " nodes"));
}

absl::Status CheckNode(const ClusterState& state, const NodeName& name) {
  if (state.nodes.Find(name) != nullptr) return absl::OkStatus();
  return NoSuchNode(state.nodes, name);
}

// When the job stops, its state will be on the node: in a checkpoint, where one of the ranks that
// keep copies (the lowest, unless two share a folder) has written them so far, or in memory.
bool WillHold(const ClusterState& state, const JobRecord& record, const NodeName& name) {
  const auto rank = std::find(record.nodes.begin(), record.nodes.end(), name);
  const bool keeps_copies =
      rank != record.nodes.end() && rank - record.nodes.begin() < record.spec.checkpoint().copies();
  const bool writes = keeps_copies && (NewestPublished(record) == Step(0) ||
                                       Holders(state, record).HasPublished(name));
  return writes || record.spec.checkpoint().shared() || KeptInMemory(state, record, {name});
}

// What a job lacks now that the node is drained, and waits for; empty: nothing.
std::string WhatIsMissing(const ClusterState& state, const JobRecord& record,
                          const NodeName& name) {
  if (IsExternal(record) || IsFinal(record.state) || !MayUse(record, name)) return "";
  const int32_t least = record.spec.parallel().min_nodes();
  const auto undrained = std::count_if(state.nodes.begin(), state.nodes.end(), [&](const Node& n) {
    return MayUse(record, n.record.name) && !n.record.drained;
  });
  if (undrained < least) {
    return absl::StrCat("job ", record.id.text(), " needs ", least,
                        least == 1 ? " node, and " : " nodes, and ", undrained,
                        undrained == 1 ? " is" : " are", " not drained");
  }
  const bool runs = record.processes == Processes::kRunning;
  const Holders holders(state, record);
  const bool held = std::any_of(state.nodes.begin(), state.nodes.end(), [&](const Node& n) {
    return !n.record.drained &&
           (runs ? WillHold(state, record, n.record.name) : holders.Has(n.record.name));
  });
  if (held || !(runs || holders.needed())) return "";
  return absl::StrCat("only drained nodes ", runs ? "keep the state" : "hold the newest state",
                      " of job ", record.id.text());
}

// What a drain does to whom.
std::string ExplainDrain(const ClusterState& state, const NodeName& name) {
  std::string undo =
      absl::StrCat("none starts there until `espalier nodes allow ", name.text(), "`");
  for (const auto& [id, job] : state.jobs) {
    const std::string missing = WhatIsMissing(state, job.record, name);
    if (!missing.empty()) absl::StrAppend(&undo, "; ", missing, ": it waits for that");
  }
  const JobId* id = state.nodes.HolderOf(name);
  if (id == nullptr) return absl::StrCat("no job uses it; ", undo);
  const JobRecord& record = state.jobs.at(*id).record;
  if (IsExternal(record)) {
    return absl::StrCat("job ", id->text(), " was started there by hand and stays; end it with ",
                        "`espalier pause --hard ", id->text(), "`; ", undo);
  }
  return absl::StrCat("job ", id->text(), " leaves it after the step at hand; ", undo);
}

// Which running job takes the node in, and when at the earliest.
std::string ExplainAllow(const ClusterState& state, const Node& node) {
  for (const auto& [id, job] : state.jobs) {
    const JobRecord& record = job.record;
    if (!HasRoom(job) || !MayUse(record, node.record.name)) continue;
    if (node.agent.state == AgentState::kNone && !HasTrained(record, node.record.name)) continue;
    const absl::Time ran = job.entered_at + kGrowAfter * FailureTimeout(record);
    const absl::Time steady = SteadySince(node) + SteadySpan(record, node, state.now);
    const absl::Time at = std::max({state.now, ran, steady});
    const absl::Duration wait = absl::Ceil(at - state.now, absl::Seconds(1));
    return absl::StrCat(
        "jobs may use it again; job ", id.text(), " takes it in ",
        wait == absl::ZeroDuration()
            ? "at a next step"
            : absl::StrCat("after ", absl::FormatDuration(wait), " at the earliest"),
        ", if it can train it and both stay well");
  }
  return "jobs may use it again";
}

}  // namespace

void ChangeNodes(Transaction& transaction, const KeptNodes& kept) {
  // One at a time: a node that is free now is what one job stops for, not all of them.
  bool changing = false;
  std::vector<Job*> growing;
  for (auto& [id, job] : transaction.state().jobs) {
    LeaveNodes(transaction, job);
    changing = changing || job.record.state == JobState::kRegrouping;
    if (MayTakeIn(job, transaction.now())) growing.push_back(&job);
  }
  std::sort(growing.begin(), growing.end(),
            [](const Job* a, const Job* b) { return GoesBefore(a->record, b->record); });
  for (Job* job : growing) {
    job->world.grow_at = transaction.now() + FailureTimeout(job->record) / 2;
    if (!changing) TakeIn(transaction, *job, kept);
    changing = changing || job->record.state == JobState::kRegrouping;
  }
}

void WatchChange(Transaction& transaction, Job& job) {
  AskAgain(transaction, job);
  const JobRecord& record = job.record;
  const std::optional<absl::Time> since = job.world.unsaved_since;
  // Another rank's copy may still be written.
  if (!since || transaction.now() - *since < kLastWordsWait) return;
  const bool stops = record.state == JobState::kRegrouping && Obeys(job, RunState::kStop) &&
                     record.directive.checkpoint_before_stop;
  const bool wanted = record.desired == DesiredState::kRun && !job.world.ranks.front().outcome;
  const Leave leave = WhatToLeave(transaction.state(), record);
  if (!stops || !wanted || !leave.for_health) return;
  job.world.unsaved_since.reset();
  const auto least = static_cast<size_t>(record.spec.parallel().min_nodes());
  if (leave.staying.size() >= least && KeptInMemory(transaction.state(), record, leave.staying)) {
    transaction.Note(job, "its checkpoint could not be written; goes on from memory");
    return ChangeDirective(transaction, job, {.run_state = RunState::kStop});
  }
  job.record.called_off = true;
  job.world.stays = leave.why;
  transaction.Enter(job, JobState::kRunning,
                    absl::StrCat("runs on ", NodeList(record.nodes),
                                 " still: the checkpoint to go on elsewhere could not be written",
                                 leave.why.empty() ? "" : absl::StrCat(", though ", leave.why)));
  ChangeDirective(transaction, job, {.run_state = RunState::kRun});
}

void TakeUpChange(Transaction& transaction, Job& job) {
  // After a fault, or when it has ended, there is nothing to take up.
  if (job.record.state != JobState::kRunning || !Obeys(job, RunState::kRun)) return;
  transaction.Enter(job, JobState::kRegrouping,
                    "stopped for the change of nodes before it heard that it was called off");
  ChangeDirective(transaction, job, {.run_state = RunState::kStop, .checkpoint_before_stop = true});
}

bool MayTakeIn(const Job& job, absl::Time now) {
  return now >= job.world.grow_at && MayGrow(job, now);
}

void OnNode(Transaction& transaction, const NodeDrained& request) {
  ClusterState& state = transaction.state();
  Reply reply{.request = request.request, .status = CheckNode(state, request.node)};
  if (reply.status.ok()) {
    NodeRecord& record = state.nodes.Edit(request.node)->record;
    record.drained = request.reason;
    transaction.Persist(record);
    transaction.QueueChanged();
    reply.explanation = ExplainDrain(state, request.node);
  }
  transaction.Do(std::move(reply));
}

void OnNode(Transaction& transaction, const NodeAllowed& request) {
  ClusterState& state = transaction.state();
  Reply reply{.request = request.request, .status = CheckNode(state, request.node)};
  if (reply.status.ok()) {
    NodeRecord& record = state.nodes.Edit(request.node)->record;
    const bool kept_out = record.drained || IsSetAside(record);
    record.drained.reset();
    record.faults.clear();
    record.set_asides = 0;
    record.set_aside_reason.clear();
    record.set_aside_until = absl::UnixEpoch();
    Node& node = *state.nodes.Edit(request.node);
    if (node.agent.report)
      node.agent.health.LookAnew(node.spec, *node.agent.report, transaction.moment());
    record.illness = node.agent.health.illness();
    transaction.Persist(record);
    transaction.QueueChanged();
    reply.explanation = kept_out ? ExplainAllow(state, *state.nodes.Find(request.node))
                                 : "neither drained nor set aside";
  }
  transaction.Do(std::move(reply));
}

}  // namespace espalier
