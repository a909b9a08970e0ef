// Checkpoints that are due are written while steps go on: of the state of their step, one at a
// time, and none of them stops a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "worker/state/checkpoint.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The machine's, on which files of one name are not made before Release, or not at all.
class HeldFiles : public FileSystem {
 public:
  explicit HeldFiles(std::string name) : name_(std::move(name)) {}

  void Release() {
    if (!released_.HasBeenNotified()) released_.Notify();
  }
  void Refuse() { refuses_ = true; }
  int created() const { return created_; }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    if (absl::EndsWith(path, name_)) {
      ++created_;
      if (refuses_) return absl::ResourceExhaustedError("the disk is full");
      released_.WaitForNotification();
    }
    return files_.Create(path);
  }
  absl::StatusOr<std::string> Read(const std::string& path, int64_t limit) override {
    return files_.Read(path, limit);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return files_.List(path);
  }
  absl::Status MakeDirectory(const std::string& path) override {
    return files_.MakeDirectory(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    RETURN_IF_ERROR(files_.Rename(from, to));
    return on_rename_ ? on_rename_(to) : absl::OkStatus();
  }
  void OnRename(std::function<absl::Status(const std::string& to)> told) { on_rename_ = told; }
  absl::Status Remove(const std::string& path) override { return files_.Remove(path); }
  absl::Status SyncDirectory(const std::string& path) override {
    return files_.SyncDirectory(path);
  }

 private:
  const std::string name_;
  FileSystem& files_ = PosixFileSystem();
  absl::Notification released_;
  std::atomic<bool> refuses_ = false;
  std::atomic<int> created_ = 0;
  std::function<absl::Status(const std::string& to)> on_rename_;
};

class CheckpointBesideSteps : public testing::Test {
 protected:
  ~CheckpointBesideSteps() override {
    const auto listed = ListSegments(folder_ / "memory", "studio");
    if (!listed.ok()) return;
    for (const RegisteredSegment& one : *listed) RemoveSegment(folder_ / "memory", one.name);
  }
  // A checkpoint after every fourth of 12 steps. What a rank's coordinator hears is written down.
  WorldOptions Options(int ranks) {
    WorldOptions options;
    options.ranks = ranks;
    options.spec = TinySpec(12);
    options.spec.mutable_checkpoint()->set_every_steps(4);
    options.spec.mutable_checkpoint()->set_keep(10);
    options.checkpoints = folder_ / "checkpoints";
    options.checkpoint_files = [this](int) { return &files_; };
    options.script = [this](int rank, ScriptedClient& client) {
      if (rank != 0) return;
      client.on_report = [this](ScriptedClient& from, const v1::AttachRequest& message) {
        Hear(from, message);
      };
    };
    return options;
  }
  void Hear(ScriptedClient& from, const v1::AttachRequest& message) {
    if (message.has_step()) heard_.push_back(absl::StrCat("step ", message.step().step()));
    if (message.has_checkpoint()) {
      const v1::CheckpointReport& report = message.checkpoint();
      heard_.push_back(
          absl::StrCat(report.error().empty() ? "checkpoint " : "no checkpoint ", report.step()));
    }
    if (on_report_) on_report_(from, message);
  }
  // The disk answers before the thread that waits for it is left behind.
  std::thread ReleaseSoon() {
    return std::thread([this] {
      absl::SleepFor(absl::Milliseconds(200));
      files_.Release();
    });
  }
  int64_t PlaceOf(const std::string& what) const {
    const auto at = std::find(heard_.begin(), heard_.end(), what);
    EXPECT_NE(at, heard_.end()) << what;
    return at - heard_.begin();
  }

  const TestFolder folder_;
  HeldFiles files_{"model.safetensors"};
  std::vector<std::string> heard_;  // by rank 0's coordinator
  std::function<void(ScriptedClient&, const v1::AttachRequest&)> on_report_;
};

TEST_F(CheckpointBesideSteps, StepsGoOnWhileItIsWrittenAndItHoldsItsOwn) {
  on_report_ = [this](ScriptedClient&, const v1::AttachRequest& message) {
    if (message.has_step() && message.step().step() == 6) files_.Release();
  };
  WorldOptions options = Options(2);
  const uint64_t end = TrainWorld(options)[0].fingerprint;
  EXPECT_GT(PlaceOf("checkpoint 4"), PlaceOf("step 6"));
  EXPECT_LT(PlaceOf("checkpoint 8"), PlaceOf("checkpoint 12"));
  // From it alone the run comes to the same end.
  for (const char* later : {"checkpoints/step-00000008", "checkpoints/step-00000012"}) {
    ASSERT_TRUE(PosixFileSystem().Remove(folder_ / later).ok());
  }
  const std::vector<RankResult> again = TrainWorld(options);
  EXPECT_EQ(again[0].start.step, Step(4));
  EXPECT_EQ(again[0].fingerprint, end);
}

TEST_F(CheckpointBesideSteps, TheNextOneThatIsDueWaitsForIt) {
  files_.Release();
  WorldOptions options = Options(2);
  options.spec.mutable_checkpoint()->set_every_steps(1);
  TrainWorld(options);
  std::vector<std::string> written;
  for (const std::string& one : heard_) {
    if (absl::StartsWith(one, "checkpoint ")) written.push_back(one);
  }
  EXPECT_THAT(written,
              ElementsAre("checkpoint 1", "checkpoint 2", "checkpoint 3", "checkpoint 4",
                          "checkpoint 5", "checkpoint 6", "checkpoint 7", "checkpoint 8",
                          "checkpoint 9", "checkpoint 10", "checkpoint 11", "checkpoint 12"));
}

TEST_F(CheckpointBesideSteps, AStopWaitsForIt) {
  on_report_ = [this](ScriptedClient& client, const v1::AttachRequest& message) {
    if (!message.has_step() || message.step().step() != 5) return;
    client.Set(StopDirective(StopKeeps::kNothing));
    files_.Release();
  };
  EXPECT_EQ(*TrainWorld(Options(2))[0].outcome, v1::OUTCOME_STOPPED);
  EXPECT_EQ(heard_.back(), "checkpoint 4");
}

// A lid that closes leaves it five seconds.
TEST_F(CheckpointBesideSteps, AStopGivesItUpWhereMemoryKeepsTheState) {
  std::thread disk;
  on_report_ = [&](ScriptedClient& client, const v1::AttachRequest& message) {
    if (!message.has_step() || message.step().step() != 5) return;
    client.Set(StopDirective(StopKeeps::kNothing));
    disk = ReleaseSoon();
  };
  WorldOptions options = Options(2);
  options.warm = folder_ / "memory";
  const std::vector<RankResult> results = TrainWorld(options);
  disk.join();
  EXPECT_EQ(*results[0].outcome, v1::OUTCOME_STOPPED);
  EXPECT_TRUE(results[0].client->checkpoints().empty());
}

// The checkpoint's model has so many bytes, as it says itself; they take no place on the disk.
absl::Status Grow(const std::string& folder, int64_t bytes) {
  const std::string path = folder + "/manifest.json";
  ASSIGN_OR_RETURN(const std::string text, PosixFileSystem().Read(path, 1 << 20));
  ASSIGN_OR_RETURN(CheckpointManifest manifest, CheckpointManifestFromJson(text));
  for (CheckpointFile& file : manifest.files) {
    if (file.name != "model.safetensors") continue;
    file.bytes = bytes;
    std::filesystem::resize_file(folder + "/" + file.name, bytes);
  }
  return WriteFileAtomically(PosixFileSystem(), path, CheckpointManifestToJson(manifest));
}

// Of a large model that takes longer than a machine has which falls asleep.
TEST_F(CheckpointBesideSteps, AStopThatDoesNotWaitForItDoesNotReadItBack) {
  absl::Notification published;
  files_.Release();
  files_.OnRename([&](const std::string& to) {
    if (!absl::EndsWith(to, "step-00000004")) return absl::OkStatus();
    const absl::Status grown = Grow(to, int64_t{32} << 30);
    published.Notify();
    return grown;
  });
  absl::Duration asked;
  on_report_ = [&](ScriptedClient& client, const v1::AttachRequest& message) {
    if (!message.has_step() || message.step().step() != 5) return;
    published.WaitForNotification();
    v1::Directive stop;
    stop.set_number(1);
    stop.set_run_state(v1::RUN_STATE_STOP);
    client.Set(stop);
    asked = RealClock().Monotonic();
  };
  WorldOptions options = Options(2);
  options.warm = folder_ / "memory";
  const std::vector<RankResult> results = TrainWorld(options);
  EXPECT_LT(RealClock().Monotonic() - asked, absl::Seconds(4));
  EXPECT_EQ(*results[0].outcome, v1::OUTCOME_STOPPED);
  EXPECT_TRUE(results[0].client->checkpoints().empty());
  EXPECT_THAT(Names(folder_ / "checkpoints"), ElementsAre(".writer", "step-00000004"));
}

// A machine may leave because it has no time.
TEST_F(CheckpointBesideSteps, AStopWithANewerOneGivesItUp) {
  std::thread disk;
  on_report_ = [&](ScriptedClient& client, const v1::AttachRequest& message) {
    if (!message.has_step() || message.step().step() != 5) return;
    client.Set(StopDirective(StopKeeps::kCheckpoint));
    disk = ReleaseSoon();
  };
  const std::vector<RankResult> results = TrainWorld(Options(2));
  disk.join();
  EXPECT_EQ(*results[0].outcome, v1::OUTCOME_STOPPED);
  const int64_t stopped_at = results[0].replica->step().value();
  std::vector<int64_t> reported;
  for (const v1::CheckpointReport& report : results[0].client->checkpoints()) {
    reported.push_back(report.step());
  }
  EXPECT_THAT(reported, ElementsAre(stopped_at));
  EXPECT_GT(stopped_at, 4);
}

// Also where it takes longer than a stop waits for others: given up, it would be written anew.
TEST_F(CheckpointBesideSteps, AStopThatWantsThisVeryOneWaitsToItsEnd) {
  std::thread disk;
  on_report_ = [&](ScriptedClient& client, const v1::AttachRequest& message) {
    if (!message.has_step() || message.step().step() != 3) return;
    v1::Directive stop;
    stop.set_number(1);
    stop.set_run_state(v1::RUN_STATE_STOP);
    stop.set_checkpoint_before_stop(true);
    client.Set(stop);
    disk = std::thread([this] {
      absl::SleepFor(absl::Seconds(6));
      files_.Release();
    });
  };
  const std::vector<RankResult> results = TrainWorld(Options(2));
  disk.join();
  EXPECT_EQ(*results[0].outcome, v1::OUTCOME_STOPPED);
  EXPECT_EQ(heard_.back(), "checkpoint 4");
  EXPECT_EQ(results[0].client->checkpoints().size(), 1u);
  EXPECT_EQ(files_.created(), 1);
}

TEST_F(CheckpointBesideSteps, IsFinishedInAPauseWhichDoesNotWaitForIt) {
  on_report_ = [this](ScriptedClient& client, const v1::AttachRequest& message) {
    v1::Directive directive;
    if (message.has_step() && message.step().step() == 4) {
      directive.set_number(1);
      directive.set_run_state(v1::RUN_STATE_PAUSE);
      client.Set(directive);
    } else if (message.has_ack() && message.ack().run_state() == v1::RUN_STATE_PAUSE) {
      heard_.push_back("paused");
      files_.Release();
    } else if (message.has_checkpoint() && message.checkpoint().step() == 4) {
      directive.set_number(2);
      directive.set_run_state(v1::RUN_STATE_RUN);
      client.Set(directive);
    }
  };
  EXPECT_TRUE(TrainWorld(Options(2))[0].outcome.ok());
  EXPECT_LT(PlaceOf("paused"), PlaceOf("checkpoint 4"));
  EXPECT_LT(PlaceOf("checkpoint 4"), PlaceOf("step 5"));
}

TEST_F(CheckpointBesideSteps, AFullDiskCostsTheCheckpointAndNotTheRun) {
  files_.Refuse();
  on_report_ = [](ScriptedClient& client, const v1::AttachRequest& message) {
    if (!message.has_step() || message.step().step() != 10) return;
    client.Set(StopDirective(StopKeeps::kNothing));
  };
  const std::vector<RankResult> results = TrainWorld(Options(2));
  EXPECT_EQ(*results[0].outcome, v1::OUTCOME_STOPPED);
  const std::vector<v1::CheckpointReport> reports = results[0].client->checkpoints();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_THAT(reports[0].error(), HasSubstr("the disk is full"));
  EXPECT_EQ(reports[1].step(), 8);
}

TEST_F(CheckpointBesideSteps, WhereACopyDoesNotFitTheStepsWait) {
  files_.Release();
  WorldOptions options = Options(2);
  options.spec.mutable_batch()->add_micro_batch(4);
  options.memory_limit_bytes = 1;
  EXPECT_TRUE(TrainWorld(options)[0].outcome.ok());
  EXPECT_EQ(PlaceOf("checkpoint 4"), PlaceOf("step 3") + 1);
  EXPECT_EQ(PlaceOf("checkpoint 8"), PlaceOf("step 7") + 1);
}

// A run that ends in an error does not wait for what it was writing.
TEST_F(CheckpointBesideSteps, AFailedRunLeavesNoHalfOfIt) {
  WorldOptions options = Options(1);
  options.wrap = [this](int, Replica&, std::unique_ptr<SampleSource> source) {
    class Fails : public SampleSource {
     public:
      Fails(std::unique_ptr<SampleSource> source, HeldFiles& files)
          : source_(std::move(source)), files_(files) {}
      absl::StatusOr<std::shared_ptr<const Samples>> Fetch(Step step, SlotRange slots) override {
        if (step < Step(6)) return source_->Fetch(step, slots);
        files_.Release();
        return absl::DataLossError("the data is gone");
      }

     private:
      std::unique_ptr<SampleSource> source_;
      HeldFiles& files_;
    };
    return std::make_unique<Fails>(std::move(source), files_);
  };
  EXPECT_FALSE(TrainWorld(options)[0].outcome.ok());
  const auto left = PosixFileSystem().List(folder_ / "checkpoints");
  ASSERT_TRUE(left.ok());
  for (const std::string& name : *left) {
    EXPECT_TRUE(name == ".writer" || name == "step-00000004") << name;
  }
}

}  // namespace
}  // namespace espalier
