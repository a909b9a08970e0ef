#include "coordinator/journal/sqlite_journal.h"

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "coordinator/journal/journal_schema.h"

namespace espalier {
namespace {

absl::Status Named(absl::string_view path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("cannot use the journal ", path, ": ", status.message()));
}

absl::Status ForEachRow(Database& database, absl::string_view sql,
                        const std::function<void(Statement&)>& take) {
  ASSIGN_OR_RETURN(Statement statement, database.Prepare(sql));
  for (;;) {
    ASSIGN_OR_RETURN(const bool row, statement.Step());
    if (!row) return absl::OkStatus();
    take(statement);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteJournal>> SqliteJournal::Open(const std::string& path) {
  absl::StatusOr<Database> database = Database::Open(path);
  if (!database.ok()) return Named(path, database.status());
  RETURN_IF_ERROR(MigrateJournal(*database, path, JournalMigrations()));
  // fullfsync makes macOS flush the drive's cache too; elsewhere it means nothing.
  RETURN_IF_ERROR(Named(path, database->Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
                                                "PRAGMA fullfsync=1;"
                                                "PRAGMA checkpoint_fullfsync=1")));
  absl::StatusOr<Statements> statements = PrepareAll(*database);
  if (!statements.ok()) return Named(path, statements.status());
  return std::unique_ptr<SqliteJournal>(
      new SqliteJournal(*std::move(database), *std::move(statements)));
}

absl::StatusOr<SqliteJournal::Statements> SqliteJournal::PrepareAll(Database& database) {
  ASSIGN_OR_RETURN(Statement begin, database.Prepare("BEGIN IMMEDIATE"));
  ASSIGN_OR_RETURN(Statement commit, database.Prepare("COMMIT"));
  ASSIGN_OR_RETURN(Statement rollback, database.Prepare("ROLLBACK"));
  ASSIGN_OR_RETURN(Statement put_job, database.Prepare("REPLACE INTO jobs VALUES(?,?)"));
  ASSIGN_OR_RETURN(Statement put_event, database.Prepare("INSERT INTO events VALUES(?,?,?,?,?)"));
  ASSIGN_OR_RETURN(Statement put_launch, database.Prepare("REPLACE INTO launches VALUES(?,?,?,?)"));
  ASSIGN_OR_RETURN(Statement end_launch,
                   database.Prepare("DELETE FROM launches WHERE job=? AND generation=?"));
  ASSIGN_OR_RETURN(Statement put_setting, database.Prepare("REPLACE INTO settings VALUES(?,?)"));
  ASSIGN_OR_RETURN(Statement get_events,
                   database.Prepare("SELECT number,time_ms,state,text FROM events "
                                    "WHERE job=? AND number>? ORDER BY number LIMIT ?"));
  return Statements{std::move(begin),      std::move(commit),      std::move(rollback),
                    std::move(put_job),    std::move(put_event),   std::move(put_launch),
                    std::move(end_launch), std::move(put_setting), std::move(get_events)};
}

absl::StatusOr<JournalContents> SqliteJournal::Load() {
  absl::MutexLock lock(&mutex_);
  JournalContents contents;
  RETURN_IF_ERROR(
      ForEachRow(database_, "SELECT id,record FROM jobs ORDER BY id", [&](Statement& row) {
        contents.jobs.push_back({JobId(row.Text(0)), row.Blob(1)});
      }));
  RETURN_IF_ERROR(
      ForEachRow(database_, "SELECT job,generation,pid,start FROM launches ORDER BY job,generation",
                 [&](Statement& row) {
                   contents.launches.push_back(
                       {{JobId(row.Text(0)), Generation(row.Int(1))}, {row.Int(2), row.Text(3)}});
                 }));
  RETURN_IF_ERROR(
      ForEachRow(database_, "SELECT key,value FROM settings ORDER BY key", [&](Statement& row) {
        contents.settings.push_back({row.Text(0), row.Blob(1)});
      }));
  return contents;
}

absl::Status SqliteJournal::Commit(const JournalBatch& batch) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(statements_.begin.Run());
  absl::Status status = WriteRows(batch);
  if (status.ok()) status = statements_.commit.Run();
  if (!status.ok()) statements_.rollback.Run().IgnoreError();
  return status;
}

absl::Status SqliteJournal::WriteRows(const JournalBatch& batch) {
  for (const JobRow& row : batch.jobs) {
    statements_.put_job.BindText(1, row.id.text());
    statements_.put_job.BindBlob(2, row.record);
    RETURN_IF_ERROR(statements_.put_job.Run());
  }
  for (const EventRow& row : batch.events) {
    statements_.put_event.BindText(1, row.job.text());
    statements_.put_event.BindInt(2, row.number);
    statements_.put_event.BindInt(3, row.time_ms);
    statements_.put_event.BindInt(4, row.state);
    statements_.put_event.BindText(5, row.text);
    RETURN_IF_ERROR(statements_.put_event.Run());
  }
  for (const GenerationKey& key : batch.ended_launches) {
    statements_.end_launch.BindText(1, key.job.text());
    statements_.end_launch.BindInt(2, key.generation.value());
    RETURN_IF_ERROR(statements_.end_launch.Run());
  }
  for (const LaunchRow& row : batch.launches) {
    statements_.put_launch.BindText(1, row.key.job.text());
    statements_.put_launch.BindInt(2, row.key.generation.value());
    statements_.put_launch.BindInt(3, row.process.pid);
    statements_.put_launch.BindText(4, row.process.start);
    RETURN_IF_ERROR(statements_.put_launch.Run());
  }
  for (const SettingRow& row : batch.settings) {
    statements_.put_setting.BindText(1, row.key);
    statements_.put_setting.BindBlob(2, row.value);
    RETURN_IF_ERROR(statements_.put_setting.Run());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EventRow>> SqliteJournal::Events(const EventQuery& query) {
  absl::MutexLock lock(&mutex_);
  Statement& statement = statements_.get_events;
  statement.BindText(1, query.job.text());
  statement.BindInt(2, query.after);
  statement.BindInt(3, query.limit);
  std::vector<EventRow> rows;
  absl::Status status;
  for (;;) {
    absl::StatusOr<bool> row = statement.Step();
    if (!row.ok() || !*row) {
      status = row.status();
      break;
    }
    rows.push_back({query.job, statement.Int(0), statement.Int(1),
                    static_cast<int32_t>(statement.Int(2)), statement.Text(3)});
  }
  statement.Reset();
  if (!status.ok()) return status;
  return rows;
}

}  // namespace espalier
