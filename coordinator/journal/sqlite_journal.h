// SqliteJournal: the Journal of espalierd, one SQLite file in WAL mode with synchronous=FULL, so
// that a commit is on the disk when it returns. Readable beside a running espalierd with the
// sqlite3 shell. Beside it lies a file that only takes up space: when the disk is full, it is given
// up for the next transitions, and made again later. Used by coordinator/service/daemon.cc.
// Thread-safe (one lock; reads and commits take turns).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "coordinator/journal/disk_reserve.h"
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
    Statement begin, commit, rollback, put_job, put_event, trim_events, put_launch, end_launch,
        put_setting, forget_job, forget_events, get_events;
  };
  SqliteJournal(Database database, Statements statements, std::string reserve)
      : database_(std::move(database)),
        statements_(std::move(statements)),
        reserve_(std::move(reserve)) {}
  static absl::StatusOr<Statements> PrepareAll(Database& database);
  absl::Status CommitOnce(const JournalBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Forget(const JobId& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteRows(const JournalBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  Database database_ ABSL_GUARDED_BY(mutex_);
  Statements statements_ ABSL_GUARDED_BY(mutex_);
  DiskReserve reserve_ ABSL_GUARDED_BY(mutex_);
};

// The tables and how a file of an older version becomes one of this version.

// Migration i (from 0) turns schema version i into i + 1. Never changed once released: a new
// version is a new entry.
absl::Span<const char* const> JournalMigrations();

// Brings the file to the newest version in one transaction; a new file starts at version 0.
// DATA_LOSS: damaged. FAILED_PRECONDITION: another program's file, or a newer espalierd's. The
// file is unchanged on error. `path` is for the messages.
absl::Status MigrateJournal(Database& database, const std::string& path,
                            absl::Span<const char* const> migrations);

}  // namespace espalier
