// What goes wrong within a step ends it with a reason, on every rank; and a long pass shows that
// work goes on.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/worker/support/fault_file_system.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"

namespace espalier {
namespace {

WorldOptions SmallWorld(int ranks, int64_t steps, const std::string& folder) {
  WorldOptions options;
  options.ranks = ranks;
  options.spec = TinySpec(steps);
  options.spec.mutable_batch()->add_micro_batch(16);
  options.checkpoints = folder;
  return options;
}

// Throws where LibTorch may: outside of a pass too.
class ThrowingSamples : public SampleSource {
 public:
  absl::StatusOr<std::shared_ptr<const Samples>> Fetch(Step, SlotRange) override {
    throw std::runtime_error("a device has failed");
  }
};

TEST(StepErrors, AnExceptionEndsTheRunWithItsTextAndTheStep) {
  const TestFolder folder;
  WorldOptions options = SmallWorld(1, 3, folder.path());
  options.wrap = [](int, Replica&, std::unique_ptr<SampleSource>) {
    return std::make_unique<ThrowingSamples>();
  };
  const absl::Status status = TrainWorld(options)[0].outcome.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(status.message(), "step 0")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "a device has failed")) << status;
}

// Rank 1's disk is full from the fourth line on; rank 0 writes without trouble.
TEST(StepErrors, ASampleLogThatFailsOnOneRankEndsAllAlike) {
  const TestFolder folder;
  constexpr int64_t kFolderAndFile = 2, kLines = 3;
  FaultFileSystem good({}), bad({FaultFileSystem::Fault::kDiskFull, kFolderAndFile + kLines});
  WorldOptions options = SmallWorld(2, 20, folder.path());
  options.sample_log_files = [&](int rank) -> FileSystem* { return rank == 1 ? &bad : &good; };
  for (const RankResult& result : TrainWorld(options)) {
    const absl::Status& status = result.outcome.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "rank 1")) << status;
    EXPECT_EQ(result.losses.size(), kLines) << "no rank commits a step that is not logged";
  }
}

// A run that was cut off from its coordinator, and whose successor has begun in the same folder.
TEST(StepErrors, ARunEndsWhenAnotherHasTakenItsCheckpointFolder) {
  const TestFolder folder;
  WorldOptions options = SmallWorld(2, 20, folder.path());
  options.spec.mutable_checkpoint()->set_every_steps(2);
  options.script = [&](int, ScriptedClient& client) {
    client.on_report = [&](ScriptedClient&, const v1::AttachRequest& message) {
      if (message.has_checkpoint()) folder.Write(".writer", "a successor\n");
    };
  };
  for (const RankResult& result : TrainWorld(options)) {
    const absl::Status& status = result.outcome.status();
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_LT(result.losses.size(), 20u);
  }
  EXPECT_EQ(Names(folder.path()), (std::set<std::string>{".writer", "step-00000002"}));
}

// So that a pass which takes longer than a failure may is not taken for a stuck rank.
TEST(Progress, IsMadeByEveryLayerForwardAndBackwardAndEveryChunkOfTheLoss) {
  const TestFolder folder;
  const std::vector<RankResult> results = TrainWorld(SmallWorld(1, 1, folder.path()));
  ASSERT_TRUE(results[0].outcome.ok()) << results[0].outcome.status();
  constexpr int64_t kLayers = 2, kLossChunks = 1, kMicroBatches = 1;
  EXPECT_EQ(results[0].client->progress().work.load(), 2 * kLayers + kLossChunks + kMicroBatches);
}

}  // namespace
}  // namespace espalier
