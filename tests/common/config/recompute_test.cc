// train.recompute chooses layers.
#include "common/config/recompute.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

std::vector<bool> Chosen(const std::vector<std::string>& entries) {
  v1::TrainSpec train;
  for (const std::string& entry : entries) train.add_recompute(entry);
  return RecomputedLayers(train, 5).value();
}

TEST(RecomputedLayers, AreNoneAlternateAllOrTheListedOnes) {
  EXPECT_EQ(Chosen({}), std::vector<bool>({false, false, false, false, false}));
  EXPECT_EQ(Chosen({"none"}), Chosen({}));
  EXPECT_EQ(Chosen({"alternate"}), std::vector<bool>({true, false, true, false, true}));
  EXPECT_EQ(Chosen({"all"}), std::vector<bool>({true, true, true, true, true}));
  EXPECT_EQ(Chosen({"4", "1"}), std::vector<bool>({false, true, false, false, true}));
}

}  // namespace
}  // namespace espalier
