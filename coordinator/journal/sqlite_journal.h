// SqliteJournal: the Journal of espalierd, one SQLite file in WAL mode with synchronous=FULL, so
// that a commit is on the disk when it returns. Readable beside a running espalierd with the
// sqlite3 shell.
// Thread-safe (one lock; reads and commits take turns).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/journal/journal.h"
#include "coordinator/journal/sqlite.h"

namespace espalier {

class SqliteJournal : public Journal {
 public:
  // Opens or creates `path`. DATA_LOSS: the file is damaged. FAILED_PRECONDITION: it belongs to
  // another program or a newer espalierd. PERMISSION_DENIED: it cannot be opened for writing.
  static absl::StatusOr<std::unique_ptr<SqliteJournal>> Open(const std::string& path);

  absl::StatusOr<JournalContents> Load() override;
  absl::Status Commit(const JournalBatch& batch) override;
  absl::StatusOr<std::vector<EventRow>> Events(const EventQuery& query) override;

 private:
  struct Statements {
    Statement begin, commit, rollback, put_job, put_event, put_launch, end_launch, put_setting,
        get_events;
  };
  SqliteJournal(Database database, Statements statements)
      : database_(std::move(database)), statements_(std::move(statements)) {}
  static absl::StatusOr<Statements> PrepareAll(Database& database);
  absl::Status WriteRows(const JournalBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  Database database_ ABSL_GUARDED_BY(mutex_);
  Statements statements_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
