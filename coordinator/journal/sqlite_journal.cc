#include "coordinator/journal/sqlite_journal.h"

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

// "ESPJ" in the header of the SQLite file tells our journal from any other database.
constexpr int64_t kApplicationId = 0x4553504a;

constexpr const char* kMigrations[] = {
    R"sql(
      CREATE TABLE jobs(id TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
      CREATE TABLE events(job TEXT NOT NULL, number INTEGER NOT NULL, time_ms INTEGER NOT NULL,
                          state INTEGER NOT NULL, text TEXT NOT NULL,
                          PRIMARY KEY(job, number)) WITHOUT ROWID;
      CREATE TABLE launches(job TEXT NOT NULL, generation INTEGER NOT NULL, pid INTEGER NOT NULL,
                            start TEXT NOT NULL, PRIMARY KEY(job, generation)) WITHOUT ROWID;
      CREATE TABLE settings(key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    )sql",
};

constexpr char kAdvice[] = "; move it aside to start with an empty journal, or restore a copy";

absl::Status CheckWhole(Database& database, const std::string& path) {
  absl::StatusOr<std::string> verdict = database.Text("PRAGMA quick_check(1)");
  if (!verdict.ok()) {
    return absl::DataLossError(absl::StrCat(
        "the journal ", path, " cannot be read: ", verdict.status().message(), kAdvice));
  }
  if (*verdict == "ok") return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the journal ", path, " is damaged: ", *verdict, kAdvice));
}

absl::Status CheckOurs(Database& database, const std::string& path) {
  ASSIGN_OR_RETURN(const int64_t tables, database.Number("SELECT count(*) FROM sqlite_master"));
  ASSIGN_OR_RETURN(const int64_t id, database.Number("PRAGMA application_id"));
  if (id == kApplicationId || (tables == 0 && id == 0)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is a database of another program (application id ", id, ", ", tables,
                   " tables), not a journal of espalierd", kAdvice));
}

absl::Status RunMigrations(Database& database, absl::Span<const char* const> pending,
                           int64_t newest) {
  RETURN_IF_ERROR(database.Execute("BEGIN IMMEDIATE"));
  const auto migrate = [&]() -> absl::Status {
    RETURN_IF_ERROR(
        database.Execute("CREATE TABLE IF NOT EXISTS schema_version(version INTEGER NOT NULL)"));
    for (const char* sql : pending) RETURN_IF_ERROR(database.Execute(sql));
    RETURN_IF_ERROR(database.Execute("DELETE FROM schema_version"));
    RETURN_IF_ERROR(
        database.Execute(absl::StrCat("INSERT INTO schema_version VALUES(", newest, ")")));
    RETURN_IF_ERROR(database.Execute(absl::StrCat("PRAGMA application_id=", kApplicationId)));
    return database.Execute("COMMIT");
  };
  absl::Status status = migrate();
  if (!status.ok()) database.Execute("ROLLBACK").IgnoreError();
  return status;
}

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
  std::unique_ptr<SqliteJournal> journal(
      new SqliteJournal(*std::move(database), *std::move(statements), path + ".reserve"));
  absl::MutexLock lock(&journal->mutex_);
  journal->reserve_.Keep();
  return journal;
}

absl::StatusOr<SqliteJournal::Statements> SqliteJournal::PrepareAll(Database& database) {
  ASSIGN_OR_RETURN(Statement begin, database.Prepare("BEGIN IMMEDIATE"));
  ASSIGN_OR_RETURN(Statement commit, database.Prepare("COMMIT"));
  ASSIGN_OR_RETURN(Statement rollback, database.Prepare("ROLLBACK"));
  ASSIGN_OR_RETURN(Statement put_job, database.Prepare("REPLACE INTO jobs VALUES(?,?)"));
  ASSIGN_OR_RETURN(Statement put_event, database.Prepare("INSERT INTO events VALUES(?,?,?,?,?)"));
  ASSIGN_OR_RETURN(Statement trim_events,
                   database.Prepare("DELETE FROM events WHERE job=? AND number<=?"));
  ASSIGN_OR_RETURN(Statement put_launch, database.Prepare("REPLACE INTO launches VALUES(?,?,?,?)"));
  ASSIGN_OR_RETURN(Statement end_launch,
                   database.Prepare("DELETE FROM launches WHERE job=? AND generation=?"));
  ASSIGN_OR_RETURN(Statement put_setting, database.Prepare("REPLACE INTO settings VALUES(?,?)"));
  ASSIGN_OR_RETURN(Statement forget_job, database.Prepare("DELETE FROM jobs WHERE id=?"));
  ASSIGN_OR_RETURN(Statement forget_events, database.Prepare("DELETE FROM events WHERE job=?"));
  ASSIGN_OR_RETURN(Statement get_events,
                   database.Prepare("SELECT number,time_ms,state,text FROM events "
                                    "WHERE job=? AND number>? ORDER BY number LIMIT ?"));
  return Statements{std::move(begin),      std::move(commit),        std::move(rollback),
                    std::move(put_job),    std::move(put_event),     std::move(trim_events),
                    std::move(put_launch), std::move(end_launch),    std::move(put_setting),
                    std::move(forget_job), std::move(forget_events), std::move(get_events)};
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
  absl::Status status = CommitOnce(batch);
  if (absl::IsResourceExhausted(status) && reserve_.Release()) status = CommitOnce(batch);
  if (status.ok()) reserve_.Keep();
  return status;
}

absl::Status SqliteJournal::CommitOnce(const JournalBatch& batch) {
  RETURN_IF_ERROR(statements_.begin.Run());
  absl::Status status = WriteRows(batch);
  if (status.ok()) status = statements_.commit.Run();
  if (!status.ok()) statements_.rollback.Run().IgnoreError();
  return status;
}

absl::Status SqliteJournal::Forget(const JobId& job) {
  for (Statement* statement : {&statements_.forget_job, &statements_.forget_events}) {
    statement->BindText(1, job.text());
    RETURN_IF_ERROR(statement->Run());
  }
  return absl::OkStatus();
}

absl::Status SqliteJournal::WriteRows(const JournalBatch& batch) {
  for (const JobId& job : batch.forgotten) RETURN_IF_ERROR(Forget(job));
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
    if (row.number <= kEventsKept) continue;
    statements_.trim_events.BindText(1, row.job.text());
    statements_.trim_events.BindInt(2, row.number - kEventsKept);
    RETURN_IF_ERROR(statements_.trim_events.Run());
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

absl::Span<const char* const> JournalMigrations() { return kMigrations; }

absl::Status MigrateJournal(Database& database, const std::string& path,
                            absl::Span<const char* const> migrations) {
  RETURN_IF_ERROR(CheckWhole(database, path));
  RETURN_IF_ERROR(CheckOurs(database, path));
  const int64_t newest = static_cast<int64_t>(migrations.size());
  int64_t version = 0;
  ASSIGN_OR_RETURN(
      const int64_t versioned,
      database.Number("SELECT count(*) FROM sqlite_master WHERE name='schema_version'"));
  if (versioned > 0) {
    ASSIGN_OR_RETURN(version, database.Number("SELECT max(version) FROM schema_version"));
  }
  if (version > newest) {
    return absl::FailedPreconditionError(
        absl::StrCat("the journal ", path, " has schema version ", version,
                     ", written by a newer espalierd; this one reads up to ", newest,
                     ". Start the newer espalierd, or use another --state-dir"));
  }
  if (version == newest) return absl::OkStatus();
  return RunMigrations(database, migrations.subspan(static_cast<size_t>(version)), newest);
}

}  // namespace espalier
