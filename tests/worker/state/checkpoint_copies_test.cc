// Each machine writes a copy of its own, as far as copies are asked for; ranks that share a folder
// write once; and no rank begins with less than what was published.
#include "worker/state/checkpoint_copies.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"

namespace espalier {
namespace {

using Ranks = std::vector<int32_t>;

WorldOptions World(int ranks, const TestFolder& folder) {
  WorldOptions options;
  options.ranks = ranks;
  options.spec = TinySpec(4);
  options.checkpoints = folder.path();
  options.own_folders = true;
  return options;
}

std::string Last(const TestFolder& folder, int rank) {
  return absl::StrCat(folder.path(), "/", rank, "/step-00000004");
}

void ExpectCompleted(const std::vector<RankResult>& results) {
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(*result.outcome, v1::OUTCOME_COMPLETED);
  }
}

TEST(ChooseWriters, TheFirstFoldersAreWrittenByTheirLowestRank) {
  EXPECT_EQ(ChooseWriters(Ranks{0, 1, 2}, 2), (Ranks{0, 1, -1}));
  EXPECT_EQ(ChooseWriters(Ranks{0, 0, 2, 2}, 2), (Ranks{0, 0, 2, 2}));
  EXPECT_EQ(ChooseWriters(Ranks{0, 1, 1, 0}, 1), (Ranks{0, -1, -1, 0}));
}

TEST(ChooseWriters, AFolderThatCannotBeWrittenIsNoCopy) {
  EXPECT_EQ(ChooseWriters(Ranks{0, -1, 2}, 2), (Ranks{0, -1, 2}));
}

TEST(CheckpointCopies, EachMachineHoldsTheSameState) {
  const TestFolder folder;
  const std::vector<RankResult> results = TrainWorld(World(2, folder));
  ExpectCompleted(results);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string first = ReadText(absl::StrCat(Last(folder, 0), "/", file));
    EXPECT_FALSE(first.empty());
    EXPECT_TRUE(first == ReadText(absl::StrCat(Last(folder, 1), "/", file))) << file;
  }
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<v1::CheckpointReport> reports = results[rank].client->checkpoints();
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_EQ(reports[0].path(), Last(folder, rank));
  }
}

TEST(CheckpointCopies, NoMoreAreWrittenThanAreAskedFor) {
  const TestFolder folder;
  const std::vector<RankResult> results = TrainWorld(World(3, folder));
  ExpectCompleted(results);
  EXPECT_TRUE(std::filesystem::exists(Last(folder, 1)));
  EXPECT_FALSE(std::filesystem::exists(Last(folder, 2)));
  EXPECT_TRUE(results[2].client->checkpoints().empty());
}

TEST(CheckpointCopies, ASharedFolderIsWrittenOnceAndHeldByAll) {
  const TestFolder folder;
  WorldOptions options = World(2, folder);
  options.own_folders = false;
  const std::vector<RankResult> results = TrainWorld(options);
  ExpectCompleted(results);
  for (const RankResult& result : results) {
    const std::vector<v1::CheckpointReport> reports = result.client->checkpoints();
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_EQ(reports[0].path(), folder.path() + "/step-00000004");
    EXPECT_GT(reports[0].bytes(), 0);
  }
  EXPECT_EQ(Names(folder.path()), (std::set<std::string>{".writer", "step-00000004"}));
}

TEST(CheckpointCopies, OfAFolderThatAllNodesReachRankZeroAloneWrites) {
  const TestFolder folder;
  WorldOptions options = World(2, folder);
  options.spec.mutable_checkpoint()->set_shared(true);
  ExpectCompleted(TrainWorld(options));
  EXPECT_TRUE(std::filesystem::exists(Last(folder, 0)));
  EXPECT_FALSE(std::filesystem::exists(Last(folder, 1)));
}

TEST(CheckpointCopies, ANodeThatCannotKeepOneDoesNotStopTheRun) {
  const TestFolder folder;
  std::ofstream(folder.path() + "/1") << "a file where the folder should be";
  const std::vector<RankResult> results = TrainWorld(World(2, folder));
  ExpectCompleted(results);
  EXPECT_TRUE(std::filesystem::exists(Last(folder, 0)));
  EXPECT_TRUE(results[1].client->checkpoints().empty());
}

TEST(CheckpointCopies, ACopyThatCannotBeWrittenIsReportedAndTheOtherCounts) {
  const TestFolder folder;
  WorldOptions options = World(2, folder);
  options.script = [&](int rank, ScriptedClient& client) {
    if (rank != 1) return;
    client.on_report = [&](ScriptedClient&, const v1::AttachRequest& message) {
      if (!message.has_step() || message.step().step() != 0) return;
      std::filesystem::remove_all(folder.path() + "/1");
      std::ofstream(folder.path() + "/1") << "a file where the folder was";
    };
  };
  const std::vector<RankResult> results = TrainWorld(options);
  ExpectCompleted(results);
  const std::vector<v1::CheckpointReport> reports = results[1].client->checkpoints();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_NE(reports[0].error(), "");
  EXPECT_EQ(results[0].client->checkpoints()[0].error(), "");
}

TEST(StartState, EveryRankSaysWhatItsFolderHolds) {
  const TestFolder folder;
  ExpectCompleted(TrainWorld(World(2, folder)));
  std::filesystem::remove_all(folder.path() + "/1");
  WorldOptions options = World(2, folder);
  std::vector<Step> found(2, Step(-1));
  options.on_found = [&](int rank, Step step, const std::string&) { found[rank] = step; };
  ExpectCompleted(TrainWorld(options));
  EXPECT_EQ(found, (std::vector<Step>{Step(4), Step(0)}));
}

TEST(StartState, InvariantNothingIsForgotten_NoRankBeginsWithLessThanWasPublished) {
  const TestFolder folder;
  WorldOptions options = World(2, folder);
  options.start = {.least = Step(2), .least_held_by = "studio"};
  for (const RankResult& result : TrainWorld(options)) {
    EXPECT_EQ(result.outcome.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(result.outcome.status().message(),
              "the state of step 2 is known to be held (on studio), and no rank of this generation "
              "holds any; nothing is begun anew");
    EXPECT_EQ(result.client->steps().size(), 0u);
  }
}

}  // namespace
}  // namespace espalier
