#include "coordinator/core/preemption.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/directives.h"
#include "coordinator/core/names.h"
#include "coordinator/core/node_health.h"
#include "coordinator/core/queue.h"

namespace espalier {
namespace {

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
  if (record.state == JobState::kPausedSoft) record.wish = Wish::kPauseHard;
  context.Enter(job, JobState::kPausing, reason);
  GiveOrder(context, job, {.run_state = RunState::kStop, .checkpoint_before_stop = true});
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
    const NodeHealth* node = FindNode(state, name);
    return node != nullptr && !IsSetAside(*node) && MayUse(waiting, name);
  });
}

Census Count(Context& context, const JobRecord& waiting) {
  Census census;
  for (const NodeHealth& node : context.state().nodes) {
    if (!IsSetAside(node) && MayUse(waiting, node.name)) ++census.usable;
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

}  // namespace

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

}  // namespace espalier
