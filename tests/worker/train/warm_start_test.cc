// A generation begins with the newest state that any rank holds, in memory or as a checkpoint:
// of runs that end at a boundary, whether the memory is the replica's own or holds copies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "common/base/file_system.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "worker/collective/collective.h"

namespace espalier {
namespace {

// The machine's, with the manifests of checkpoints that were read, as they are to verify one.
class CountingFiles : public FileSystem {
 public:
  int read() const { return read_; }

  absl::StatusOr<std::string> Read(const std::string& path, int64_t limit) override {
    read_ += absl::EndsWith(path, "manifest.json");
    return files_.Read(path, limit);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    return files_.Create(path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return files_.List(path);
  }
  absl::Status MakeDirectory(const std::string& path) override {
    return files_.MakeDirectory(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return files_.Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override { return files_.Remove(path); }
  absl::Status SyncDirectory(const std::string& path) override {
    return files_.SyncDirectory(path);
  }

 private:
  FileSystem& files_ = PosixFileSystem();
  std::atomic<int> read_ = 0;
};

// A collective as it is, whose owner looks at each broadcast before it starts.
class WatchedCollective : public Collective {
 public:
  using Watch = std::function<void(Collective& inner, const Operation& broadcast)>;
  WatchedCollective(Collective& inner, Watch watch) : inner_(inner), watch_(std::move(watch)) {}
  Rank rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  Ticket Start(const Operation& operation) override {
    if (operation.kind == Operation::Kind::kBroadcast) watch_(inner_, operation);
    return inner_.Start(operation);
  }
  absl::Status Wait(Ticket ticket) override { return inner_.Wait(ticket); }
  absl::Status Quiesce() override { return inner_.Quiesce(); }
  void Abort(absl::Status reason) override { inner_.Abort(std::move(reason)); }
  CollectiveStats stats() const override { return inner_.stats(); }

 private:
  Collective& inner_;
  const Watch watch_;
};

class WarmStart : public testing::TestWithParam<bool> {
 protected:
  ~WarmStart() override {
    for (int worker = 0; worker < 3; ++worker) Forget(worker);
  }

  // Ends after `steps`, of which the job has 10, without a checkpoint unless it is asked for or all
  // are done.
  WorldOptions Until(int64_t steps, int ranks = 2, bool checkpoint = false) const {
    WorldOptions options;
    options.ranks = ranks;
    options.spec = TinySpec(10);
    options.spec.mutable_batch()->add_micro_batch(4);
    options.checkpoints = folder_ / "checkpoints";
    options.warm = folder_ / "warm";
    options.warm_copies = GetParam();
    const StopKeeps keeps = checkpoint ? StopKeeps::kCheckpoint : StopKeeps::kNothing;
    if (steps != 10) options.script = StopAfter(steps, keeps);
    return options;
  }
  // Of a run that was never interrupted.
  uint64_t Straight(int ranks = 2) const {
    WorldOptions options = Until(10, ranks);
    options.warm = "";
    options.checkpoints = folder_ / "straight";
    return TrainWorld(options)[0].fingerprint;
  }
  static WorldOptions Watched(WorldOptions options, WatchedCollective::Watch watch) {
    options.wrap_collective = [watch = std::move(watch)](Collective& collective) {
      return std::make_unique<WatchedCollective>(collective, watch);
    };
    return options;
  }
  // The step that a worker's memory holds; 0: none that counts.
  int64_t MarkOf(int worker) const {
    const auto listed = ListSegments(folder_ / "warm", "studio");
    if (!listed.ok()) return -1;
    for (const RegisteredSegment& one : *listed) {
      if (one.record.worker == worker) return one.mark;
    }
    return -1;
  }
  void Forget(int worker) const {
    const auto listed = ListSegments(folder_ / "warm", "studio");
    ASSERT_TRUE(listed.ok()) << listed.status();
    for (const RegisteredSegment& one : *listed) {
      if (one.record.worker != worker) continue;
      EXPECT_TRUE(RemoveSegment(folder_ / "warm", one.name));
    }
  }

  const TestFolder folder_;
};

TEST_P(WarmStart, GoesOnFromTheNewestCommittedStepWithoutACheckpoint) {
  TrainWorld(Until(4));
  TrainWorld(Until(7));
  const std::vector<RankResult> results = TrainWorld(Until(10));
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.start.step, Step(7));
    EXPECT_EQ(result.start.origin, "warm state of step 7");
    EXPECT_EQ(result.losses.size(), 3u) << "no step is computed twice";
    EXPECT_EQ(result.fingerprint, Straight());
  }
}

TEST_P(WarmStart, ARankThatLostItsOwnReceivesAnothers) {
  TrainWorld(Until(4));
  Forget(0);
  const std::vector<RankResult> results = TrainWorld(Until(10));
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.start.step, Step(4));
    EXPECT_EQ(result.fingerprint, Straight());
  }
  EXPECT_TRUE(results[0].start.received);
  EXPECT_FALSE(results[1].start.received);
}

TEST_P(WarmStart, ANewcomerReceivesIt) {
  TrainWorld(Until(4, /*ranks=*/1));
  const std::vector<RankResult> results = TrainWorld(Until(10, /*ranks=*/3));
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.start.step, Step(4));
    EXPECT_EQ(result.fingerprint, results[0].fingerprint);
  }
}

// Of the three the first one sends.
TEST_P(WarmStart, WhoHoldsItKeepsItWhileANewcomerReceivesIt) {
  TrainWorld(Until(4));
  std::vector<int64_t> marks;
  const auto watch = [&](Collective& inner, const Operation& broadcast) {
    constexpr size_t kLarge = 4096;  // of the state itself
    if (inner.rank() == Rank(1) && broadcast.bytes.size() > kLarge) marks.push_back(MarkOf(1));
  };
  const std::vector<RankResult> results = TrainWorld(Watched(Until(10, /*ranks=*/3), watch));
  EXPECT_GE(marks.size(), 3u) << "values and moments";
  EXPECT_THAT(marks, testing::Each(4));
  EXPECT_TRUE(results[2].start.received);
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.start.step, Step(4));
    EXPECT_EQ(result.fingerprint, results[0].fingerprint);
  }
}

TEST_P(WarmStart, WhoHoldsItGoesOnFromItWhenTheSenderDies) {
  TrainWorld(Until(4));
  // When all are about to broadcast, and none has begun: what fails in there is left to the end of
  // the process.
  std::atomic<int> ready = 0;
  const auto watch = [&](Collective& inner, const Operation& broadcast) {
    if (broadcast.bytes.size() != sizeof(TrainingCounters)) return;
    ++ready;
    while (ready < 3) absl::SleepFor(absl::Milliseconds(1));
    inner.Abort(absl::UnavailableError("the sender has died"));
  };
  for (const RankResult& result : TrainWorld(Watched(Until(10, /*ranks=*/3), watch))) {
    EXPECT_EQ(result.outcome.status().message(), "the sender has died");
  }
  Forget(0);
  const std::vector<RankResult> results = TrainWorld(Until(10));
  EXPECT_EQ(results[1].start.origin, "warm state of step 4");
  EXPECT_EQ(results[0].start.step, Step(4));
  EXPECT_EQ(results[0].fingerprint, Straight());
}

// Of a run on another machine meanwhile, say.
TEST_P(WarmStart, ANewerCheckpointIsTakenInsteadAndAnOlderOneIsNot) {
  TrainWorld(Until(4));
  WorldOptions elsewhere = Until(10);
  elsewhere.warm = "";
  elsewhere.spec.mutable_train()->set_steps(6);
  elsewhere.script = nullptr;
  TrainWorld(elsewhere);
  {
    const std::vector<RankResult> newer = TrainWorld(Until(8));
    EXPECT_EQ(newer[0].start.step, Step(6));
    EXPECT_TRUE(absl::StartsWith(newer[0].start.origin, "checkpoint ")) << newer[0].start.origin;
  }
  const std::vector<RankResult> older = TrainWorld(Until(10));
  EXPECT_EQ(older[1].start.origin, "warm state of step 8");
  EXPECT_EQ(older[0].fingerprint, older[1].fingerprint);
}

// A newcomer's folder is not read either, which would keep all waiting.
TEST_P(WarmStart, ACheckpointIsVerifiedOnlyWhereNoMemoryIsNewer) {
  TrainWorld(Until(3));
  WorldOptions elsewhere = Until(10);
  elsewhere.warm = "";
  elsewhere.spec.mutable_train()->set_steps(4);
  elsewhere.script = nullptr;
  TrainWorld(elsewhere);
  CountingFiles files;
  std::atomic<int> told = 0;
  const auto until = [&](int64_t steps, int ranks) {
    WorldOptions options = Until(steps, ranks);
    options.checkpoint_files = [&](int) { return &files; };
    options.on_found = [&](int, Step step, const std::string&) { told += step == Step(4); };
    return options;
  };
  const std::string origin = TrainWorld(until(7, 2))[0].start.origin;
  EXPECT_TRUE(absl::StartsWith(origin, "checkpoint ")) << origin;
  const int verified = files.read();
  EXPECT_GT(verified, 0);
  EXPECT_EQ(told, 2);
  for (const RankResult& result : TrainWorld(until(9, 3))) EXPECT_EQ(result.start.step, Step(7));
  EXPECT_EQ(files.read(), verified);
  EXPECT_EQ(told, 2);
}

// What they owed is forgotten: equal to each other, not to a run without an interruption.
TEST_P(WarmStart, RanksAreEqualWhereGradientsTravelAsInt8) {
  const auto until = [&](int64_t steps) {
    WorldOptions options = Until(steps);
    options.spec.mutable_parallel()->set_gradient_dtype(v1::GRADIENT_DTYPE_INT8);
    return options;
  };
  TrainWorld(until(4));
  const std::vector<RankResult> results = TrainWorld(until(10));
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.start.step, Step(4));
    EXPECT_EQ(result.fingerprint, results[0].fingerprint);
  }
}

// A checkpoint has what they owe and memory has not; neither rank has held other bits.
TEST_P(WarmStart, MemoryTakesWhatInt8GradientsOweFromACheckpointOfTheSameStep) {
  const auto until = [&](int64_t steps) {
    WorldOptions options = Until(steps, /*ranks=*/2, /*checkpoint=*/true);
    options.spec.mutable_parallel()->set_gradient_dtype(v1::GRADIENT_DTYPE_INT8);
    options.spec.mutable_checkpoint()->set_every_steps(4);
    options.spec.mutable_checkpoint()->set_copies(1);
    options.own_folders = true;
    return options;
  };
  TrainWorld(until(4));
  const std::vector<RankResult> results = TrainWorld(until(10));
  EXPECT_EQ(results[0].start.origin, "checkpoint " + until(10).checkpoints + "/0/step-00000004");
  EXPECT_EQ(results[1].start.origin, "warm state of step 4");
  WorldOptions straight = until(10);
  straight.warm = "";
  straight.checkpoints = folder_ / "straight";
  EXPECT_EQ(results[0].fingerprint, TrainWorld(straight)[0].fingerprint);
  EXPECT_EQ(results[1].fingerprint, results[0].fingerprint);
}

TEST_P(WarmStart, GoesOnAboveFrozenParameters) {
  const auto until = [&](int64_t steps, const std::string& warm, const std::string& checkpoints) {
    WorldOptions options = Until(steps);
    options.spec.mutable_train()->add_freeze("model.layers.0.*");
    options.warm = warm;
    options.checkpoints = folder_ / checkpoints;
    return options;
  };
  TrainWorld(until(4, folder_ / "warm", "checkpoints"));
  const std::vector<RankResult> results = TrainWorld(until(10, folder_ / "warm", "checkpoints"));
  const std::vector<RankResult> straight = TrainWorld(until(10, "", "straight"));
  EXPECT_EQ(results[0].start.step, Step(4));
  EXPECT_EQ(results[0].fingerprint, straight[0].fingerprint);
}

INSTANTIATE_TEST_SUITE_P(InPlaceAndCopies, WarmStart, testing::Bool(),
                         [](const auto& info) { return info.param ? "Copies" : "InPlace"; });

}  // namespace
}  // namespace espalier
