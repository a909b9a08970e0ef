#include "worker/collective/mpi_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(MpiThreads, ALibraryForOneThreadIsRefusedByName) {
  const absl::Status status = CheckMpiThreads(MpiThreads::kSingle, "Open MPI v4.1.4");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("gives MPI_THREAD_SINGLE"),
                             testing::HasSubstr("MPI_THREAD_FUNNELED or more is needed"),
                             testing::HasSubstr("Open MPI v4.1.4"), testing::HasSubstr("use a")));
}

TEST(MpiThreads, OneThreadThatCallsMpiIsEnough) {
  for (const MpiThreads given :
       {MpiThreads::kFunneled, MpiThreads::kSerialized, MpiThreads::kMultiple}) {
    EXPECT_TRUE(CheckMpiThreads(given, "").ok());
  }
}

}  // namespace
}  // namespace espalier
