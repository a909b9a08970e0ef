// A worker that dies leaves one line that names the place.
#include "worker/ending.h"

#include <gtest/gtest.h>

#include <csignal>
#include <stdexcept>
#include <thread>

namespace espalier {
namespace {

ProgressBoard& InStepSeven() {
  static ProgressBoard& board = *new ProgressBoard;
  board.step = 7;
  board.Enter(v1::PHASE_COMPUTE);
  InstallLastWords(board, 3);
  return board;
}

TEST(LastWordsDeathTest, ASignalNamesRankStepAndPhase) {
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT}) {
    EXPECT_EXIT(
        {
          InStepSeven();
          raise(number);
        },
        testing::KilledBySignal(number), "rank 3 died of SIG[A-Z]+ in step 7, computing");
  }
}

TEST(LastWordsDeathTest, AnExceptionOnAnyThreadNamesItsText) {
  const auto die = [] {
    InStepSeven().Enter(v1::PHASE_EXCHANGE);
    std::thread([] { throw std::runtime_error("out of luck"); }).join();
  };
  EXPECT_EXIT(die(), testing::KilledBySignal(SIGABRT),
              "rank 3 died of an exception that nobody caught in step 7, exchanging gradients: "
              "out of luck");
}

// Scripts go by it: README.md has the table.
TEST(ExitOf, TellsBadInputFromFailureAndFromALoss) {
  EXPECT_EQ(ExitOf(absl::OkStatus()), WorkerExit::kDone);
  for (const absl::Status& bad :
       {absl::InvalidArgumentError("option"), absl::NotFoundError("no data"),
        absl::DataLossError("a shard is cut"), absl::PermissionDeniedError("data of another"),
        absl::UnimplementedError("a type of weights"), absl::AlreadyExistsError("output")}) {
    EXPECT_EQ(ExitOf(bad), WorkerExit::kBadInput) << bad;
  }
  for (const absl::Status& failed :
       {absl::FailedPreconditionError("loss"), absl::ResourceExhaustedError("disk"),
        absl::InternalError("no reason"), absl::UnknownError("none")}) {
    EXPECT_EQ(ExitOf(failed), WorkerExit::kFailed) << failed;
  }
  for (const absl::Status& lost :
       {absl::UnavailableError("peer"), absl::DeadlineExceededError("wait"),
        absl::AbortedError("another writes there"), absl::CancelledError("gone")}) {
    EXPECT_EQ(ExitOf(lost), WorkerExit::kLost) << lost;
  }
}

}  // namespace
}  // namespace espalier
