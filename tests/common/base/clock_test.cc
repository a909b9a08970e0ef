#include "common/base/clock.h"

#include <gtest/gtest.h>

#include <thread>

namespace espalier {
namespace {

class TwoClocks : public Clock {
 public:
  absl::Time Now() override { return wall; }
  absl::Duration Monotonic() override { return monotonic; }
  void Sleep(absl::Duration) override {}
  void Advance(absl::Duration duration) {
    wall += duration;
    monotonic += duration;
  }
  absl::Time wall = absl::FromUnixSeconds(1000);
  absl::Duration monotonic;
};

TEST(SteadyTime, FollowsTheWallClock) {
  TwoClocks clocks;
  SteadyTime time(clocks);
  clocks.Advance(absl::Seconds(5));
  EXPECT_EQ(time.Now(), absl::FromUnixSeconds(1005));
}

TEST(SteadyTime, AJumpOfTheWallClockIsTakenInSlowly) {
  for (const absl::Duration jump : {absl::Hours(1), -absl::Hours(1)}) {
    TwoClocks clocks;
    SteadyTime time(clocks);
    clocks.wall += jump;
    const absl::Time before = time.Now();
    EXPECT_EQ(before, absl::FromUnixSeconds(1000)) << "no time has passed";
    clocks.Advance(absl::Seconds(10));
    const absl::Duration passed = time.Now() - before;
    EXPECT_GE(passed, absl::Seconds(9));
    EXPECT_LE(passed, absl::Seconds(11));
    for (int i = 0; i < 20; ++i) {
      clocks.Advance(absl::Hours(1));
      time.Now();
    }
    EXPECT_EQ(time.Now(), clocks.wall) << "in the end they agree";
  }
}

TEST(SteadyTime, NeverGoesBack) {
  TwoClocks clocks;
  SteadyTime time(clocks);
  absl::Time last = time.Now();
  for (int i = 0; i < 100; ++i) {
    clocks.wall -= absl::Minutes(i);
    clocks.monotonic += absl::Milliseconds(i);
    const absl::Time now = time.Now();
    EXPECT_GE(now, last);
    last = now;
  }
}

TEST(SteadyCondition, EndsAWaitWhenWhatIsWaitedForHolds) {
  absl::Mutex mutex;
  SteadyCondition condition;
  bool done = false;
  std::thread other([&] {
    absl::MutexLock lock(&mutex);
    done = true;
    condition.WakeAll();
  });
  {
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(condition.Wait(mutex, absl::InfiniteDuration(), [&] { return done; }));
  }
  other.join();
}

TEST(SteadyCondition, GivesUpAfterItsTimeWithTheMutexHeld) {
  absl::Mutex mutex;
  SteadyCondition condition;
  absl::MutexLock lock(&mutex);
  EXPECT_FALSE(condition.Wait(mutex, absl::Milliseconds(1), [] { return false; }));
  mutex.AssertHeld();
}

}  // namespace
}  // namespace espalier
