// Work that one rank does for long is seen by those who watch it.
#include "worker/sync/together.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

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

// So that one machine's error is not taken for everybody's.
TEST(RunTogether, ASharedErrorNamesTheRanksAtWhichItArose) {
  const auto world = InProcessGroup(3, absl::Seconds(30), {});
  std::vector<absl::Status> results(3);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ProgressBoard board;
      results[rank] = RunTogether({*world[rank], RealClock(), board}, [&] {
        return rank == 0 ? absl::OkStatus() : absl::ResourceExhaustedError("no space left");
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) {
    EXPECT_EQ(result, results[0]);
    EXPECT_EQ(result.message(), "rank 1: no space left");
    EXPECT_EQ(FailedRanks(result), (std::vector<int32_t>{1, 2}));
  }
  EXPECT_TRUE(FailedRanks(absl::InternalError("my own")).empty());
}

}  // namespace
}  // namespace espalier
