// Work that one rank does for long is seen by those who watch it.
#include "worker/sync/together.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "worker/collective/in_process.h"

namespace espalier {
namespace {

TEST(RunTogether, ShowsProgressOfARankAloneWhileTheWorkGoesOn) {
  const auto world = InProcessGroup(1, absl::Seconds(30), {});
  ProgressBoard board;
  const absl::Status status = RunTogether({*world[0], RealClock(), board}, [&] {
    const absl::Time give_up = absl::Now() + absl::Seconds(60);
    for (int64_t seen = 0; seen < 3; seen = board.collective) {
      if (absl::Now() > give_up) return absl::DeadlineExceededError("nothing moved");
      absl::SleepFor(absl::Milliseconds(1));
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace espalier
