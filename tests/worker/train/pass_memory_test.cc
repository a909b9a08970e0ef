// How the size of a pass is found from measurements.
#include "worker/train/pass_memory.h"

#include <gtest/gtest.h>

#include <map>

#include "absl/strings/match.h"

namespace espalier {
namespace {

// A meter that gives peaks by size; a size that it does not know runs out of memory.
struct FakeMeter {
  std::map<int64_t, int64_t> peaks;
  absl::StatusOr<PassReading> operator()(int64_t size) const {
    const auto found = peaks.find(size);
    if (found == peaks.end()) return absl::ResourceExhaustedError("no memory");
    return PassReading{.before = 0, .peak = found->second};
  }
};

MemoryGovernor GovernorWith(int64_t limit_bytes) {
  return MemoryGovernor({.min = 1, .max = 64, .limit_bytes = limit_bytes, .target_fraction = 0.99});
}

TEST(FindPassSize, APassThatTakesMoreThanTheLimitLeavesTheLargestThatFits) {
  MemoryGovernor governor = GovernorWith(820);
  const FakeMeter meter{{{1, 100}, {2, 200}, {8, 830}}};
  const absl::Status status = FindPassSize(governor, 1, "the limit", meter);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(governor.micro_batch(), 2);
  EXPECT_FALSE(governor.NextProbe());
}

TEST(FindPassSize, APassThatRunsOutOfMemoryLeavesTheLargestThatFits) {
  MemoryGovernor governor = GovernorWith(820);
  const absl::Status status = FindPassSize(governor, 1, "", FakeMeter{{{1, 100}, {2, 200}}});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(governor.micro_batch(), 2);
}

TEST(FindPassSize, TheSmallestPassMustFit) {
  for (const FakeMeter& meter : {FakeMeter{{{1, 830}}}, FakeMeter{}}) {
    MemoryGovernor governor = GovernorWith(820);
    const absl::Status status = FindPassSize(governor, 1, "the limit", meter);
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(absl::StrContains(status.message(), "more than the limit"), !meter.peaks.empty());
  }
}

}  // namespace
}  // namespace espalier
