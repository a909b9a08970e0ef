// What only the file can do: be damaged, be foreign, be old, be new, and be cut off at any instant.
#include "coordinator/journal/sqlite_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "common/base/random.h"
#include "tests/coordinator/scratch_folder.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SqliteJournalFile : public ::testing::Test {
 protected:
  absl::Status OpenStatus() const { return SqliteJournal::Open(file_).status(); }
  absl::Status Run(const std::string& sql) const { return Database::Open(file_)->Execute(sql); }
  ScratchFolder folder_;
  const std::string file_ = folder_.path("journal.sqlite");
};

TEST_F(SqliteJournalFile, IsWrittenAheadAndSynchronisedFully) {
  ASSERT_TRUE(OpenStatus().ok());
  EXPECT_EQ(*Database::Open(file_)->Text("PRAGMA journal_mode"), "wal");
}

TEST_F(SqliteJournalFile, ATextFileIsRefusedAndLeftAlone) {
  const std::string text(4096, 'x');
  folder_.Write("journal.sqlite", text);
  const absl::Status status = OpenStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(file_), HasSubstr("move it aside")));
  EXPECT_EQ(folder_.Read("journal.sqlite"), text);
}

TEST_F(SqliteJournalFile, DamageInTheMiddleIsFound) {
  {
    std::unique_ptr<SqliteJournal> journal = *SqliteJournal::Open(file_);
    JournalBatch batch;
    for (int i = 0; i < 200; ++i) {
      batch.jobs.push_back({JobId("job" + std::to_string(i)), std::string(500, 'r')});
    }
    ASSERT_TRUE(journal->Commit(batch).ok());
  }
  std::string bytes = folder_.Read("journal.sqlite");
  ASSERT_GT(bytes.size(), 50000u);
  for (size_t i = 20000; i < 45000; ++i) bytes[i] = static_cast<char>(0xa5);
  folder_.Write("journal.sqlite", bytes);
  EXPECT_EQ(OpenStatus().code(), absl::StatusCode::kDataLoss) << OpenStatus();
}

TEST_F(SqliteJournalFile, AnotherProgramsDatabaseIsRefused) {
  ASSERT_TRUE(Run("CREATE TABLE recipes(name TEXT)").ok());
  const absl::Status status = OpenStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("another program"));
}

TEST_F(SqliteJournalFile, ANewerSchemaIsRefusedWithBothVersions) {
  ASSERT_TRUE(OpenStatus().ok());
  ASSERT_TRUE(Run("UPDATE schema_version SET version=42").ok());
  const absl::Status status = OpenStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("42"), HasSubstr("newer espalierd")));
}

TEST_F(SqliteJournalFile, AnUnwritablePlaceIsNamed) {
  const absl::Status status = SqliteJournal::Open(folder_.path("absent/journal")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("absent/journal"));
}

TEST_F(SqliteJournalFile, AnOlderSchemaIsBroughtForwardInOrderKeepingItsRows) {
  const char* const first[] = {"CREATE TABLE t(a); INSERT INTO t VALUES(1)"};
  const char* const both[] = {first[0], "ALTER TABLE t ADD COLUMN b DEFAULT 5"};
  Database database = *Database::Open(file_);
  ASSERT_TRUE(MigrateJournal(database, file_, first).ok());
  ASSERT_TRUE(MigrateJournal(database, file_, both).ok());
  ASSERT_TRUE(MigrateJournal(database, file_, both).ok()) << "nothing left to do";
  EXPECT_EQ(*database.Number("SELECT a+b FROM t"), 6);
  EXPECT_EQ(*database.Number("SELECT version FROM schema_version"), 2);
}

TEST_F(SqliteJournalFile, AFailedMigrationChangesNothing) {
  const char* const first[] = {"CREATE TABLE t(a)"};
  const char* const broken[] = {first[0], "CREATE TABLE u(a); SELECT nonsense"};
  Database database = *Database::Open(file_);
  ASSERT_TRUE(MigrateJournal(database, file_, first).ok());
  EXPECT_FALSE(MigrateJournal(database, file_, broken).ok());
  EXPECT_EQ(*database.Number("SELECT version FROM schema_version"), 1);
  EXPECT_EQ(*database.Number("SELECT count(*) FROM sqlite_master WHERE name='u'"), 0);
}

// Writes batches 1, 2, 3, ... each into every table, and tells `out` after each commit.
[[noreturn]] void WriteForever(const std::string& file, int64_t from, int out) {
  absl::StatusOr<std::unique_ptr<SqliteJournal>> journal = SqliteJournal::Open(file);
  if (!journal.ok()) _exit(1);
  for (int64_t n = from;; ++n) {
    const std::string text = std::to_string(n);
    const JournalBatch batch = {.jobs = {{JobId("a"), text}, {JobId("b"), text}},
                                .events = {{JobId("a"), n, n, 1, text}},
                                .ended_launches = {{JobId("a"), Generation(n - 1)}},
                                .launches = {{{JobId("a"), Generation(n)}, {n, text}}},
                                .settings = {{"n", text}}};
    if (!(*journal)->Commit(batch).ok()) _exit(2);
    if (write(out, &n, sizeof(n)) != sizeof(n)) _exit(3);
  }
}

// Lets a process write for a moment that `random` chooses, kills it, and returns the last batch
// that it knew to be committed.
int64_t WriteUntilKilled(const std::string& file, int64_t from, SplitMix64& random) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) WriteForever(file, from, ends[1]);
  close(ends[1]);
  int64_t acknowledged = from - 1, n = 0;
  const int64_t enough = from + static_cast<int64_t>(random.Below(20));
  while (acknowledged < enough && read(ends[0], &n, sizeof(n)) == sizeof(n)) acknowledged = n;
  usleep(static_cast<useconds_t>(random.Below(3000)));
  kill(child, SIGKILL);
  while (read(ends[0], &n, sizeof(n)) == sizeof(n)) acknowledged = n;
  waitpid(child, nullptr, 0);
  close(ends[0]);
  return acknowledged;
}

TEST_F(SqliteJournalFile, InvariantJournalThenAct_KilledAtAnyInstantItHoldsWholeBatches) {
  SplitMix64 random(20240607);
  int64_t last = 0;
  for (int round = 0; round < 25; ++round) {
    const int64_t acknowledged = WriteUntilKilled(file_, last + 1, random);
    std::unique_ptr<SqliteJournal> journal = *SqliteJournal::Open(file_);
    const JournalContents contents = *journal->Load();
    ASSERT_EQ(contents.jobs.size(), 2u);
    last = std::stoll(contents.jobs[0].record);
    EXPECT_GE(last, acknowledged) << "a committed batch was lost";
    EXPECT_LE(last, acknowledged + 1);
    const std::string text = std::to_string(last);
    EXPECT_EQ(contents.jobs[1].record, text);
    EXPECT_EQ(contents.settings, (std::vector<SettingRow>{{"n", text}}));
    EXPECT_EQ(contents.launches,
              (std::vector<LaunchRow>{{{JobId("a"), Generation(last)}, {last, text}}}));
    EXPECT_EQ(journal->Events({.job = JobId("a"), .limit = 1 << 20})->size(),
              static_cast<size_t>(std::min(last, kEventsKept)));
  }
}

}  // namespace
}  // namespace espalier
