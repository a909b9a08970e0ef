#include "coordinator/core/queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/names.h"
#include "coordinator/core/node_health.h"
#include "coordinator/core/preemption.h"

namespace espalier {
namespace {

int32_t MaxNodes(const JobRecord& record) {
  const v1::ParallelSpec& parallel = record.spec.parallel();
  return parallel.has_max_nodes() ? parallel.max_nodes() : parallel.min_nodes();
}

std::vector<NodeName> AllowedNodes(const ClusterState& state, const JobRecord& record) {
  std::vector<NodeName> nodes;
  for (const std::string& name : record.spec.parallel().nodes()) {
    if (FindNode(state, NodeName(name)) != nullptr) nodes.push_back(NodeName(name));
  }
  if (!record.spec.parallel().nodes().empty()) return nodes;
  for (const NodeHealth& node : state.nodes) nodes.push_back(node.name);
  return nodes;
}

const JobRecord* HolderOf(const ClusterState& state, const NodeName& node) {
  for (const auto& [id, job] : state.jobs) {
    const auto& nodes = job.record.nodes;
    if (HoldsNodes(job.record) && std::find(nodes.begin(), nodes.end(), node) != nodes.end()) {
      return &job.record;
    }
  }
  return nullptr;
}

// "waits for 2 nodes; free: studio; macbook is held by job nano-1".
std::string WhyItWaits(const ClusterState& state, const JobRecord& record,
                       const std::vector<NodeName>& free, const std::set<NodeName>& withheld) {
  const int32_t least = record.spec.parallel().min_nodes();
  std::string text = absl::StrCat("waits for ", least, least == 1 ? " node" : " nodes",
                                  "; free: ", NodeList(free));
  for (const NodeName& name : AllowedNodes(state, record)) {
    const NodeHealth* node = FindNode(state, name);
    const JobRecord* holder = HolderOf(state, name);
    if (IsSetAside(*node)) {
      absl::StrAppend(&text, "; ", name.text(), " is set aside (", node->set_aside_reason, ")");
    } else if (holder != nullptr && holder->id != record.id) {
      absl::StrAppend(&text, "; ", name.text(), " is held by job ", holder->id.text());
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

}  // namespace

bool MayUse(const JobRecord& record, const NodeName& node) {
  const auto& allowed = record.spec.parallel().nodes();
  return allowed.empty() || std::find(allowed.begin(), allowed.end(), node.text()) != allowed.end();
}

Placement Place(const ClusterState& state, const JobRecord& record,
                const std::set<NodeName>& withheld) {
  std::vector<NodeName> free;
  for (const NodeName& name : AllowedNodes(state, record)) {
    const JobRecord* holder = HolderOf(state, name);
    const bool taken = holder != nullptr && holder->id != record.id;
    if (!taken && !IsSetAside(*FindNode(state, name)) && withheld.count(name) == 0) {
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
