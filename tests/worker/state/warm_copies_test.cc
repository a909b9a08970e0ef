// How often copies of what is trained are made, and what is there when a run ends.
#include "worker/state/warm_copies.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"

namespace espalier {
namespace {

// Moved by the test, and by copies, each of which keeps an update waiting for a while.
class CopyClock : public Clock {
 public:
  absl::Time Now() override { return absl::UnixEpoch() + Monotonic(); }
  absl::Duration Monotonic() override {
    absl::MutexLock lock(&mutex_);
    if (fails_) throw std::runtime_error("the device is lost");
    waited_for_ = update_begins_;
    return now_;
  }
  void Sleep(absl::Duration duration) override {
    absl::MutexLock lock(&mutex_);
    now_ += duration;
  }

  // A copy is done so long after an update has begun to wait for it; zero: before.
  void set_wait(absl::Duration wait) {
    absl::MutexLock lock(&mutex_);
    wait_ = wait;
  }
  void UpdateBegins(bool begins) {
    absl::MutexLock lock(&mutex_);
    update_begins_ = begins;
    waited_for_ = false;
  }
  // Like a device that fails, from wherever it is asked.
  void Fail() {
    absl::MutexLock lock(&mutex_);
    fails_ = true;
  }
  // On the thread that copies.
  void Copying() {
    absl::MutexLock lock(&mutex_);
    const auto goes_on = [this] { return waited_for_ || wait_ == absl::ZeroDuration(); };
    mutex_.Await(absl::Condition(&goes_on));
    now_ += wait_;
    waited_ += wait_;
  }
  absl::Duration waited() const {
    absl::MutexLock lock(&mutex_);
    return waited_;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Duration now_, wait_, waited_;
  bool update_begins_ = false, waited_for_ = false, fails_ = false;
};

CopyClock* clock_of_copies = nullptr;
void AtStore() { clock_of_copies->Copying(); }

class WarmCopiesTest : public testing::Test {
 protected:
  WarmCopiesTest() {
    clock_of_copies = &clock_;
    identity_.spec = TinySpec(10);
    identity_.data_hash = "made up";
    replica_ = *Replica::Create(TinyConfig(), identity_.spec.train(), torch::kCPU);
    replica_->parameters().Initialize(/*seed=*/5, /*initializer_range=*/0.3);
    warm_ = Open();
    warm_->set_at_store(AtStore);
  }
  ~WarmCopiesTest() override {
    clock_.set_wait(absl::ZeroDuration());
    warm_.reset();
    for (const RegisteredSegment& one : Listed()) RemoveSegment(folder_.path(), one.name);
  }

  std::unique_ptr<WarmCopies> Open() {
    return *WarmCopies::Open({.registry = folder_.path(), .node = "studio"}, identity_, *replica_,
                             clock_);
  }
  // One whose passes take that long.
  void Step(absl::Duration passes) {
    clock_.Sleep(passes);
    BeginUpdate();
    replica_->counters().updates = ++replica_->counters().step;
    warm_->Commit(replica_->counters());
  }
  void BeginUpdate() {
    clock_.UpdateBegins(true);
    warm_->Begin(replica_->counters(), {});
    clock_.UpdateBegins(false);
  }
  // Of which the first step alone is copied, since an update waits long for it.
  void TrainTo(int64_t step) {
    clock_.set_wait(absl::Seconds(1));
    while (replica_->counters().step < step) Step(absl::Seconds(1));
    clock_.set_wait(absl::ZeroDuration());
    EXPECT_EQ(CopiedStep(), 1);
  }
  std::vector<RegisteredSegment> Listed() const { return *ListSegments(folder_.path(), "studio"); }
  // As the node's agent sees it.
  int64_t CopiedStep() const { return Listed().front().mark; }

  const TestFolder folder_;
  CopyClock clock_;
  RunIdentity identity_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<WarmCopies> warm_;
};

TEST_F(WarmCopiesTest, AreMadeOfEveryStepWhereNoUpdateWaits) {
  for (int64_t step = 1; step <= 5; ++step) {
    Step(absl::Milliseconds(1));
    BeginUpdate();
    EXPECT_EQ(CopiedStep(), step);
  }
}

TEST_F(WarmCopiesTest, KeepUpdatesWaitingForAHundredthOfTheTimeAtMost) {
  clock_.set_wait(absl::Milliseconds(100));
  Step(absl::Seconds(10));
  int64_t copies = 0;
  for (int64_t before = CopiedStep(); replica_->counters().step < 1000; before = CopiedStep()) {
    Step(absl::Seconds(10));
    copies += CopiedStep() != before;
  }
  const absl::Duration one = clock_.waited() / copies;
  EXPECT_LE(clock_.waited(), clock_.Monotonic() / 100 + one);
  EXPECT_GE(clock_.waited(), clock_.Monotonic() / 200) << "it makes too few";
}

TEST_F(WarmCopiesTest, AreMadeAtTheEndOfWhatWasHeldBack) {
  TrainTo(3);
  warm_->Finish();
  EXPECT_EQ(CopiedStep(), 3);
  warm_.reset();
  const std::unique_ptr<WarmCopies> next = Open();
  ASSERT_TRUE(next->found());
  EXPECT_EQ(next->found()->step, 3);
}

// What the replica holds then is neither of the one step nor of the other.
TEST_F(WarmCopiesTest, AreNotMadeAtTheEndWhereAnUpdateWasBegun) {
  TrainTo(3);
  BeginUpdate();
  warm_->Finish();
  EXPECT_EQ(CopiedStep(), 1);
}

TEST_F(WarmCopiesTest, ADeviceThatFailsAtTheEndLeavesTheRunItsOwnReason) {
  TrainTo(2);
  clock_.Fail();
  EXPECT_NO_THROW(warm_->Finish());
  EXPECT_EQ(CopiedStep(), 1) << "what was copied before counts";
}

}  // namespace
}  // namespace espalier
