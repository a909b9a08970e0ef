#include "worker/collective/back_off.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

absl::Duration PauseAfter(BackOff& back_off, BackOff::Poll poll, int times) {
  absl::Duration pause;
  for (int i = 0; i < times; ++i) pause = back_off.After(poll);
  return pause;
}

TEST(BackOff, IdlePollsLeadToPausesOfAboutAMillisecond) {
  BackOff back_off;
  EXPECT_EQ(PauseAfter(back_off, BackOff::Poll::kIdle, 50), absl::ZeroDuration());
  EXPECT_EQ(PauseAfter(back_off, BackOff::Poll::kIdle, 1000), absl::Microseconds(1024));
}

TEST(BackOff, PollsThatCarryBytesAreNotFollowedByAPause) {
  BackOff back_off;
  PauseAfter(back_off, BackOff::Poll::kIdle, 1000);
  EXPECT_EQ(back_off.After(BackOff::Poll::kMoved), absl::ZeroDuration());
  PauseAfter(back_off, BackOff::Poll::kIdle, 1000);
  EXPECT_EQ(back_off.After(BackOff::Poll::kCompleted), absl::ZeroDuration());
}

}  // namespace
}  // namespace espalier
