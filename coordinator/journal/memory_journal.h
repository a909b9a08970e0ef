// MemoryJournal: a Journal without a disk, for tests. Copies share nothing; to play a restart, open
// a new loop on the same object.
// Thread-safe.
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "coordinator/journal/journal.h"

namespace espalier {

class MemoryJournal : public Journal {
 public:
  absl::StatusOr<JournalContents> Load() override;
  absl::Status Commit(const JournalBatch& batch) override;
  absl::StatusOr<std::vector<EventRow>> Events(const EventQuery& query) override;

 private:
  std::mutex mutex_;
  std::map<JobId, std::string> jobs_;
  std::map<std::pair<JobId, int64_t>, EventRow> events_;
  std::map<GenerationKey, ProcessIdentity> launches_;
  std::map<std::string, std::string> settings_;
};

}  // namespace espalier
