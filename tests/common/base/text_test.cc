// nearest.h and human.h.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "common/base/human.h"
#include "common/base/nearest.h"

namespace espalier {
namespace {

TEST(Nearest, DistanceCountsInsertionsDeletionsSubstitutionsAndSwaps) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("abc", ""), 3);
  EXPECT_EQ(EditDistance("steps", "step"), 1);
  EXPECT_EQ(EditDistance("steps", "stesp"), 1);
  EXPECT_EQ(EditDistance("Steps", "sTEPS"), 0);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance(std::string(500, 'a'), std::string(64, 'a')), 0);
}

TEST(Nearest, SuggestsOnlyWhatIsNear) {
  const std::vector<std::string> keys{"learning_rate", "warmup_steps", "kind"};
  EXPECT_EQ(Nearest("lerning_rate", keys), "learning_rate");
  EXPECT_EQ(Nearest("knid", keys), "kind");
  EXPECT_EQ(Nearest("optimizer", keys), std::nullopt);
  EXPECT_EQ(Nearest("kind", {}), std::nullopt);
}

struct Case {
  std::string shown;
  std::string expected;
};

TEST(Human, BytesDurationsAndNumbersReadWell) {
  const Case cases[] = {
      {HumanBytes(0), "0 B"},
      {HumanBytes(1023), "1023 B"},
      {HumanBytes(1536), "1.5 KiB"},
      {HumanBytes((int64_t{1} << 20) - 1), "1.0 MiB"},
      {HumanBytes(int64_t{48} << 30), "48.0 GiB"},
      {HumanBytes(std::numeric_limits<int64_t>::max()), "8.0 EiB"},
      {HumanBytes(std::numeric_limits<int64_t>::min()), "-8.0 EiB"},
      {HumanDuration(absl::ZeroDuration()), "0 s"},
      {HumanDuration(absl::Microseconds(950)), "950 us"},
      {HumanDuration(absl::Microseconds(12345)), "12.3 ms"},
      {HumanDuration(absl::Milliseconds(59970)), "1 min 00 s"},
      {HumanDuration(absl::Seconds(185)), "3 min 05 s"},
      {HumanDuration(absl::Hours(2) + absl::Minutes(7)), "2 h 07 min"},
      {HumanDuration(absl::Hours(76)), "3 d 04 h"},
      {HumanDuration(absl::Seconds(-5)), "-5.0 s"},
      {HumanDuration(absl::InfiniteDuration()), "forever"},
      {HumanNumber(7.25), "7.25"},
      {HumanNumber(999), "999"},
      {HumanNumber(12345), "12.3 k"},
      {HumanNumber(999999), "1.00 M"},
      {HumanNumber(1.07e6), "1.07 M"},
  };
  for (const Case& c : cases) EXPECT_EQ(c.shown, c.expected);
}

}  // namespace
}  // namespace espalier
