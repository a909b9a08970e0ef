#include "worker/reward/answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

Judgement Judged(AnswerKind kind, const std::string& record, const std::string& completion) {
  const auto judged = MakeAnswerVerifier(kind)->Judge({{record, completion}}, {});
  EXPECT_TRUE(judged.ok()) << judged.status();
  return judged->front();
}

TEST(AnswerText, NeedsBothTagsInTheirOrder) {
  EXPECT_EQ(AnswerText("so <answer> 5 \n</answer> and <answer>6</answer>"), "5");
  EXPECT_EQ(AnswerText("<answer></answer>"), "");
  EXPECT_EQ(AnswerText("</answer><answer>5</answer>"), "5");
  for (const char* text : {"", "5", "<answer>5", "5</answer>", "</answer>5<answer>",
                           "<Answer>5</Answer>", "<answer >5</answer>"}) {
    EXPECT_FALSE(AnswerText(text).has_value()) << text;
  }
}

TEST(Measure, IsAFiniteNumberAndZeroIsOne) {
  EXPECT_EQ(ParseMeasure("0"), 0);
  EXPECT_EQ(ParseMeasure("-0.5"), -0.5);
  EXPECT_EQ(ParseMeasure("6e3"), 6000);
  EXPECT_EQ(ParseMeasure("+1.5"), 1.5);
  for (const char* text : {"", "nan", "NaN", "inf", "-inf", "infinity", "1e999", "1_000", "6,000",
                           "6 kg", "0x10", "six", "--5", "1.2.3"}) {
    EXPECT_FALSE(ParseMeasure(text).has_value()) << text;
  }
}

TEST(Whole, IsDigitsWithPerhapsASign) {
  EXPECT_EQ(ParseWhole("0"), 0);
  EXPECT_EQ(ParseWhole("-42"), -42);
  EXPECT_EQ(ParseWhole("+7"), 7);
  EXPECT_EQ(ParseWhole("999999999999999999"), 999999999999999999);
  for (const char* text : {"", "-", "+", "5.0", "5e0", "--5", "+-5", "1000000000000000000", "5 "}) {
    EXPECT_FALSE(ParseWhole(text).has_value()) << text;
  }
}

TEST(Measure, IsRightBelowFivePerCentAfterRounding) {
  EXPECT_TRUE(IsRightMeasure(6000, 6000));
  EXPECT_TRUE(IsRightMeasure(6299.9, 6000));
  EXPECT_FALSE(IsRightMeasure(6300, 6000)) << "5 % is not below 5 %";
  EXPECT_FALSE(IsRightMeasure(-6000, 6000));
  EXPECT_TRUE(IsRightMeasure(-5900, -6000));
  EXPECT_TRUE(IsRightMeasure(0.0124, 0.012)) << "both are 0.012";
  EXPECT_FALSE(IsRightMeasure(0.013, 0.012));
  EXPECT_TRUE(IsRightMeasure(0.0004, 0.0001)) << "both are 0";
  EXPECT_FALSE(IsRightMeasure(0.001, 0));
  EXPECT_TRUE(IsRightMeasure(1e300, 1e300));
  EXPECT_FALSE(IsRightMeasure(-1.7e308, 1.7e308));
}

TEST(AnswerVerifier, JudgesMeasures) {
  const std::string record = R"({"question": "?", "answer": 6000.0})";
  const Judgement right = Judged(AnswerKind::kMeasure, record, "So <answer>6000</answer>.");
  EXPECT_TRUE(right.accepted());
  EXPECT_DOUBLE_EQ(right.total, 1.1);
  const Judgement wrong = Judged(AnswerKind::kMeasure, record, "<answer>6</answer>");
  EXPECT_DOUBLE_EQ(wrong.total, 0.1);
  EXPECT_THAT(wrong.invalid, HasSubstr("'6' is not 6000"));
  EXPECT_THAT(Judged(AnswerKind::kMeasure, record, "<answer>nan</answer>").invalid,
              HasSubstr("no finite number"));
  EXPECT_EQ(Judged(AnswerKind::kMeasure, record, "6000").total, 0);
  EXPECT_TRUE(Judged(AnswerKind::kMeasure, R"({"answer": 0})", "<answer>0</answer>").accepted());
}

TEST(AnswerVerifier, JudgesWholeNumbersExactly) {
  const std::string record = R"({"answer": -36})";
  EXPECT_TRUE(Judged(AnswerKind::kWhole, record, "<answer>-36</answer>").accepted());
  EXPECT_DOUBLE_EQ(Judged(AnswerKind::kWhole, record, "<answer>-37</answer>").total, 0.1);
  EXPECT_DOUBLE_EQ(Judged(AnswerKind::kWhole, record, "<answer>-36.0</answer>").total, 0);
}

TEST(AnswerVerifier, FailsForARecordWithoutANumber) {
  for (const auto& [record, kind] :
       {std::pair("{}", AnswerKind::kMeasure),
        std::pair(R"({"answer": "6"})", AnswerKind::kMeasure),
        std::pair(R"({"answer": 1e999})", AnswerKind::kMeasure),
        std::pair(R"({"answer": 6.0})", AnswerKind::kWhole), std::pair("5", AnswerKind::kWhole)}) {
    const auto judged = MakeAnswerVerifier(kind)->Judge({{record, "x"}}, {});
    EXPECT_EQ(judged.status().code(), absl::StatusCode::kInvalidArgument) << record;
    EXPECT_THAT(std::string(judged.status().message()), HasSubstr("the record")) << record;
  }
}

TEST(AnswerTally, CountsWrongAnswersAsAnswersAndWhatCannotBeReadAsNone) {
  AnswerTally tally;
  EXPECT_EQ(tally.accuracy(), 0);
  const std::string zero = R"({"answer": 0})";
  for (const char* text :
       {"<answer>0</answer>", "<answer>5</answer>", "<answer>nan</answer>", "0"}) {
    tally.Add(Judged(AnswerKind::kMeasure, zero, text));
  }
  EXPECT_DOUBLE_EQ(tally.accuracy(), 0.25);
  EXPECT_DOUBLE_EQ(tally.answer_rate(), 0.5);
  EXPECT_EQ(tally.questions(), 4);
}

// As a program of the user's judges, which may tell a total alone.
TEST(AnswerTally, WhatIsAcceptedWasAnswered) {
  AnswerTally tally;
  tally.Add({.total = 1});
  tally.Add({.components = {{"tests", 1}}, .total = 1});
  tally.Add({.total = 0, .invalid = "wrong"});
  tally.Add({.components = {{"format", 0.1}}, .total = 0.1, .invalid = "wrong"});
  EXPECT_DOUBLE_EQ(tally.accuracy(), 0.5);
  EXPECT_DOUBLE_EQ(tally.answer_rate(), 0.75);
}

TEST(AnswerVerifier, JudgesAnyBytes) {
  const std::string alphabet = "<>/answer0123456789.-+eE \n\xFF";
  const std::string record = R"({"answer": 5})";
  SplitMix64 random(3);
  int read = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (uint64_t n = random.Below(12); n > 0; --n) text += alphabet[random.Below(alphabet.size())];
    if (random.Below(2) == 0) text = absl::StrCat("<answer>", text, "</answer>");
    for (const AnswerKind kind : {AnswerKind::kMeasure, AnswerKind::kWhole}) {
      const Judgement judged = Judged(kind, record, text);
      EXPECT_TRUE(std::isfinite(judged.total));
      EXPECT_EQ(judged.accepted(), judged.component("correct") == 1) << text;
      read += judged.component("format") > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(read, 0);
}

}  // namespace
}  // namespace espalier
