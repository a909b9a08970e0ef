#include "common/base/nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

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

}  // namespace
}  // namespace espalier
