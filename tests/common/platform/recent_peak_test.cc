// How the highest memory since a restart is known where the system keeps only the highest ever.
#include "common/platform/recent_peak.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(RecentPeak, ARecordSinceTheRestartIsKnownWithoutALook) {
  RecentPeak peak;
  peak.Restart(10, 50);
  EXPECT_EQ(peak.Look(20, 80), 80);
}

TEST(RecentPeak, BelowTheRecordTheHighestLookCounts) {
  RecentPeak peak;
  peak.Restart(10, 50);
  peak.Look(40, 50);
  EXPECT_EQ(peak.Look(15, 50), 40) << "what a pass held, read when it is over";
}

TEST(RecentPeak, ARestartForgetsTheLooksBefore) {
  RecentPeak peak;
  peak.Restart(10, 50);
  peak.Look(40, 50);
  peak.Restart(12, 50);
  EXPECT_EQ(peak.Look(11, 50), 12);
}

}  // namespace
}  // namespace espalier
