// What the loop adds to the events that it passes on.
#include "coordinator/loop/messages.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

const absl::Time kWall = absl::FromUnixSeconds(1'000'000'000);

absl::Duration AheadOf(const Event& event) {
  const auto* attached = std::get_if<AgentAttached>(&event);
  return attached != nullptr ? attached->clock_ahead : std::get<AgentReported>(event).clock_ahead;
}

TEST(NoteClock, SaysHowFarTheClockOfANodeIsAhead) {
  v1::NodeReport report;
  report.set_unix_seconds(1'000'000'000 + 7200);
  Event hello = AgentAttached{.report = report};
  NoteClock(hello, kWall);
  EXPECT_EQ(AheadOf(hello), absl::Hours(2));
  report.set_unix_seconds(1'000'000'000 - 60);
  Event later = AgentReported{.report = report};
  NoteClock(later, kWall);
  EXPECT_EQ(AheadOf(later), -absl::Minutes(1));
}

TEST(NoteClock, ATickSaysWhatItIs) {
  Event tick = Tick{};
  NoteClock(tick, kWall);
  EXPECT_EQ(std::get<Tick>(tick).wall, kWall);
}

TEST(NoteClock, AReportWithoutATimeSaysNothingOfTheClock) {
  Event report = AgentReported{};
  NoteClock(report, kWall);
  EXPECT_EQ(AheadOf(report), absl::ZeroDuration());
}

}  // namespace
}  // namespace espalier
