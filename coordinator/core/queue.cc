// The queue: which jobs get which nodes. By priority, then age; a job that waits keeps the nodes it
// could use from those behind it; a higher priority preempts lower ones, which stop with a
// checkpoint and queue again.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/directives.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/handlers.h"

namespace espalier {
namespace {

int32_t MaxNodes(const JobRecord& record) {
  const v1::ParallelSpec& parallel = record.spec.parallel();
  return parallel.has_max_nodes() ? parallel.max_nodes() : parallel.min_nodes();
}

std::vector<NodeName> AllowedNodes(const ClusterState& state, const JobRecord& record) {
  std::vector<NodeName> nodes;
  for (const std::string& name : record.spec.parallel().nodes()) {
    if (state.nodes.Find(NodeName(name)) != nullptr) nodes.push_back(NodeName(name));
  }
  if (!record.spec.parallel().nodes().empty()) return nodes;
  for (const Node& node : state.nodes) nodes.push_back(node.record.name);
  return nodes;
}

// The job that holds the node, unless it is this one; null: none.
const JobId* HeldByOther(const ClusterState& state, const NodeName& node, const JobRecord& own) {
  const JobId* holder = state.nodes.HolderOf(node);
  return holder != nullptr && *holder != own.id ? holder : nullptr;
}

// "waits for 2 nodes; free: studio; macbook is held by job nano-1".
std::string WhyItWaits(const ClusterState& state, const JobRecord& record,
                       const std::vector<NodeName>& free, const std::set<NodeName>& withheld) {
  const int32_t least = record.spec.parallel().min_nodes();
  std::string text = absl::StrCat("waits for ", least, least == 1 ? " node" : " nodes",
                                  "; free: ", NodeList(free));
  for (const NodeName& name : AllowedNodes(state, record)) {
    const NodeRecord& node = state.nodes.Find(name)->record;
    const JobId* holder = HeldByOther(state, name, record);
    if (IsSetAside(node)) {
      absl::StrAppend(&text, "; ", name.text(), " is set aside (", node.set_aside_reason, ")");
    } else if (holder != nullptr) {
      absl::StrAppend(&text, "; ", name.text(), " is held by job ", holder->text());
    } else if (withheld.count(name) != 0) {
      absl::StrAppend(&text, "; ", name.text(), " is kept for a job ahead in the queue");
    }
  }
  return text;
}

bool Waits(const Job& job, absl::Time now) {
  const JobRecord& record = job.record;
  if (IsExternal(record) || record.processes != Processes::kNone) return false;
  if (record.state == JobState::kQueued || record.state == JobState::kRegrouping) return true;
  return record.state == JobState::kRecovering && now >= record.retry_at;
}

std::vector<Job*> WaitingJobs(Context& context) {
  std::vector<Job*> waiting;
  for (auto& [id, job] : context.state().jobs) {
    if (Waits(job, context.now())) waiting.push_back(&job);
  }
  std::sort(waiting.begin(), waiting.end(), [](const Job* a, const Job* b) {
    const int32_t first = a->record.spec.priority();
    const int32_t second = b->record.spec.priority();
    return first != second ? first > second : a->record.number < b->record.number;
  });
  return waiting;
}

void KeepWaiting(Context& context, Job& job, const std::string& reason) {
  JobRecord& record = job.record;
  if (record.state != JobState::kQueued) {
    context.Enter(job, JobState::kQueued, reason);
  } else if (record.reason != reason) {
    record.reason = reason;
    context.Persist(job);
  }
}

struct Placement {
  // The node of each rank; empty: the job must wait.
  std::vector<NodeName> nodes;
  // Why so, for people.
  std::string reason;
};

// Up to max_nodes of the free nodes, those of the last generation first because its checkpoints are
// there, in the order of parallel.nodes (of the cluster file when it is empty).
Placement Place(const ClusterState& state, const JobRecord& record,
                const std::set<NodeName>& withheld) {
  std::vector<NodeName> free;
  for (const NodeName& name : AllowedNodes(state, record)) {
    const bool taken = HeldByOther(state, name, record) != nullptr;
    if (!taken && !IsSetAside(state.nodes.Find(name)->record) && withheld.count(name) == 0) {
      free.push_back(name);
    }
  }
  if (free.size() < static_cast<size_t>(record.spec.parallel().min_nodes())) {
    return {.reason = WhyItWaits(state, record, free, withheld)};
  }
  std::vector<NodeName> chosen = free;
  const auto used_before = [&](const NodeName& node) {
    return std::find(record.nodes.begin(), record.nodes.end(), node) != record.nodes.end();
  };
  std::stable_partition(chosen.begin(), chosen.end(), used_before);
  chosen.resize(std::min(chosen.size(), static_cast<size_t>(MaxNodes(record))));
  Placement placement;
  for (const NodeName& node : free) {
    if (std::find(chosen.begin(), chosen.end(), node) != chosen.end()) {
      placement.nodes.push_back(node);
    }
  }
  placement.reason = absl::StrCat("starts generation ", record.generation.next().value(), " on ",
                                  NodeList(placement.nodes));
  return placement;
}

// Something of the job runs, and is on its way out.
bool IsLeaving(const JobRecord& record) {
  return record.processes == Processes::kEnding || record.verdict != Verdict::kOpen ||
         record.directive.run_state == RunState::kStop;
}

bool CanYield(const JobRecord& record) {
  return record.state == JobState::kRunning || record.state == JobState::kPausedSoft ||
         (record.state == JobState::kRecovering && record.processes == Processes::kNone);
}

void Yield(Context& context, Job& job, const JobRecord& to) {
  JobRecord& record = job.record;
  const std::string reason =
      absl::StrCat("preempted by job ", to.id.text(), " (priority ", to.spec.priority(), " over ",
                   record.spec.priority(), ")");
  if (record.processes == Processes::kNone) {
    context.Enter(job, JobState::kQueued, reason);
    return;
  }
  if (record.state == JobState::kPausedSoft) record.desired = DesiredState::kPauseHard;
  context.Enter(job, JobState::kPausing, reason);
  ChangeDirective(context, job, {.run_state = RunState::kStop, .checkpoint_before_stop = true});
}

struct Census {
  int64_t usable = 0;
  // Free, or about to be.
  int64_t coming = 0;
  // Jobs that could yield, and how many usable nodes each would bring.
  std::vector<std::pair<Job*, int64_t>> victims;
};

int64_t NodesOfUse(const ClusterState& state, const JobRecord& holder, const JobRecord& waiting) {
  return std::count_if(holder.nodes.begin(), holder.nodes.end(), [&](const NodeName& name) {
    const Node* node = state.nodes.Find(name);
    return node != nullptr && !IsSetAside(node->record) && MayUse(waiting, name);
  });
}

Census Count(Context& context, const JobRecord& waiting) {
  Census census;
  for (const Node& node : context.state().nodes) {
    if (!IsSetAside(node.record) && MayUse(waiting, node.record.name)) ++census.usable;
  }
  census.coming = census.usable;
  for (auto& [id, job] : context.state().jobs) {
    const JobRecord& record = job.record;
    if (record.id == waiting.id || !HoldsNodes(record)) continue;
    const int64_t nodes = NodesOfUse(context.state(), record, waiting);
    if (record.processes != Processes::kNone && IsLeaving(record)) continue;
    census.coming -= nodes;
    if (nodes > 0 && CanYield(record) && !IsExternal(record) &&
        record.spec.priority() < waiting.spec.priority()) {
      census.victims.emplace_back(&job, nodes);
    }
  }
  return census;
}

enum class Room {
  // Nodes will come free sooner or later.
  kLater,
  // Not with the nodes that are in use now: fewer than min_nodes are allowed and not set aside.
  kNever,
};

// Preempts as few jobs of lower priority as will do, the lowest and youngest first; none when even
// all of them would not do, or when enough nodes are about to come free anyway.
Room MakeRoom(Context& context, const Job& waiting) {
  Census census = Count(context, waiting.record);
  const int64_t least = waiting.record.spec.parallel().min_nodes();
  if (census.usable < least) return Room::kNever;
  std::sort(census.victims.begin(), census.victims.end(), [](const auto& a, const auto& b) {
    const auto key = [](const Job& job) {
      return std::make_tuple(job.record.spec.priority(), -job.record.number);
    };
    return key(*a.first) < key(*b.first);
  });
  std::vector<Job*> chosen;
  int64_t nodes = census.coming;
  for (const auto& [job, brings] : census.victims) {
    if (nodes >= least) break;
    chosen.push_back(job);
    nodes += brings;
  }
  if (nodes < least) return Room::kLater;
  for (Job* job : chosen) Yield(context, *job, waiting.record);
  return Room::kLater;
}

}  // namespace

void Schedule(Context& context) {
  std::set<NodeName> withheld;
  for (Job* job : WaitingJobs(context)) {
    // A fault does not cost a job its place: only preemption takes the nodes it holds.
    const bool queued = job->record.state == JobState::kQueued;
    const Placement placement =
        Place(context.state(), job->record, queued ? withheld : std::set<NodeName>());
    if (!placement.nodes.empty()) {
      StartGeneration(context, *job, placement.nodes, placement.reason);
      continue;
    }
    KeepWaiting(context, *job, placement.reason);
    if (MakeRoom(context, *job) == Room::kNever) continue;
    for (const NodeName& node : AllowedNodes(context.state(), job->record)) withheld.insert(node);
  }
}

}  // namespace espalier
