#include "coordinator/core/preemption.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/directives.h"
#include "coordinator/core/facts.h"

namespace espalier {
namespace {

// What becomes of the nodes of a job that holds some which another waits for.
enum class Hold {
  // It keeps them for as long as it likes.
  kStays,
  // They come free.
  kLeaves,
  // It can be preempted.
  kYields,
  // It can be preempted once it has got further.
  kYieldsLater,
};

// Something of the job runs, and is on its way out.
bool IsLeaving(const JobRecord& record) {
  return record.processes == Processes::kEnding ||
         (record.processes == Processes::kRunning &&
          (record.verdict != Verdict::kOpen || record.directive.run_state == RunState::kStop));
}

// Once its processes are gone, it goes on with the nodes it has.
bool KeepsItsPlace(const JobRecord& record) {
  return record.state == JobState::kRecovering && record.verdict == Verdict::kOpen &&
         record.desired != DesiredState::kPauseHard && !IsExternal(record);
}

// Once its processes are gone, it is in the queue.
bool QueuesAgain(const JobRecord& record) {
  if (record.verdict != Verdict::kOpen || IsExternal(record)) return false;
  return record.state == JobState::kRegrouping ||
         (record.state == JobState::kPausing && record.desired == DesiredState::kRun);
}

bool CanYield(const JobRecord& record) {
  return record.state == JobState::kRunning || record.state == JobState::kPausedSoft ||
         (record.state == JobState::kRecovering && record.processes == Processes::kNone);
}

Hold HoldOn(const JobRecord& holder, const JobRecord& waiting) {
  const bool keeps_place = KeepsItsPlace(holder);
  if (IsLeaving(holder) && !keeps_place) {
    return QueuesAgain(holder) && GoesBefore(holder, waiting) ? Hold::kStays : Hold::kLeaves;
  }
  if (IsExternal(holder) || holder.spec.priority() >= waiting.spec.priority()) return Hold::kStays;
  return CanYield(holder) ? Hold::kYields : Hold::kYieldsLater;
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

struct Victim {
  Job* job = nullptr;
  // Of use to the job that waits.
  int64_t nodes = 0;
};

// The nodes that would do for a job, by how soon it can have them.
struct Census {
  int64_t all = 0;
  // Free, or of jobs that are on their way out.
  int64_t coming = 0;
  // Of jobs that have to yield, but cannot before they run.
  int64_t later = 0;
  std::vector<Victim> victims;
};

Census Count(Context& context, const JobRecord& waiting, const KeptNodes& kept) {
  const ClusterState& state = context.state();
  Census census;
  std::map<JobId, int64_t> held;
  for (const Node& node : state.nodes) {
    const Obstacle obstacle = Usable(state, node, waiting, kept).obstacle;
    if (!WouldDo(obstacle)) continue;
    ++census.all;
    if (obstacle == Obstacle::kNone) ++census.coming;
    const bool theirs = kept.KeptFrom(waiting, node.record.name) != nullptr;
    if (obstacle == Obstacle::kHeld && !theirs) ++held[node.holder];
  }
  for (const auto& [id, nodes] : held) {
    Job& holder = *context.FindJob(id);
    switch (HoldOn(holder.record, waiting)) {
      case Hold::kStays:
        break;
      case Hold::kLeaves:
        census.coming += nodes;
        break;
      case Hold::kYields:
        census.victims.push_back({&holder, nodes});
        break;
      case Hold::kYieldsLater:
        census.later += nodes;
        break;
    }
  }
  return census;
}

// Some of the victims whose nodes, with those that come anyway, are enough; empty when not even all
// of them would do.
std::vector<Victim> Choose(const Census& census, int64_t least) {
  std::vector<Victim> victims = census.victims;
  std::sort(victims.begin(), victims.end(), [](const Victim& a, const Victim& b) {
    const auto key = [](const JobRecord& record) {
      return std::make_tuple(record.spec.priority(), -record.number);
    };
    return key(a.job->record) < key(b.job->record);
  });
  int64_t nodes = census.coming;
  size_t taken = 0;
  while (taken < victims.size() && nodes < least) nodes += victims[taken++].nodes;
  if (nodes < least) return {};
  victims.resize(taken);
  // The last one brought enough to spare some of those before it.
  std::vector<Victim> chosen;
  for (const Victim& victim : victims) {
    if (nodes - victim.nodes >= least) {
      nodes -= victim.nodes;
    } else {
      chosen.push_back(victim);
    }
  }
  return chosen;
}

}  // namespace

Outlook MakeRoom(Context& context, const Job& waiting, const KeptNodes& kept) {
  const Census census = Count(context, waiting.record, kept);
  const int64_t least = waiting.record.spec.parallel().min_nodes();
  if (census.all < least) return Outlook::kHopeless;
  if (census.coming >= least) return Outlook::kSoon;
  const std::vector<Victim> victims = Choose(census, least);
  for (const Victim& victim : victims) Yield(context, *victim.job, waiting.record);
  if (!victims.empty()) return Outlook::kSoon;
  int64_t in_time = census.coming + census.later;
  for (const Victim& victim : census.victims) in_time += victim.nodes;
  return in_time >= least ? Outlook::kSoon : Outlook::kOpen;
}

}  // namespace espalier
