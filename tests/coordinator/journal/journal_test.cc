// One suite for every Journal: what espalierd may rely on.
#include "coordinator/journal/journal.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "coordinator/journal/sqlite_journal.h"
#include "tests/coordinator/scratch_folder.h"

namespace espalier {
namespace {

struct Implementation {
  const char* name;
  std::function<std::unique_ptr<Journal>(const ScratchFolder&)> open;
};

std::unique_ptr<Journal> OpenSqlite(const ScratchFolder& folder) {
  absl::StatusOr<std::unique_ptr<SqliteJournal>> journal =
      SqliteJournal::Open(folder.path("journal.sqlite"));
  EXPECT_TRUE(journal.ok()) << journal.status();
  return *std::move(journal);
}

class JournalConformance : public ::testing::TestWithParam<Implementation> {
 protected:
  ScratchFolder folder_;
  std::unique_ptr<Journal> journal_ = GetParam().open(folder_);
};

INSTANTIATE_TEST_SUITE_P(
    All, JournalConformance,
    ::testing::Values(Implementation{"Memory",
                                     [](const ScratchFolder&) {
                                       return std::make_unique<MemoryJournal>();
                                     }},
                      Implementation{"Sqlite", OpenSqlite}),
    [](const auto& info) { return std::string(info.param.name); });

EventRow Event(const std::string& job, int64_t number) {
  return {JobId(job), number, 1000 + number, 2, "event " + std::to_string(number)};
}

TEST_P(JournalConformance, ANewJournalIsEmpty) {
  absl::StatusOr<JournalContents> contents = journal_->Load();
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_TRUE(contents->jobs.empty());
  EXPECT_TRUE(contents->launches.empty());
  EXPECT_TRUE(contents->settings.empty());
}

TEST_P(JournalConformance, LoadGivesBackWhatWasCommitted) {
  const std::string binary("\0bytes\xff\n", 8);
  JournalBatch batch;
  batch.jobs = {{JobId("b"), binary}, {JobId("a"), ""}};
  batch.launches = {{{JobId("a"), Generation(2)}, {4711, "boot/99"}}};
  batch.settings = {{"next", "7"}};
  ASSERT_TRUE(journal_->Commit(batch).ok());

  absl::StatusOr<JournalContents> contents = journal_->Load();
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->jobs, (std::vector<JobRow>{{JobId("a"), ""}, {JobId("b"), binary}}));
  EXPECT_EQ(contents->launches, batch.launches);
  EXPECT_EQ(contents->settings, batch.settings);
}

TEST_P(JournalConformance, ALaterRowReplacesTheEarlier) {
  ASSERT_TRUE(journal_->Commit({.jobs = {{JobId("a"), "old"}}, .settings = {{"k", "old"}}}).ok());
  ASSERT_TRUE(journal_->Commit({.jobs = {{JobId("a"), "new"}}, .settings = {{"k", "new"}}}).ok());
  const JournalContents contents = *journal_->Load();
  EXPECT_EQ(contents.jobs, (std::vector<JobRow>{{JobId("a"), "new"}}));
  EXPECT_EQ(contents.settings, (std::vector<SettingRow>{{"k", "new"}}));
}

TEST_P(JournalConformance, OfAHistoryTheNewestEventsAreKept) {
  constexpr int64_t kMany = kEventsKept + 20;
  JournalBatch batch;
  for (int64_t i = 1; i <= kMany; ++i) batch.events.push_back(Event("a", i));
  batch.events.push_back(Event("b", 1));
  ASSERT_TRUE(journal_->Commit(batch).ok());
  ASSERT_TRUE(journal_->Commit({.events = {Event("a", kMany + 1)}}).ok());
  const auto events = journal_->Events({.job = JobId("a"), .limit = 2 * kMany});
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_EQ(events->size(), static_cast<size_t>(kEventsKept));
  EXPECT_EQ(events->back().number, kMany + 1);
  EXPECT_EQ(journal_->Events({.job = JobId("b")})->size(), 1u) << "another job's history";
}

TEST_P(JournalConformance, AForgottenJobLeavesNothingAndItsNameMayBeUsedAgain) {
  ASSERT_TRUE(journal_
                  ->Commit({.jobs = {{JobId("a"), "record"}, {JobId("b"), "record"}},
                            .events = {Event("a", 1), Event("a", 2), Event("b", 1)}})
                  .ok());
  ASSERT_TRUE(journal_->Commit({.forgotten = {JobId("a")}}).ok());
  EXPECT_EQ(journal_->Load()->jobs, (std::vector<JobRow>{{JobId("b"), "record"}}));
  EXPECT_TRUE(journal_->Events({.job = JobId("a")})->empty());
  EXPECT_EQ(journal_->Events({.job = JobId("b")})->size(), 1u);
  EXPECT_TRUE(journal_->Commit({.jobs = {{JobId("a"), "new"}}, .events = {Event("a", 1)}}).ok());
}

TEST_P(JournalConformance, EndedLaunchesAreForgottenAndOthersKept) {
  const LaunchRow first = {{JobId("a"), Generation(1)}, {10, "x"}};
  const LaunchRow second = {{JobId("a"), Generation(2)}, {11, "y"}};
  ASSERT_TRUE(journal_->Commit({.launches = {first}}).ok());
  ASSERT_TRUE(journal_
                  ->Commit({.ended_launches = {{JobId("a"), Generation(1)}, {JobId("b"), {}}},
                            .launches = {second}})
                  .ok());
  EXPECT_EQ(journal_->Load()->launches, (std::vector<LaunchRow>{second}));
}

TEST_P(JournalConformance, EventsComeInOrderAfterANumberUpToALimit) {
  JournalBatch batch;
  for (int64_t number : {3, 1, 2, 4}) batch.events.push_back(Event("a", number));
  batch.events.push_back(Event("b", 1));
  ASSERT_TRUE(journal_->Commit(batch).ok());
  const std::vector<EventRow> rows = *journal_->Events({.job = JobId("a"), .after = 1, .limit = 2});
  EXPECT_EQ(rows, (std::vector<EventRow>{Event("a", 2), Event("a", 3)}));
  EXPECT_EQ(journal_->Events({.job = JobId("b")})->size(), 1u);
  EXPECT_TRUE(journal_->Events({.job = JobId("nobody")})->empty());
}

TEST_P(JournalConformance, ARefusedBatchLeavesNothingBehind) {
  ASSERT_TRUE(journal_->Commit({.jobs = {{JobId("a"), "old"}}, .events = {Event("a", 1)}}).ok());
  const absl::Status refused =
      journal_->Commit({.jobs = {{JobId("a"), "new"}}, .events = {Event("a", 2), Event("a", 1)}});
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists) << refused;
  EXPECT_EQ(journal_->Load()->jobs, (std::vector<JobRow>{{JobId("a"), "old"}}));
  EXPECT_EQ(journal_->Events({.job = JobId("a")})->size(), 1u);
  EXPECT_TRUE(journal_->Commit({.events = {Event("a", 2)}}).ok()) << "usable after an error";
}

}  // namespace
}  // namespace espalier
