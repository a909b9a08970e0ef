#include "tests/sim/world_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/liveness.h"

namespace espalier::sim {
namespace {

// Messages may be late, and come twice.
constexpr absl::Duration kLate = absl::Milliseconds(1500);

// A wait of the core's that long, by its clock, which may go slower by a tenth and a hundredth; and
// of the time between two looks not all counts (LongestAttention).
absl::Duration Longest(absl::Duration wait, const JobRecord& record, absl::Duration tick) {
  const double counted = std::min(1.0, absl::FDivDuration(LongestAttention(record), tick));
  return wait / counted * 1.15 + tick + kLate;
}

// Nothing is known yet of why it should end.
bool IsWanted(const Job& job) {
  const espalier::World& world = job.world;
  return job.record.processes == Processes::kRunning && job.record.verdict == Verdict::kOpen &&
         !world.exited_at && !world.failed_at && !world.finished_at;
}

}  // namespace

std::string FindUnnoticed(const ClusterState& state,
                          const std::vector<std::unique_ptr<World>>& worlds, const Watch& watch) {
  for (const auto& world : worlds) {
    const auto found = state.jobs.find(world->job());
    if (found == state.jobs.end() || found->second.record.generation != world->generation()) {
      continue;
    }
    const Job& job = found->second;
    const JobRecord& record = job.record;
    if (!IsWanted(job)) continue;
    const bool starts = record.state == JobState::kLaunching;
    absl::Duration wait = FailureTimeout(record);  // of the launch: since its last progress
    if (starts) wait += absl::Seconds(record.spec.launch().timeout_seconds());
    const absl::Time since =
        starts ? watch.begun.at({record.id, record.generation}) : world->SilentSince();
    const absl::Time latest =
        std::max(since + Longest(wait, record, watch.tick),
                 watch.listening_since + Longest(wait + kReattachWait, record, watch.tick));
    if (watch.now <= latest) continue;
    return absl::StrCat(record.id.text(), " is ", JobStateName(record.state), ", but generation ",
                        record.generation.value(),
                        starts ? " has been starting" : " has a rank silent", " for ",
                        absl::FormatDuration(watch.now - since));
  }
  return "";
}

std::string FindLostStep(const World& world, const SimJournal& journal, const Scene& scene) {
  const auto found = journal.jobs.find(world.job());
  if (found == journal.jobs.end()) return "";
  const JobRecord& record = found->second;
  Step least(0);
  if (record.checkpoint && scene.damaged.count(record.id) == 0) least = record.checkpoint->step;
  const auto disks = scene.disks.find(record.id);
  for (const HolderRecord& holder : record.holders) {
    if (disks == scene.disks.end()) break;
    const auto disk = disks->second.find(holder.node);
    if (disk != disks->second.end()) least = std::max(least, std::min(holder.step, disk->second));
  }
  if (world.step() >= least) return "";
  return absl::StrCat(record.id.text(), " begins generation ", world.generation().value(),
                      " from step ", world.step().value(), ", but step ", least.value(),
                      " was published and is held");
}

}  // namespace espalier::sim
