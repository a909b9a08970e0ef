#include "common/base/glob.h"

#include <gtest/gtest.h>

#include <string>

namespace espalier {
namespace {

TEST(Glob, AStarStandsForAnyCharacters) {
  EXPECT_TRUE(MatchesGlob("model.layers.0.*", "model.layers.0.mlp.up_proj.weight"));
  EXPECT_FALSE(MatchesGlob("model.layers.0.*", "model.layers.10.mlp.up_proj.weight"));
  EXPECT_TRUE(MatchesGlob("*norm*", "model.layers.3.input_layernorm.weight"));
  EXPECT_TRUE(MatchesGlob("*.weight", "lm_head.weight"));
  EXPECT_TRUE(MatchesGlob("*", ""));
  EXPECT_TRUE(MatchesGlob("a*b*c", "a-b-b-c"));
  EXPECT_FALSE(MatchesGlob("a*b*c", "a-b-b-d"));
}

TEST(Glob, WithoutAStarTheNameIsTheWhole) {
  EXPECT_TRUE(MatchesGlob("lm_head.weight", "lm_head.weight"));
  EXPECT_FALSE(MatchesGlob("lm_head", "lm_head.weight"));
  EXPECT_FALSE(MatchesGlob("", "x"));
}

TEST(Glob, ManyStarsTakeNoLongerThanTheProductOfTheLengths) {
  std::string pattern;
  for (int i = 0; i < 2000; ++i) pattern += "*a";
  EXPECT_FALSE(MatchesGlob(pattern + "b", std::string(4000, 'a')));
}

}  // namespace
}  // namespace espalier
