#include "coordinator/journal/state_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/coordinator/scratch_folder.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST(StateLock, IsHeldByOneUntilItGoes) {
  ScratchFolder folder;
  {
    absl::StatusOr<StateLock> first = StateLock::Take(folder.root(), RealClock());
    ASSERT_TRUE(first.ok()) << first.status();
    const absl::Status second =
        StateLock::Take(folder.root(), RealClock(), absl::ZeroDuration()).status();
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(second.message()), HasSubstr(std::to_string(getpid())));
  }
  EXPECT_TRUE(StateLock::Take(folder.root(), RealClock(), absl::ZeroDuration()).ok());
}

TEST(StateLock, AFolderThatIsNotThereIsNamed) {
  const absl::Status status = StateLock::Take("/no/such/folder", RealClock()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/folder/lock"));
}

}  // namespace
}  // namespace espalier
