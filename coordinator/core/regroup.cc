// Planned changes of a running job's nodes: it leaves one that an operator drains, and takes in one
// more that it can have. Both stop the generation at a step boundary, with a checkpoint; the queue
// starts the next one on what it can have then. A change costs the job a stop and a start, so what
// comes and goes is let in later each time.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/advance.h"
#include "coordinator/core/directives.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/faults.h"
#include "coordinator/core/usable.h"

namespace espalier {
namespace {

// So many failure timeouts a generation trains before it takes in a node.
constexpr int kGrowAfter = 3;
constexpr absl::Duration kLongestSteady = absl::Minutes(10);

// So long a node has been there before it is taken in: twice as long for every fault of late.
absl::Duration SteadySpan(const JobRecord& record, const NodeRecord& node, absl::Time now) {
  const absl::Duration window = NodePolicy().window;
  absl::Duration span = FailureTimeout(record);
  for (const absl::Time fault : node.faults) {
    if (now - fault <= window && span < kLongestSteady) span *= 2;
  }
  return std::min(span, kLongestSteady);
}

bool IsSteady(const JobRecord& record, const Node& node, absl::Time now) {
  absl::Time since = node.record.set_aside_until;
  if (node.agent.state != AgentState::kNone) since = std::max(since, node.agent.state_since);
  return now - since >= SteadySpan(record, node.record, now);
}

bool Obeys(const Job& job, RunState wanted) {
  return job.record.processes == Processes::kRunning && job.record.verdict == Verdict::kOpen &&
         job.record.directive.run_state == wanted;
}

// It trains on fewer nodes than it may, long enough, and has committed a step of its own.
bool MayGrow(const Job& job, absl::Time now) {
  const JobRecord& record = job.record;
  if (record.state != JobState::kRunning || !Obeys(job, RunState::kRun)) return false;
  const auto nodes = static_cast<int32_t>(record.nodes.size());
  if (IsExternal(record) || nodes >= MaxNodes(record)) return false;
  return now - record.state_since >= kGrowAfter * FailureTimeout(record) &&
         record.step > *job.world.ranks.front().ready;
}

void Regroup(Transaction& transaction, Job& job, const std::string& reason) {
  transaction.Enter(job, JobState::kRegrouping, reason);
  ChangeDirective(transaction, job, {.run_state = RunState::kStop, .checkpoint_before_stop = true});
}

const Node* DrainedNode(const ClusterState& state, const JobRecord& record) {
  for (const NodeName& name : record.nodes) {
    const Node* node = state.nodes.Find(name);
    if (node != nullptr && node->record.drained) return node;
  }
  return nullptr;
}

// What starts or pauses is looked at again when it has.
void LeaveDrained(Transaction& transaction, Job& job) {
  JobRecord& record = job.record;
  const bool paused = record.state == JobState::kPausedSoft && Obeys(job, RunState::kPause);
  const bool runs = record.state == JobState::kRunning && Obeys(job, RunState::kRun);
  if (IsExternal(record) || !(paused || runs)) return;
  const Node* node = DrainedNode(transaction.state(), record);
  if (node == nullptr) return;
  const std::string reason =
      absl::StrCat("node ", node->record.name.text(), " is drained; stops with a checkpoint");
  if (runs) {
    Regroup(transaction, job, absl::StrCat(reason, " to go on without it"));
    return;
  }
  record.desired = DesiredState::kPauseHard;
  transaction.Enter(job, JobState::kPausing, reason);
  ChangeDirective(transaction, job, {.run_state = RunState::kStop, .checkpoint_before_stop = true});
}

void TakeIn(Transaction& transaction, Job& job, const KeptNodes& kept) {
  const JobRecord& record = job.record;
  const ClusterState& state = transaction.state();
  const auto room = static_cast<size_t>(MaxNodes(record)) - record.nodes.size();
  std::vector<NodeName> more;
  for (const Node& node : state.nodes) {
    if (more.size() == room) break;
    if (node.holder == record.id || !IsSteady(record, node, transaction.now())) continue;
    if (Usable(state, node, record, kept).obstacle == Obstacle::kNone) {
      more.push_back(node.record.name);
    }
  }
  if (more.empty()) return;
  Regroup(transaction, job,
          absl::StrCat(NodeList(more), " can be had; stops with a checkpoint to go on with ",
                       record.nodes.size() + more.size(), " nodes"));
}

absl::Status CheckNode(const ClusterState& state, const NodeName& name) {
  if (state.nodes.Find(name) != nullptr) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("there is no node '", name.text(), "'; there are: ", NamesOfNodes(state.nodes)));
}

// What a drain does to whom.
std::string ExplainDrain(const ClusterState& state, const NodeName& name) {
  const std::string undo =
      absl::StrCat("none starts there until `espalier nodes allow ", name.text(), "`");
  const JobId* id = state.nodes.HolderOf(name);
  if (id == nullptr) return absl::StrCat("no job uses it; ", undo);
  const JobRecord& record = state.jobs.at(*id).record;
  if (IsExternal(record)) {
    return absl::StrCat("job ", id->text(), " was started there by hand and stays; end it with ",
                        "`espalier pause --hard ", id->text(), "`; ", undo);
  }
  return absl::StrCat("job ", id->text(), " leaves it with a checkpoint; ", undo);
}

}  // namespace

void ChangeNodes(Transaction& transaction, const KeptNodes& kept) {
  for (auto& [id, job] : transaction.state().jobs) {
    LeaveDrained(transaction, job);
    if (!MayGrow(job, transaction.now()) || transaction.now() < job.world.grow_at) continue;
    job.world.grow_at = transaction.now() + FailureTimeout(job.record) / 2;
    TakeIn(transaction, job, kept);
  }
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
    transaction.Persist(record);
    transaction.QueueChanged();
    reply.explanation = kept_out
                            ? "jobs may use it again; one that runs on fewer nodes than it may "
                              "takes it in within a minute"
                            : "nothing was held against it";
  }
  transaction.Do(std::move(reply));
}

}  // namespace espalier
