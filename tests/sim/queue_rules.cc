#include "tests/sim/queue_rules.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/advance.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/holders.h"
#include "coordinator/core/usable.h"

namespace espalier::sim {
namespace {

bool Waits(const JobRecord& record) {
  return record.state == JobState::kQueued && !IsExternal(record);
}

bool Fits(const ClusterState& state, const Node& node, const JobRecord& record) {
  return MayUse(record, node.record.name) && NodeObstacle(state, node) == Obstacle::kNone;
}

bool IsLeaving(const JobRecord& record) {
  return record.processes == Processes::kEnding || record.verdict != Verdict::kOpen ||
         (record.processes == Processes::kRunning && record.directive.run_state == RunState::kStop);
}

// The nodes of which `which` is true are enough to start the job, and one holds its state.
template <typename Which>
bool WouldDo(const ClusterState& state, const JobRecord& record, const Which& which) {
  int64_t nodes = 0;
  const Holders holders(state, record);
  bool held = !holders.needed();
  for (const Node& node : state.nodes) {
    if (!which(node)) continue;
    ++nodes;
    held = held || holders.Has(node.record.name);
  }
  return held && nodes >= record.spec.parallel().min_nodes();
}

// As many of the nodes that fit as come free without anybody of at least this priority having to
// end: idle, or of a job that leaves, or that can be preempted now or later.
bool WithinReach(const ClusterState& state, const JobRecord& record) {
  return WouldDo(state, record, [&](const Node& node) {
    if (!Fits(state, node, record)) return false;
    if (node.holder.empty()) return true;
    const JobRecord& holder = state.jobs.at(node.holder).record;
    return IsLeaving(holder) ||
           (!IsExternal(holder) && holder.spec.priority() < record.spec.priority());
  });
}

// The job ahead may have the idle node kept from the one behind.
bool MayKeep(const ClusterState& state, const JobRecord& ahead, const JobRecord& behind) {
  if (WithinReach(state, ahead)) return true;
  return ahead.spec.priority() == behind.spec.priority() &&
         WouldDo(state, ahead, [&](const Node& node) { return Fits(state, node, ahead); });
}

bool CouldStart(const ClusterState& state, const JobRecord& record) {
  return WouldDo(state, record, [&](const Node& node) {
    if (!node.holder.empty() || !Fits(state, node, record)) return false;
    return std::none_of(state.jobs.begin(), state.jobs.end(), [&](const auto& entry) {
      const JobRecord& ahead = entry.second.record;
      return Waits(ahead) && GoesBefore(ahead, record) && MayUse(ahead, node.record.name) &&
             MayKeep(state, ahead, record);
    });
  });
}

// Those of `which` have left, as they were asked to; the nodes of whatever is started then.
template <typename Which>
std::set<NodeName> StartedWithout(const Which& which, ClusterState state) {
  std::set<NodeName> started;
  std::vector<GenerationKey> leaving;
  for (auto& [id, job] : state.jobs) {
    if (job.record.processes == Processes::kNone || !which(job.record)) continue;
    leaving.push_back({id, job.record.generation});
    job.world.exited_at.reset();
    for (TrackedRank& rank : job.world.ranks) rank.outcome = Outcome::kStopped;
  }
  for (const GenerationKey& key : leaving) {
    const absl::Time now = state.now;
    for (const Effect& effect : Advance(state, ProcessesExited{key, "as asked"}, now)) {
      const auto* launch = std::get_if<Launch>(&effect);
      if (launch != nullptr) started.insert(launch->nodes.begin(), launch->nodes.end());
    }
  }
  return started;
}

}  // namespace

std::string FindIdleBesideAJob(const ClusterState& state) {
  if (state.agents_due != absl::InfinitePast()) return "";
  for (const auto& [id, job] : state.jobs) {
    if (Waits(job.record) && CouldStart(state, job.record)) {
      return absl::StrCat("job ", id.text(), " could use nodes that are idle, but ",
                          job.record.reason);
    }
  }
  return "";
}

std::string FindVainPreemption(const ClusterState& state, const std::vector<Effect>& effects) {
  std::set<NodeName> used;
  std::vector<const AppendEvent*> preempted;
  for (const Effect& effect : effects) {
    const auto* job = std::get_if<PersistJob>(&effect);
    if (job != nullptr && job->record.state == JobState::kLaunching) {
      used.insert(job->record.nodes.begin(), job->record.nodes.end());
    }
    const auto* row = std::get_if<AppendEvent>(&effect);
    if (row != nullptr && absl::StartsWith(row->text, "preempted by ")) preempted.push_back(row);
  }
  if (preempted.empty()) return "";
  used.merge(StartedWithout(IsLeaving, state));
  // What leaves besides may take its time, and start again on more nodes than it had.
  used.merge(StartedWithout(
      [&](const JobRecord& record) {
        return std::any_of(preempted.begin(), preempted.end(),
                           [&](const AppendEvent* row) { return row->job == record.id; });
      },
      state));
  for (const AppendEvent* row : preempted) {
    const std::vector<NodeName>& nodes = state.jobs.at(row->job).record.nodes;
    if (std::none_of(nodes.begin(), nodes.end(),
                     [&](const NodeName& node) { return used.count(node) != 0; })) {
      return absl::StrCat("job ", row->job.text(), " was ", row->text,
                          ", but nobody would start on its nodes");
    }
  }
  return "";
}

}  // namespace espalier::sim
