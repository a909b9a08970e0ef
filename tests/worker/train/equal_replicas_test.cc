// Ranks that do not hold the same bits any more are found before a checkpoint is written of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "worker/collective/in_process.h"
#include "worker/state/checkpoint_saver.h"
#include "worker/sync/together.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Has a bit of the replica turn over, once, as a fault of the memory does.
class TurnedBit : public SampleSource {
 public:
  TurnedBit(Replica& replica, std::unique_ptr<SampleSource> source)
      : replica_(replica), source_(std::move(source)) {}
  absl::StatusOr<std::shared_ptr<const Samples>> Fetch(Step step, SlotRange slots) override {
    if (step == Step(2)) {
      const torch::NoGradGuard no_grad;
      torch::Tensor value = replica_.Buffers().front();
      value.view(-1)[5].mul_(1.5);
    }
    return source_->Fetch(step, slots);
  }

 private:
  Replica& replica_;
  std::unique_ptr<SampleSource> source_;
};

// Of two ranks, of which nothing that is exchanged arrives.
class FailingCollective : public Collective {
 public:
  Rank rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  Ticket Start(const Operation& operation) override { return inner_->Start(operation); }
  absl::Status Wait(Ticket) override { return absl::InternalError("a device has failed"); }
  absl::Status Quiesce() override { return absl::OkStatus(); }
  void Abort(absl::Status reason) override { inner_->Abort(std::move(reason)); }
  CollectiveStats stats() const override { return inner_->stats(); }

 private:
  const std::unique_ptr<Collective> inner_ = std::move(InProcessGroup(2, absl::Seconds(60))[0]);
};

class EqualReplicas : public testing::Test {
 protected:
  WorldOptions Options(int ranks) const {
    WorldOptions options;
    options.ranks = ranks;
    options.spec = TinySpec(8);
    options.spec.mutable_batch()->add_micro_batch(4);
    options.spec.mutable_checkpoint()->set_every_steps(4);
    options.checkpoints = folder_ / "checkpoints";
    options.warm = folder_ / "warm";
    options.wrap = [](int rank, Replica& replica,
                      std::unique_ptr<SampleSource> source) -> std::unique_ptr<SampleSource> {
      if (rank != 1) return source;
      return std::make_unique<TurnedBit>(replica, std::move(source));
    };
    return options;
  }
  ~EqualReplicas() override {
    const auto listed = ListSegments(folder_ / "warm", "studio");
    if (!listed.ok()) return;
    for (const RegisteredSegment& one : *listed) RemoveSegment(folder_ / "warm", one.name);
  }

  const TestFolder folder_;
};

TEST_F(EqualReplicas, TheRankThatDiffersFromTheOthersIsNamedAndNothingIsKeptOfIt) {
  for (const RankResult& result : TrainWorld(Options(3))) {
    EXPECT_EQ(result.outcome.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(result.outcome.status().message()),
                HasSubstr("after step 4: rank 1 differs from the others"));
    EXPECT_THAT(FailedRanks(result.outcome.status()), ElementsAre(1));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "checkpoints/step-00000004"));
  const auto listed = ListSegments(folder_ / "warm", "studio");
  ASSERT_TRUE(listed.ok()) << listed.status();
  for (const RegisteredSegment& one : *listed) EXPECT_EQ(one.mark, 0) << "of no use";
}

// Without a majority: espalierd blames none of them, and tries without one when it comes again.
TEST_F(EqualReplicas, OfTwoThatDifferNoneIsNamedAndNothingIsKeptOfEither) {
  for (const RankResult& result : TrainWorld(Options(2))) {
    EXPECT_EQ(result.outcome.status().code(), absl::StatusCode::kAborted) << "a loss, to espalierd";
    EXPECT_THAT(std::string(result.outcome.status().message()),
                HasSubstr("which one is wrong cannot be told"));
    EXPECT_THAT(FailedRanks(result.outcome.status()), IsEmpty());
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "checkpoints/step-00000004"));
  const auto listed = ListSegments(folder_ / "warm", "studio");
  ASSERT_TRUE(listed.ok()) << listed.status();
  for (const RegisteredSegment& one : *listed) EXPECT_EQ(one.mark, 0) << "of no use";
}

// Nobody has asked for a checkpoint, and what is in memory is as wrong.
TEST_F(EqualReplicas, AreComparedNowAndThenWithoutACheckpoint) {
  WorldOptions options = Options(3);
  options.spec.mutable_train()->set_steps(130);
  options.spec.mutable_checkpoint()->set_every_steps(0);
  for (const RankResult& result : TrainWorld(options)) {
    EXPECT_THAT(std::string(result.outcome.status().message()),
                HasSubstr("after step 100: rank 1 differs from the others"));
  }
}

// What is in memory may be as good as ever: it is what the run goes on from.
TEST_F(EqualReplicas, AnErrorInComparingThemSaysNothingOfTheirBits) {
  const RunIdentity identity{.spec = Options(2).spec};
  const auto replica = Replica::Create(TinyConfig(), identity.spec.train(), torch::kCPU);
  ASSERT_TRUE(replica.ok()) << replica.status();
  FailingCollective collective;
  ScriptedClient client;
  CheckpointStore store(PosixFileSystem(), {.directory = folder_ / "checkpoints"});
  CheckpointSaver saver({collective, RealClock(), client.progress()}, client, store, identity, {});
  EXPECT_EQ(saver.Save(**replica, std::nullopt).status().code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(saver.differ());
}

}  // namespace
}  // namespace espalier
