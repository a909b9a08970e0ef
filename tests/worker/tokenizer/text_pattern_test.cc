#include "worker/tokenizer/text_pattern.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

std::vector<std::string> Matches(absl::string_view expression, absl::string_view text) {
  const auto pattern = TextPattern::Compile(expression);
  EXPECT_TRUE(pattern.ok()) << pattern.status();
  PatternMatches matches(*pattern, text);
  std::vector<std::string> found;
  for (;;) {
    const auto match = *matches.Next();
    if (!match) return found;
    found.emplace_back(text.substr(match->begin, match->end - match->begin));
  }
}

using Texts = std::vector<std::string>;

TEST(TextPattern, WhiteSpaceIsWhatOnigurumaTakesForIt) {
  EXPECT_EQ(Matches("\\s+", "a\u0085\u00a0\u2003b\u180ec\u200bd\u3000"),
            (Texts{"\u0085\u00a0\u2003", "\u3000"}));
  EXPECT_EQ(Matches("[^\\s]+", "a\u3000b"), (Texts{"a", "b"}));
  EXPECT_EQ(Matches("\\S+", "a\u180eb c"), (Texts{"a\u180eb", "c"}));
}

TEST(TextPattern, CaseIsFoldedAsUnicodeSays) {
  EXPECT_EQ(Matches("(?i:'s|'t)", "'s 'S 'ſ 't"), (Texts{"'s", "'S", "'ſ", "'t"}));
}

TEST(TextPattern, LooksAheadWithinTheWholeText) {
  EXPECT_EQ(Matches("\\s+(?!\\S)|\\s+", "a   b  "), (Texts{"  ", " ", "  "}));
}

TEST(TextPattern, NothingMatchesAcrossBytesThatAreNoText) {
  EXPECT_EQ(Matches("[^x]+",
                    "ab\xff"
                    "cd\xe2\x82"),
            (Texts{"ab", "cd"}));
}

TEST(TextPattern, EmptyMatchesEnd) { EXPECT_EQ(Matches("a*", "éa"), (Texts{"", "a"})); }

TEST(TextPattern, ALiteralIsNoExpression) {
  const auto pattern = TextPattern::Literal("a.b[]{2}\\s-&&");
  ASSERT_TRUE(pattern.ok()) << pattern.status();
  const std::string text = "axb a.b[]{2}\\s-&& ";
  PatternMatches matches(*pattern, text);
  const auto match = *matches.Next();
  ASSERT_TRUE(match);
  EXPECT_EQ(match->begin, 4U);
  EXPECT_FALSE(*matches.Next());
}

}  // namespace
}  // namespace espalier
