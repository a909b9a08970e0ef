#include "tests/sim/sim_disk.h"

#include "absl/strings/match.h"
#include "common/base/status_macros.h"
#include "coordinator/journal/record.h"
#include "tests/sim/describe.h"

namespace espalier::sim {
namespace {

// The journal effects that a batch was made of, out of its bytes.
absl::StatusOr<std::vector<Effect>> EffectsOf(const JournalBatch& batch) {
  std::vector<Effect> effects;
  for (const JobId& job : batch.forgotten) effects.push_back(ForgetJob{job});
  for (const JobRow& row : batch.jobs) {
    ASSIGN_OR_RETURN(JobRecord record, DecodeJob(row.record));
    effects.push_back(PersistJob{std::move(record)});
  }
  for (const SettingRow& row : batch.settings) {
    if (!absl::StartsWith(row.key, "node/")) continue;
    ASSIGN_OR_RETURN(NodeRecord record, DecodeNode(row.value));
    effects.push_back(PersistNode{std::move(record)});
  }
  for (const EventRow& row : batch.events) {
    effects.push_back(AppendEvent{.job = row.job,
                                  .number = row.number,
                                  .time = absl::FromUnixMillis(row.time_ms),
                                  .state = static_cast<JobState>(row.state),
                                  .text = row.text});
  }
  return effects;
}

}  // namespace

absl::Status SimDisk::Commit(const JournalBatch& batch) {
  if (!hooks_.write()) return absl::DataLossError("espalierd is dead");
  if (scene_.timeline.now() < full_until_) return absl::ResourceExhaustedError("disk full");
  ASSIGN_OR_RETURN(const std::vector<Effect> effects, EffectsOf(batch));
  hooks_.writing(effects);
  if (absl::Status status = rows_.Commit(batch); !status.ok()) {
    scene_.Break(std::string(status.message()));
    return status;
  }
  Note(batch, effects);
  hooks_.written();
  return absl::OkStatus();
}

void SimDisk::Note(const JournalBatch& batch, const std::vector<Effect>& effects) {
  for (const Effect& effect : effects) {
    scene_.Trace(Describe(effect));
    if (const auto* forget = std::get_if<ForgetJob>(&effect)) {
      contents_.jobs.erase(forget->job);
      contents_.history.erase(forget->job);
    } else if (const auto* job = std::get_if<PersistJob>(&effect)) {
      contents_.jobs[job->record.id] = job->record;
    } else if (const auto* node = std::get_if<PersistNode>(&effect)) {
      contents_.nodes[node->record.name] = node->record;
    } else if (const auto* row = std::get_if<AppendEvent>(&effect)) {
      contents_.history[row->job].push_back(*row);
    }
  }
  for (const GenerationKey& key : batch.ended_launches) contents_.launches.erase(key);
  for (const LaunchRow& row : batch.launches) contents_.launches.insert(row.key);
}

}  // namespace espalier::sim
