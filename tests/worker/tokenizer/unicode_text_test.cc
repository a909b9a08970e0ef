#include "worker/tokenizer/unicode_text.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

// Unicode 15, table 3-8 and what follows it.
TEST(WithReplacements, ReplacesEveryMaximalPartOnce) {
  const std::string r = kReplacementCharacter;
  EXPECT_EQ(WithReplacements("a\xf1\x80\x80\xe1\x80\xc2"
                             "b\x80"
                             "c\x80\xbf"
                             "d"),
            "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(WithReplacements("\xc0\xaf"), r + r);
  EXPECT_EQ(WithReplacements("\xed\xa0\x80"), r + r + r);
  EXPECT_EQ(WithReplacements("\xf4\x91\x92\x93\xff"
                             "A"),
            r + r + r + r + r + "A");
}

TEST(UnfinishedBytes, CountsOnlyWhatMayBecomeACharacter) {
  EXPECT_EQ(UnfinishedBytes("a\xe2"), 1U);
  EXPECT_EQ(UnfinishedBytes("a\xe2\x82"), 2U);
  EXPECT_EQ(UnfinishedBytes("a\xe2\x82\xac"), 0U);
  EXPECT_EQ(UnfinishedBytes("\xf0\x9f\x9a"), 3U);
  EXPECT_EQ(UnfinishedBytes("\xe0\x80"), 0U);  // no character begins so
  EXPECT_EQ(UnfinishedBytes("\x80\x80"), 0U);
  EXPECT_EQ(UnfinishedBytes(""), 0U);
}

TEST(Normalized, ComposesAndDecomposes) {
  EXPECT_EQ(Normalized("e\u0301", NormalForm::kC), "é");
  EXPECT_EQ(Normalized("é", NormalForm::kD), "e\u0301");
  EXPECT_EQ(Normalized("ﬁ①", NormalForm::kKC), "fi1");
  EXPECT_EQ(Normalized("\u1112\u1161\u11ab", NormalForm::kC), "한");
  EXPECT_EQ(Normalized("q\u0307\u0323", NormalForm::kC), "q\u0323\u0307");  // marks in order
  EXPECT_EQ(Normalized("Å", NormalForm::kC), "Å");  // the sign of ångström
}

TEST(Normalized, LeavesBytesThatAreNoText) {
  EXPECT_EQ(Normalized("e\u0301\xff\xe2\x82", NormalForm::kC), "é\xff\xe2\x82");
}

TEST(CodePoints, AreReadAtBothEndsAndNeverBeyond) {
  EXPECT_EQ(FirstCodePoint("€x").value, 0x20ac);
  EXPECT_EQ(LastCodePoint("x🚀").value, 0x1f680);
  EXPECT_EQ(LastCodePoint("x🚀").bytes, 4U);
  EXPECT_EQ(FirstCodePoint("\xf0").value, kReplacementCodePoint);
  EXPECT_EQ(FirstCodePoint("\xf0").bytes, 1U);
  EXPECT_EQ(LastCodePoint("a\x80").bytes, 1U);
}

}  // namespace
}  // namespace espalier
