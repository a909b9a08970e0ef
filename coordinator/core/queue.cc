// The queue: which jobs get which nodes. By priority, then age; a job that waits keeps the nodes it
// could use from those behind it, unless they would give them back when it needs them; a higher
// priority preempts lower ones, which stop with a checkpoint and queue again.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/handlers.h"
#include "coordinator/core/preemption.h"
#include "coordinator/core/usable.h"

namespace espalier {
namespace {

// So many nodes are named in a reason; the rest are counted.
constexpr size_t kNodesNamed = 8;

int32_t MaxNodes(const JobRecord& record) {
  const v1::ParallelSpec& parallel = record.spec.parallel();
  return parallel.has_max_nodes() ? parallel.max_nodes() : parallel.min_nodes();
}

std::vector<const Node*> AllowedNodes(const ClusterState& state, const JobRecord& record) {
  std::vector<const Node*> nodes;
  for (const std::string& name : record.spec.parallel().nodes()) {
    if (const Node* node = state.nodes.Find(NodeName(name))) nodes.push_back(node);
  }
  if (!record.spec.parallel().nodes().empty()) return nodes;
  for (const Node& node : state.nodes) nodes.push_back(&node);
  return nodes;
}

std::string WaitsFor(const JobRecord& record) {
  const int32_t least = record.spec.parallel().min_nodes();
  return absl::StrCat("waits for ", least, least == 1 ? " node" : " nodes");
}

std::string SomeOf(std::vector<NodeName> nodes) {
  if (nodes.size() <= kNodesNamed) return NodeList(nodes);
  const size_t more = nodes.size() - kNodesNamed;
  nodes.resize(kNodesNamed);
  return absl::StrCat(NodeList(nodes), " and ", more, " more");
}

// "waits for 2 nodes; free: studio; macbook is held by job nano-1".
std::string WhyItWaits(const ClusterState& state, const JobRecord& record, const KeptNodes& kept) {
  std::vector<NodeName> free;
  std::string others;
  size_t named = 0;
  size_t unnamed = 0;
  for (const Node* node : AllowedNodes(state, record)) {
    const Usability usability = Usable(state, *node, record, kept);
    if (usability.obstacle == Obstacle::kNone) {
      free.push_back(node->record.name);
    } else if (named == kNodesNamed) {
      ++unnamed;
    } else {
      ++named;
      absl::StrAppend(&others, "; ", node->record.name.text(), " ",
                      Describe(state, *node, usability));
    }
  }
  std::string text = absl::StrCat(WaitsFor(record), "; free: ", SomeOf(std::move(free)), others);
  if (unnamed > 0) absl::StrAppend(&text, "; ", unnamed, " more are not free either");
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
  std::sort(waiting.begin(), waiting.end(),
            [](const Job* a, const Job* b) { return GoesBefore(a->record, b->record); });
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

// Up to max_nodes of the nodes that it can have, those of the last generation first because its
// checkpoints are there, in the order of parallel.nodes (of the cluster file when it is empty);
// none when they are too few.
std::vector<NodeName> Place(const ClusterState& state, const JobRecord& record,
                            const KeptNodes& kept) {
  std::vector<NodeName> free;
  for (const Node* node : AllowedNodes(state, record)) {
    if (Usable(state, *node, record, kept).obstacle == Obstacle::kNone) {
      free.push_back(node->record.name);
    }
  }
  if (free.size() < static_cast<size_t>(record.spec.parallel().min_nodes())) return {};
  std::vector<NodeName> chosen = free;
  const auto used_before = [&](const NodeName& node) {
    return std::find(record.nodes.begin(), record.nodes.end(), node) != record.nodes.end();
  };
  std::stable_partition(chosen.begin(), chosen.end(), used_before);
  chosen.resize(std::min(chosen.size(), static_cast<size_t>(MaxNodes(record))));
  std::vector<NodeName> placed;
  for (const NodeName& node : free) {
    if (std::find(chosen.begin(), chosen.end(), node) != chosen.end()) placed.push_back(node);
  }
  return placed;
}

// True: the job has started.
bool TryStart(Context& context, Job& job, const KeptNodes& kept) {
  const JobRecord& record = job.record;
  const std::vector<NodeName> nodes = Place(context.state(), record, kept);
  if (nodes.empty()) return false;
  StartGeneration(context, job, nodes,
                  absl::StrCat("starts generation ", record.generation.next().value(), " on ",
                               NodeList(nodes)));
  return true;
}

// Keeps for the job what it could use, as far as that helps it.
void KeepFor(Context& context, const Job& job, KeptNodes& kept) {
  switch (MakeRoom(context, job, kept)) {
    case Outlook::kHopeless:
      return;
    case Outlook::kOpen:
      kept.Keep(job.record, KeptNodes::From::kSamePriority);
      return;
    case Outlook::kSoon:
      kept.Keep(job.record, KeptNodes::From::kEverybody);
      return;
  }
}

// After a restart, agents have a moment to come back before anybody decides without them.
bool AgentsAreDue(ClusterState& state) {
  const auto missing = [](const Node& node) {
    return node.record.has_agent && node.agent.attached_at == absl::UnixEpoch();
  };
  const bool due = state.now < state.agents_due &&
                   std::any_of(state.nodes.begin(), state.nodes.end(), missing);
  if (!due) state.agents_due = absl::InfinitePast();
  return due;
}

}  // namespace

void WatchQueue(Context& context) {
  const ClusterState& state = context.state();
  const bool waits_for_agents = state.agents_due != absl::InfinitePast();
  if (waits_for_agents && context.now() >= state.agents_due) context.QueueChanged();
  for (const auto& [id, job] : state.jobs) {
    const bool recovering = job.record.state == JobState::kRecovering;
    if (recovering && Waits(job, context.now())) context.QueueChanged();
  }
}

void Schedule(Context& context) {
  if (AgentsAreDue(context.state())) return;
  KeptNodes kept;
  for (Job* job : WaitingJobs(context)) {
    const JobId* ahead =
        job->record.state == JobState::kQueued ? kept.AllKeptFrom(job->record) : nullptr;
    if (ahead != nullptr) {
      KeepWaiting(context, *job,
                  absl::StrCat(WaitsFor(job->record), "; all are kept for job ", ahead->text(),
                               ", ahead in the queue"));
    } else if (!TryStart(context, *job, kept)) {
      KeepWaiting(context, *job, WhyItWaits(context.state(), job->record, kept));
      KeepFor(context, *job, kept);
    }
  }
}

}  // namespace espalier
