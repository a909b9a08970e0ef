// How long a job stood still, and with what.
#include "coordinator/core/interruption.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(Interruption, OfAFaultIsTakenApartFromTheLastProgressToTheNextStep) {
  Interruption interruption;
  EXPECT_EQ(interruption.Committed(At(5)), std::nullopt) << "a step like any other";
  interruption.Entered(JobState::kRecovering, At(10), At(12));
  interruption.Ended(At(12.5));
  interruption.Entered(JobState::kLaunching, At(0), At(13.5));
  interruption.Attached(Interruption::Ranks::kFirst, At(13.75));
  interruption.Attached(Interruption::Ranks::kAll, At(14));
  interruption.Entered(JobState::kRunning, At(0), At(14.25));
  EXPECT_EQ(interruption.Committed(At(15)),
            "stood still for 5.00 s: detect 2.00 s, stop 0.50 s, wait 1.00 s, launch 0.25 s, "
            "attach 0.25 s, state 0.25 s, step 0.75 s");
  EXPECT_EQ(interruption.Committed(At(16)), std::nullopt) << "told once";
  EXPECT_EQ(interruption.count(), 1);
  EXPECT_EQ(interruption.totals()[Interruption::kDetect], 2);
}

TEST(Interruption, OfAPlannedChangeBeginsWhenItIsDecided) {
  Interruption interruption;
  interruption.Entered(JobState::kRegrouping, At(1), At(10));
  interruption.Ended(At(11));
  interruption.Entered(JobState::kLaunching, At(0), At(11));
  interruption.Attached(Interruption::Ranks::kAll, At(12));
  interruption.Entered(JobState::kRunning, At(0), At(12));
  EXPECT_EQ(interruption.Committed(At(12.5)),
            "stood still for 2.50 s: detect 0.00 s, stop 1.00 s, wait 0.00 s, launch 1.00 s, "
            "attach 0.00 s, state 0.00 s, step 0.50 s");
}

TEST(Interruption, OfAPlannedChangeBeginsAfterTheStepInHand) {
  Interruption interruption;
  interruption.Entered(JobState::kRegrouping, At(1), At(10));
  EXPECT_EQ(interruption.Committed(At(10.75)), std::nullopt);
  interruption.Ended(At(11));
  interruption.Entered(JobState::kLaunching, At(0), At(11));
  interruption.Attached(Interruption::Ranks::kAll, At(12));
  interruption.Entered(JobState::kRunning, At(0), At(12));
  EXPECT_EQ(interruption.Committed(At(12.5)),
            "stood still for 1.75 s: detect 0.00 s, stop 0.25 s, wait 0.00 s, launch 1.00 s, "
            "attach 0.00 s, state 0.00 s, step 0.50 s");
}

TEST(Interruption, CountsEveryTryUntilAStepIsCommitted) {
  Interruption interruption;
  for (const double begin : {10.0, 20.0}) {
    interruption.Entered(JobState::kRecovering, At(begin), At(begin + 1));
    interruption.Ended(At(begin + 2));
    interruption.Entered(JobState::kLaunching, At(0), At(begin + 4));
  }
  interruption.Attached(Interruption::Ranks::kAll, At(25));
  interruption.Entered(JobState::kRunning, At(0), At(26));
  EXPECT_EQ(interruption.Committed(At(27)),
            "stood still for 17.00 s: detect 1.00 s, stop 2.00 s, wait 4.00 s, launch 8.00 s, "
            "attach 0.00 s, "
            "state 1.00 s, step 1.00 s");
  EXPECT_EQ(interruption.count(), 1);
}

TEST(Interruption, OfAJobThatIsPausedIsNone) {
  Interruption interruption;
  interruption.Entered(JobState::kRecovering, At(10), At(11));
  interruption.Entered(JobState::kPausedHard, At(0), At(12));
  interruption.Entered(JobState::kQueued, At(0), At(100));
  interruption.Entered(JobState::kLaunching, At(0), At(101));
  interruption.Entered(JobState::kRunning, At(0), At(102));
  EXPECT_EQ(interruption.Committed(At(103)), std::nullopt);
  EXPECT_EQ(interruption.count(), 0);
}

}  // namespace
}  // namespace espalier
