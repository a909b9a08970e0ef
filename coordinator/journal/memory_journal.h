// MemoryJournal: a Journal without a disk, for tests. Copies share nothing; to play a restart, open
// a new loop on the same object.
// Thread-safe.
#pragma once

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/journal/journal.h"

namespace espalier {

class MemoryJournal : public Journal {
 public:
  absl::StatusOr<JournalContents> Load() override;
  absl::Status Commit(const JournalBatch& batch) override;
  absl::StatusOr<std::vector<EventRow>> Events(const EventQuery& query) override;

 private:
  absl::Mutex mutex_;
  std::map<JobId, std::string> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<JobId, int64_t>, EventRow> events_ ABSL_GUARDED_BY(mutex_);
  std::map<GenerationKey, ProcessIdentity> launches_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> settings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
