#include "coordinator/agent/other_load.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

ProcessorTimes Times(double busy, const std::map<int64_t, absl::Duration>& own) {
  return {.busy = absl::Seconds(busy), .processors = 4, .of_program = own};
}

TEST(OtherLoad, IsWhatProcessorsDidBesideTheWorkers) {
  OtherLoad load;
  EXPECT_FALSE(load.Measure(Times(100, {{1, absl::Seconds(40)}}), absl::Seconds(10)).has_value());
  EXPECT_DOUBLE_EQ(*load.Measure(Times(107, {{1, absl::Seconds(46)}}), absl::Seconds(12)), 1.0 / 8);
}

TEST(OtherLoad, CountsAWorkerThatHasBegunAndForgetsOneThatHasEnded) {
  OtherLoad load;
  load.Measure(Times(100, {{1, absl::Seconds(40)}}), absl::Seconds(0));
  EXPECT_DOUBLE_EQ(*load.Measure(Times(104, {{2, absl::Seconds(2)}}), absl::Seconds(2)), 0.25);
  EXPECT_DOUBLE_EQ(*load.Measure(Times(106, {{2, absl::Seconds(0.5)}}), absl::Seconds(4)), 1.5 / 8)
      << "another process of that number";
}

TEST(OtherLoad, StaysBetweenNothingAndAll) {
  OtherLoad load;
  load.Measure(Times(100, {}), absl::Seconds(0));
  EXPECT_EQ(*load.Measure(Times(101, {{1, absl::Seconds(3)}}), absl::Seconds(2)), 0);
  EXPECT_EQ(*load.Measure(Times(150, {}), absl::Seconds(4)), 1);
}

TEST(OtherLoad, TimesThatFollowAtOnceSayWhatWasSaidLast) {
  OtherLoad load;
  load.Measure(Times(100, {}), absl::Seconds(0));
  load.Measure(Times(104, {}), absl::Seconds(2));
  EXPECT_DOUBLE_EQ(*load.Measure(Times(104.1, {}), absl::Seconds(2.1)), 0.5);
}

}  // namespace
}  // namespace espalier
