#include "worker/reward/wordle_verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace espalier {
namespace {

using ::testing::HasSubstr;

WordleWord Word(absl::string_view text) { return *WordleWord::Parse(text); }

std::unique_ptr<Verifier> Make() {
  const WordList words =
      *WordList::Of({Word("CRANE"), Word("SWEAT"), Word("ALLEY"), Word("SLATE")});
  return MakeWordleVerifier({.guesses = words, .secrets = words}, {});
}

TEST(WordleRecord, IsReadInAllItsSpellings) {
  for (const char* json :
       {R"j({"secret": "ALLEY", "history": [["CRANE", "C(x) R(x) A(-) N(x) E(-)"]]})j",
        R"j({"secret": "alley", "history": [["crane", "XXYXY"]], "more": 1})j",
        R"j({"secret": "ALLEY", "history": [["CRANE"]]})j",
        R"j({"secret": "ALLEY", "history": ["CRANE"]})j"}) {
    const auto record = ParseWordleRecord(json);
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_EQ(record->secret, Word("ALLEY"));
    ASSERT_EQ(record->history.size(), 1u);
    EXPECT_EQ(SpellPattern(record->history[0].pattern), "XXYXY");
    EXPECT_EQ(WriteWordleRecord(*record), R"({"secret":"ALLEY","history":[["CRANE","XXYXY"]]})");
  }
  EXPECT_TRUE(ParseWordleRecord(R"({"secret": "ALLEY"})")->history.empty());
}

TEST(WordleRecord, ThatCannotBeUsedSaysWhy) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "no JSON object"},
      {"{", "no JSON object"},
      {R"({"history": []})", "no 'secret'"},
      {R"({"secret": ["ERROR"]})", "no word of five letters"},
      {R"({"secret": "ALLEYS"})", "no word of five letters"},
      {R"({"secret": "ALLEY", "history": {}})", "no list"},
      {R"({"secret": "ALLEY", "history": [["CRANE", "XXXXX"]]})", "gives it XXYXY"},
      {R"({"secret": "ALLEY", "history": [["CRANE", "what"]]})", "no marks"},
      {R"({"secret": "ALLEY", "history": [["CRANE", 5]]})", "no text"},
      {R"({"secret": "ALLEY", "history": [["CRANE", "XXYXY", 1]]})", "no word of five letters"}};
  for (const auto& [json, why] : cases) {
    const auto record = ParseWordleRecord(json);
    EXPECT_EQ(record.status().code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(std::string(record.status().message()), HasSubstr(why)) << json;
  }
}

TEST(WordleVerifier, JudgesManyTurnsOfSeveralGamesAtOnce) {
  const std::string alley = R"({"secret": "ALLEY", "history": ["CRANE"]})";
  const std::string slate = R"({"secret": "SLATE"})";
  const std::string good = "So.</think>\n<guess>SWEAT</guess>", bad = "SWEAT";
  const auto verifier = Make();
  const auto judged = verifier->Judge({{alley, good}, {alley, bad}, {slate, good}, {alley, good}},
                                      {.step = 3, .progress = 0.5});
  ASSERT_TRUE(judged.ok()) << judged.status();
  ASSERT_EQ(judged->size(), 4u);
  EXPECT_NEAR((*judged)[0].component("feedback"), 0.35, 1e-12);
  EXPECT_EQ((*judged)[0].total, (*judged)[3].total);
  EXPECT_EQ((*judged)[1].total, 0);
  EXPECT_NEAR((*judged)[2].component("feedback"), 0.1, 1e-12);
  EXPECT_EQ(FirstAccepted(*judged), 0);
  EXPECT_EQ(FirstAccepted(absl::MakeSpan(*judged).subspan(1, 1)), -1);
}

TEST(WordleVerifier, FailsForARecordThatIsNone) {
  const auto judged = Make()->Judge({{"{}", "x"}}, {});
  EXPECT_THAT(std::string(judged.status().message()), HasSubstr("secret"));
  EXPECT_TRUE(Make()->Judge({}, {})->empty());
}

}  // namespace
}  // namespace espalier
