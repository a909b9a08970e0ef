// Parts of the day.
#include "common/base/day_hours.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

DayHours Hours(const char* text) {
  const absl::StatusOr<DayHours> hours = ParseDayHours(text);
  EXPECT_TRUE(hours.ok()) << hours.status();
  return hours.value_or(DayHours{});
}

TEST(DayHours, BeginWithTheirFirstMinuteAndEndBeforeTheLast) {
  const DayHours office = Hours("09:00-17:30");
  EXPECT_FALSE(office.Has(9 * 60 - 1));
  EXPECT_TRUE(office.Has(9 * 60));
  EXPECT_TRUE(office.Has(17 * 60 + 29));
  EXPECT_FALSE(office.Has(17 * 60 + 30));
}

TEST(DayHours, MayGoPastMidnight) {
  const DayHours night = Hours("22:00-07:00");
  EXPECT_TRUE(night.Has(23 * 60 + 59));
  EXPECT_TRUE(night.Has(0));
  EXPECT_FALSE(night.Has(7 * 60));
  EXPECT_FALSE(night.Has(21 * 60 + 59));
}

TEST(DayHours, UpToMidnightIsWritten0000) {
  const DayHours evening = Hours("18:00-00:00");
  EXPECT_TRUE(evening.Has(23 * 60 + 59));
  EXPECT_FALSE(evening.Has(0));
}

TEST(DayHours, OfAnotherFormAreRefused) {
  for (const char* text :
       {"", "-", "22:00", "22:00-", "22-07", "24:00-07:00", "22:00-07:60", "22:00-22:00",
        "22:00-07:00-08:00", "9:00-17:00", "22:00 - 07:00", "ab:cd-ef:gh"}) {
    EXPECT_EQ(ParseDayHours(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace espalier
