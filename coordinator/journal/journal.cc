#include "coordinator/journal/journal.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace espalier {

absl::StatusOr<JournalContents> MemoryJournal::Load() {
  absl::MutexLock lock(&mutex_);
  JournalContents contents;
  for (const auto& [id, record] : jobs_) contents.jobs.push_back({id, record});
  for (const auto& [key, process] : launches_) contents.launches.push_back({key, process});
  for (const auto& [key, value] : settings_) contents.settings.push_back({key, value});
  return contents;
}

absl::Status MemoryJournal::Commit(const JournalBatch& batch) {
  absl::MutexLock lock(&mutex_);
  auto events = events_;
  for (const JobId& job : batch.forgotten) {
    events.erase(events.lower_bound({job, 0}),
                 events.upper_bound({job, std::numeric_limits<int64_t>::max()}));
  }
  for (const EventRow& row : batch.events) {
    if (!events.emplace(std::pair(row.job, row.number), row).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("event ", row.number, " of job ", row.job.text(), " is in the journal"));
    }
  }
  for (const EventRow& row : batch.events) {
    events.erase(events.lower_bound({row.job, 0}),
                 events.upper_bound({row.job, row.number - kEventsKept}));
  }
  events_ = std::move(events);
  for (const JobId& job : batch.forgotten) jobs_.erase(job);
  for (const JobRow& row : batch.jobs) jobs_[row.id] = row.record;
  for (const GenerationKey& key : batch.ended_launches) launches_.erase(key);
  for (const LaunchRow& row : batch.launches) launches_[row.key] = row.process;
  for (const SettingRow& row : batch.settings) settings_[row.key] = row.value;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EventRow>> MemoryJournal::Events(const EventQuery& query) {
  absl::MutexLock lock(&mutex_);
  std::vector<EventRow> rows;
  for (auto it = events_.upper_bound({query.job, query.after});
       it != events_.end() && it->first.first == query.job; ++it) {
    if (static_cast<int64_t>(rows.size()) >= query.limit) break;
    rows.push_back(it->second);
  }
  return rows;
}

}  // namespace espalier
