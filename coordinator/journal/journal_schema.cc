#include "coordinator/journal/journal_schema.h"

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

}  // namespace

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
