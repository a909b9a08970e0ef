#include "worker/state/checkpoint_store.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/support/checkpoint_fixture.h"
#include "tests/worker/support/fault_file_system.h"
#include "tests/worker/support/test_folder.h"

namespace espalier {
namespace {

CheckpointStore Store(const std::string& directory, int keep = 100, int keep_best = 0) {
  return CheckpointStore(PosixFileSystem(),
                         {.directory = directory, .keep = keep, .keep_best = keep_best});
}

void WriteStep(CheckpointStore& store, int64_t step, std::optional<double> loss = std::nullopt) {
  const TinyState state(step);
  CheckpointContent content = state.Content();
  content.validation_loss = loss;
  const auto written = store.Write(content);
  ASSERT_TRUE(written.ok()) << written.status();
  ASSERT_TRUE(written->pruned.ok()) << written->pruned;
}

TEST(CheckpointStore, ANewDirectoryHoldsNothing) {
  const TestFolder folder;
  CheckpointStore store = Store(folder / "a/b/checkpoints");
  EXPECT_FALSE(store.FindNewest()->newest.has_value());
  ASSERT_TRUE(store.Prepare().ok());
  EXPECT_FALSE(store.FindNewest()->newest.has_value());
  WriteStep(store, 500);
  const auto found = store.FindNewest();
  ASSERT_TRUE(found.ok() && found->newest.has_value());
  EXPECT_TRUE(TinyState(500).Equals(*found->newest));
  EXPECT_EQ(Names(folder / "a/b/checkpoints"), (std::set<std::string>{".writer", "step-00000500"}));
}

TEST(CheckpointStore, TheNewestIsTheHighestStepNotTheLastName) {
  const TestFolder folder;
  CheckpointStore store = Store(folder.path());
  for (int64_t step : {99999999, 100000000, 5}) WriteStep(store, step);
  std::filesystem::create_directory(folder / "step-abc");
  std::filesystem::create_directory(folder / "step-7");
  EXPECT_EQ(store.FindNewest()->newest->step(), Step(100000000));
  EXPECT_EQ(store.List()->size(), 3u);
}

TEST(CheckpointStore, ADamagedNewestIsReportedPassedOverAndKept) {
  const TestFolder folder;
  CheckpointStore store = Store(folder.path());
  for (int64_t step : {1, 2, 3}) WriteStep(store, step);
  FlipByte(folder / "step-00000003/model.safetensors", 100);
  std::filesystem::remove(folder / "step-00000002/manifest.json");
  const auto found = store.FindNewest();
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(TinyState(1).Equals(*found->newest));
  ASSERT_EQ(found->rejected.size(), 2u);
  EXPECT_EQ(found->rejected[0].folder, folder / "step-00000003");
  EXPECT_NE(found->rejected[0].reason.message().find("model.safetensors"), std::string::npos);
  EXPECT_EQ(Names(folder.path()).size(), 3u) << "nothing may be deleted";
}

TEST(CheckpointStore, ARenamedCheckpointIsNotTakenForAnotherStep) {
  const TestFolder folder;
  CheckpointStore store = Store(folder.path());
  WriteStep(store, 1);
  std::filesystem::rename(folder / "step-00000001", folder / "step-00000009");
  EXPECT_FALSE(store.FindNewest()->newest.has_value());
}

TEST(CheckpointStore, WritingTheSameStepAgainKeepsTheGoodOneAndSetsABadOneAside) {
  const TestFolder folder;
  CheckpointStore store = Store(folder.path());
  WriteStep(store, 4);
  const auto before = std::filesystem::last_write_time(folder / "step-00000004/manifest.json");
  WriteStep(store, 4);
  EXPECT_EQ(std::filesystem::last_write_time(folder / "step-00000004/manifest.json"), before);
  for (int round = 1; round <= 2; ++round) {
    FlipByte(folder / "step-00000004/config.json", 3);
    WriteStep(store, 4);
    EXPECT_TRUE(TinyState(4).Equals(*store.FindNewest()->newest));
    EXPECT_EQ(Names(folder.path()).count(absl::StrCat("step-00000004.bad-", round)), 1u);
  }
}

// A stop in the midst of an evaluation asks for a checkpoint before its loss is known.
TEST(CheckpointStore, OneWithoutALossGetsTheFirstFiniteOneAndKeepsItsFiles) {
  const TestFolder folder;
  CheckpointStore store = Store(folder.path());
  const std::string of_step = folder / "step-00000004";
  WriteStep(store, 4);
  const auto before = std::filesystem::last_write_time(of_step + "/model.safetensors");
  const auto loss = [&] {
    return CheckCheckpoint(PosixFileSystem(), of_step, CheckpointCheck::kHashes)->validation_loss;
  };
  WriteStep(store, 4, std::numeric_limits<double>::infinity());
  EXPECT_EQ(loss(), std::nullopt);
  for (const double later : {0.5, 0.7}) {
    WriteStep(store, 4, later);
    EXPECT_EQ(loss(), 0.5);
  }
  EXPECT_EQ(std::filesystem::last_write_time(of_step + "/model.safetensors"), before);
}

TEST(CheckpointStore, ALossThatCannotBeAddedCostsNoCheckpoint) {
  const TestFolder folder;
  CheckpointStore store = Store(folder.path());
  WriteStep(store, 4);
  FaultFileSystem full({.fault = FaultFileSystem::Fault::kDiskFull});
  CheckpointStore same(full, {.directory = folder.path(), .keep = 100});
  WriteStep(same, 4, 0.5);
  EXPECT_TRUE(TinyState(4).Equals(*store.FindNewest()->newest));
}

TEST(CheckpointStore, KeepsTheNewestAndTheBest) {
  const TestFolder folder;
  CheckpointStore store = Store(folder.path(), /*keep=*/2, /*keep_best=*/2);
  const std::vector<std::optional<double>> losses = {5.0, 1.0, 3.0, std::nullopt, 2.0, 4.0, 6.0};
  for (size_t i = 0; i < losses.size(); ++i) WriteStep(store, static_cast<int64_t>(i), losses[i]);
  EXPECT_EQ(Names(folder.path()),
            (std::set<std::string>{"step-00000001", "step-00000004",     // losses 1 and 2
                                   "step-00000005", "step-00000006"}));  // newest
}

TEST(CheckpointStore, PruningNeverTouchesTheNewestVerifiedOne) {
  const TestFolder folder;
  CheckpointStore all = Store(folder.path());
  for (int64_t step : {1, 2, 3, 4, 5}) WriteStep(all, step);
  for (const char* bad : {"step-00000003", "step-00000004", "step-00000005"}) {
    FlipByte(folder / bad + "/optimizer.safetensors", 100);
  }
  ASSERT_TRUE(Store(folder.path(), /*keep=*/1).Prune().ok());
  EXPECT_TRUE(TinyState(2).Equals(*all.FindNewest()->newest));
  EXPECT_EQ(Names(folder.path()).count("step-00000001"), 0u);
}

// Another generation may have been started meanwhile, and claimed the folder.
TEST(CheckpointStore, WithoutAPermitNothingIsClaimedPublishedOrRemoved) {
  const TestFolder folder;
  absl::Status permit = absl::UnavailableError("no lease");
  CheckpointStore store(PosixFileSystem(), {.directory = folder.path(),
                                            .keep = 1,
                                            .writer = "generation 1",
                                            .permit = [&permit] { return permit; }});
  EXPECT_EQ(store.Prepare(), permit);
  EXPECT_FALSE(Names(folder.path()).count(".writer"));
  permit = absl::OkStatus();
  ASSERT_TRUE(store.Prepare().ok());
  WriteStep(store, 5);
  permit = absl::UnavailableError("no lease");
  EXPECT_EQ(store.Write(TinyState(7).Content()).status(), permit);
  EXPECT_EQ(Names(folder.path()), (std::set<std::string>{".writer", "step-00000005"}));
}

TEST(CheckpointStore, PrepareRemovesWhatAKilledWriterLeft) {
  const TestFolder folder;
  CheckpointStore store = Store(folder.path());
  WriteStep(store, 1);
  folder.Write(".writing-step-00000002-77/model.safetensors", "half");
  folder.Write(".removing-step-00000000/config.json", "half");
  folder.Write("notes.txt", "the user's");
  ASSERT_TRUE(store.Prepare().ok());
  EXPECT_EQ(Names(folder.path()), (std::set<std::string>{".writer", "step-00000001", "notes.txt"}));
}

TEST(CheckpointStore, OnlyTheWriterThatBeganLastPublishesAndRemoves) {
  const TestFolder folder;
  CheckpointStore::Options options{.directory = folder.path(), .keep = 1};
  options.writer = "generation 1 of job nano-1";
  CheckpointStore cut_off(PosixFileSystem(), options);
  options.writer = "generation 2 of job nano-1";
  CheckpointStore successor(PosixFileSystem(), options);
  ASSERT_TRUE(cut_off.Prepare().ok());
  WriteStep(cut_off, 5);
  ASSERT_TRUE(successor.Prepare().ok());
  const absl::Status refused = cut_off.Write(TinyState(6).Content()).status();
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  EXPECT_NE(refused.message().find("generation 2 of job nano-1"), std::string::npos) << refused;
  EXPECT_TRUE(absl::IsAborted(cut_off.Prune()));
  EXPECT_EQ(Names(folder.path()), (std::set<std::string>{".writer", "step-00000005"}));
  WriteStep(successor, 7);
  EXPECT_EQ(Names(folder.path()), (std::set<std::string>{".writer", "step-00000007"}));
}

TEST(CheckpointStore, AWriterReplacedWhileItWritesPublishesNothing) {
  const TestFolder folder;
  CheckpointStore store(PosixFileSystem(), {.directory = folder.path(), .writer = "the first"});
  ASSERT_TRUE(store.Prepare().ok());
  const TinyState state(1);
  CheckpointContent content = state.Content();
  const auto read = content.model[0].read;
  content.model[0].read = [&] {
    folder.Write(".writer", "the second\n");
    return read();
  };
  EXPECT_TRUE(absl::IsAborted(store.Write(content).status()));
  EXPECT_EQ(Names(folder.path()), std::set<std::string>{".writer"});
}

TEST(CheckpointStore, ADirectoryThatIsAFileIsAnError) {
  const TestFolder folder;
  CheckpointStore store = Store(folder.Write("file", "x"));
  EXPECT_FALSE(store.Prepare().ok());
  EXPECT_FALSE(store.FindNewest().ok());
}

}  // namespace
}  // namespace espalier
