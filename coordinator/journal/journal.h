// Journal: what espalierd remembers. Every transition is committed here before any effect of it is
// visible (invariant "Journal, then act"); after a crash, Load() gives back exactly the committed
// batches, in whole. Implementations: SqliteJournal (sqlite_journal.h) and MemoryJournal below,
// held to the same conformance suite. Used by sqlite_journal.h, coordinator/loop/loop.h and
// coordinator/service/operator_service.h. Thread rule: Load and Commit belong to the loop's thread;
// Events may be called from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"

namespace espalier {

// The state of one job, serialised by coordinator/journal/record.h. Replaces the row of the same
// id.
struct JobRow {
  JobId id;
  std::string record;
  friend bool operator==(const JobRow&, const JobRow&) = default;
};

// One line of a job's history, never changed once written. Numbers grow by 1 from 1 within a job.
struct EventRow {
  JobId job;
  int64_t number = 0;
  int64_t time_ms = 0;
  // A v1::JobState.
  int32_t state = 0;
  std::string text;
  friend bool operator==(const EventRow&, const EventRow&) = default;
};

// The process that holds a generation (mpirun), so that a restarted espalierd can adopt it.
struct LaunchRow {
  GenerationKey key;
  ProcessIdentity process;
  friend bool operator==(const LaunchRow&, const LaunchRow&) = default;
};

// A value kept under a name for the daemon as a whole (counters, nodes set aside).
struct SettingRow {
  std::string key;
  std::string value;
  friend bool operator==(const SettingRow&, const SettingRow&) = default;
};

// What one commit writes: all of it or nothing. What is removed (forgotten jobs with their history,
// ended launches) goes before other rows are written.
struct JournalBatch {
  std::vector<JobId> forgotten;
  std::vector<JobRow> jobs;
  std::vector<EventRow> events;
  std::vector<GenerationKey> ended_launches;
  std::vector<LaunchRow> launches;
  std::vector<SettingRow> settings;
  bool empty() const {
    return forgotten.empty() && jobs.empty() && events.empty() && ended_launches.empty() &&
           launches.empty() && settings.empty();
  }
};

// Everything but the events, ordered by key.
struct JournalContents {
  std::vector<JobRow> jobs;
  std::vector<LaunchRow> launches;
  std::vector<SettingRow> settings;
};

// Of a job's history, the newest so many are kept.
inline constexpr int64_t kEventsKept = 1000;

struct EventQuery {
  JobId job;
  // Only events with a larger number.
  int64_t after = 0;
  // At most so many, oldest first.
  int64_t limit = 1000;
};

class Journal {
 public:
  virtual ~Journal() = default;

  virtual absl::StatusOr<JournalContents> Load() = 0;
  // Durable on return: it survives SIGKILL and power loss. On error nothing of the batch is kept.
  // RESOURCE_EXHAUSTED: the disk is full.
  // ALREADY_EXISTS: an event number was used before.
  virtual absl::Status Commit(const JournalBatch& batch) = 0;
  virtual absl::StatusOr<std::vector<EventRow>> Events(const EventQuery& query) = 0;
};

// A journal without a disk, for tests. Copies share nothing; to play a restart, open a new loop on
// the same object. Thread-safe.
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
