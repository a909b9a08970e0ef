// Work that one rank does for long is seen by those who watch it.
#include "worker/sync/together.h"

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "worker/collective/in_process.h"
#include "worker/sync/background_work.h"

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

// Moved by the test alone, so that a busy machine is not taken for one that hangs.
class HandClock : public Clock {
 public:
  absl::Time Now() override { return absl::UnixEpoch() + Monotonic(); }
  absl::Duration Monotonic() override { return absl::Milliseconds(passed_ms_.load()); }
  void Sleep(absl::Duration) override { absl::SleepFor(absl::Milliseconds(1)); }
  void AdvanceMilliseconds(int64_t passed) { passed_ms_ += passed; }

 private:
  std::atomic<int64_t> passed_ms_{0};
};

// A disk or a network share that does not answer: whoever waits for it must not wait for ever.
TEST(RunTogether, WorkThatHangsEndsTheWaitOfAllAndNamesItsRank) {
  const auto world = InProcessGroup(2, absl::Seconds(30), {});
  // Of the thread that is left behind, too.
  const auto answered = std::make_shared<absl::Notification>();
  HandClock clock;
  std::atomic<int> waiting{2};
  std::vector<absl::Status> results(2);
  std::vector<std::thread> threads;
  std::vector<ProgressBoard> boards(2);
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Clock& time = rank == 1 ? static_cast<Clock&>(clock) : RealClock();
      const RankContext context{*world[rank], time, boards[rank], absl::Minutes(1)};
      results[rank] = RunTogether(context, [answered, rank] {
        if (rank == 1) answered->WaitForNotification();
        return absl::OkStatus();
      });
      --waiting;
    });
  }
  while (waiting > 0) {
    clock.AdvanceMilliseconds(1000);
    absl::SleepFor(absl::Milliseconds(1));
  }
  for (std::thread& thread : threads) thread.join();
  answered->Notify();
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kDeadlineExceeded) << result;
    EXPECT_EQ(FailedRanks(result), (std::vector<int32_t>{1}));
  }
}

void UseTheProcessor() {
  const std::clock_t start = std::clock();
  while (std::clock() - start < CLOCKS_PER_SEC / 50) {
  }
}

TEST(RunTogether, WorkThatComputesForLongIsNotTakenToHang) {
  const auto world = InProcessGroup(1, absl::Seconds(30), {});
  ProgressBoard board;
  HandClock clock;
  const RankContext context{*world[0], clock, board, absl::Milliseconds(500)};
  const absl::Status status = RunTogether(context, [&clock] {
    for (int part = 0; part < 10; ++part) {
      UseTheProcessor();
      clock.AdvanceMilliseconds(400);
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

// On macOS the clock counts the hours for which a lid was closed.
TEST(BackgroundWork, IsNotTakenToHangForWhatTheMachineSlept) {
  HandClock clock;
  absl::Notification answered;
  BackgroundWork work(
      [&answered] {
        answered.WaitForNotification();
        return absl::OkStatus();
      },
      clock);
  absl::SleepFor(absl::Milliseconds(20));  // its thread waits by now, and uses nothing
  work.Stalled();
  clock.AdvanceMilliseconds(absl::ToInt64Milliseconds(absl::Hours(8)));
  EXPECT_LT(work.Stalled(), absl::Seconds(30));
  for (int second = 0; second < 120; ++second) {
    clock.AdvanceMilliseconds(1000);
    work.Stalled();
  }
  EXPECT_GT(work.Stalled(), absl::Minutes(1));
  answered.Notify();
}

TEST(RunTogether, MemoryThatRunsOutInTheWorkIsSaidToHave) {
  const auto world = InProcessGroup(1, absl::Seconds(30), {});
  ProgressBoard board;
  const absl::Status status = RunTogether({*world[0], RealClock(), board},
                                          []() -> absl::Status { throw std::bad_alloc(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
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
