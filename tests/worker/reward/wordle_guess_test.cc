#include "worker/reward/wordle_guess.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/random.h"

namespace espalier {
namespace {

TEST(StrictGuess, IsThinkBlockLineBreakGuessBlock) {
  const WrittenGuess guess = ReadGuessStrictly("E is last.</think>\n<guess> CRANE\n</guess>");
  EXPECT_TRUE(guess.found);
  EXPECT_EQ(guess.text, "CRANE");
  EXPECT_EQ(guess.word, WordleWord::Parse("CRANE"));
}

TEST(StrictGuess, RefusesEverythingAround) {
  for (const char* text :
       {"", "CRANE", "<guess>CRANE</guess>", "x</think><guess>CRANE</guess>",
        "x</think>\n\n<guess>CRANE</guess>", "x</think>\n<guess>CRANE</guess>\n",
        "x</think>\n<guess>CRANE</guess> done", "x</think>\n<GUESS>CRANE</GUESS>",
        "<think>x</think>\n<guess>CRANE</guess>", "x</think>y</think>\n<guess>CRANE</guess>",
        "<guess>A</guess></think>\n<guess>CRANE</guess>",
        "x</think>\n<guess>SLATE</guess><guess>CRANE</guess>", "x</think>\n<guess>CRANE"}) {
    EXPECT_FALSE(ReadGuessStrictly(text).found) << text;
  }
}

TEST(StrictGuess, TakesUpperCaseAlone) {
  const WrittenGuess guess = ReadGuessStrictly("</think>\n<guess>crane</guess>");
  EXPECT_TRUE(guess.found);
  EXPECT_EQ(guess.text.size(), 5u);
  EXPECT_FALSE(guess.word.has_value());
}

TEST(LenientGuess, IsTheFirstOneWhateverStandsAround) {
  const std::pair<const char*, const char*> cases[] = {
      {"<guess>CRANE</guess>", "CRANE"},
      {"so: <GUESS>crane</Guess> and <guess>SLATE</guess>", "CRANE"},
      {"<guess> word: \"Crane\"! </guess>", "CRANE"},
      {"<guess>My guess: c-r-a-n-e</guess>", "CRANE"},
      {"<guess>**CRANE**</guess>", "CRANE"},
      {"<guess></guess>", ""},
      {"<guess>1: CRANE</guess>", "CRANE"}};
  for (const auto& [text, word] : cases) {
    const WrittenGuess guess = ReadGuessLeniently(text);
    EXPECT_TRUE(guess.found) << text;
    EXPECT_EQ(guess.text, word) << text;
  }
  EXPECT_FALSE(ReadGuessLeniently("CRANE").found);
  EXPECT_FALSE(ReadGuessLeniently("</guess>CRANE<guess>").found);
}

TEST(LenientGuess, KnowsWhetherItWasThoughtAbout) {
  EXPECT_TRUE(ReadGuessLeniently("x</think> <guess>CRANE</guess>").thought);
  EXPECT_FALSE(ReadGuessLeniently("<guess>CRANE</guess></think>").thought);
  EXPECT_FALSE(ReadGuessLeniently("x <guess>CRANE</guess>").thought);
}

TEST(Turn, IsOfOneKind) {
  const WordList words = *WordList::Of({*WordleWord::Parse("CRANE"), *WordleWord::Parse("SLATE")});
  const History history{{.word = *WordleWord::Parse("SLATE"), .pattern = Pattern(0)}};
  const std::pair<const char*, TurnKind> cases[] = {{"no idea", TurnKind::kUnread},
                                                    {"<guess>CRANES</guess>", TurnKind::kNotAWord},
                                                    {"<guess></guess>", TurnKind::kNotAWord},
                                                    {"<guess>ZZZZZ</guess>", TurnKind::kNotInList},
                                                    {"<guess>slate</guess>", TurnKind::kRepeated},
                                                    {"<guess>crane</guess>", TurnKind::kPlayed}};
  for (const auto& [text, kind] : cases) {
    const WrittenGuess guess = ReadGuessLeniently(text);
    EXPECT_EQ(KindOf(guess, words, history), kind) << text;
    EXPECT_EQ(Explain(kind, guess).empty(), kind == TurnKind::kPlayed) << text;
  }
  EXPECT_EQ(KindOf(ReadGuessStrictly("</think>\n<guess>crane</guess>"), words, history),
            TurnKind::kNotInList)
      << "strictly, a word in lower case is in no list";
}

// Whatever a model writes: what is found strictly is what is found leniently.
TEST(Guess, IsReadFromAnyBytes) {
  const std::vector<std::string> pieces{
      "<think>",  "</think>",        "\n", "<guess>", "</guess>", "CRANE",  "crane", "word:", " ",
      "\xFF\xFE", std::string(1, 0), "<",  "✓",       "</GUESS>", "<Guess>"};
  SplitMix64 random(11);
  int strict = 0, lenient = 0;
  for (int i = 0; i < 50000; ++i) {
    std::string text;
    for (uint64_t n = random.Below(9); n > 0; --n) text += pieces[random.Below(pieces.size())];
    if (random.Below(4) == 0) text = "x</think>\n<guess>" + pieces[random.Below(15)] + "</guess>";
    const WrittenGuess a = ReadGuessStrictly(text), b = ReadGuessLeniently(text);
    strict += a.found ? 1 : 0;
    lenient += b.found ? 1 : 0;
    EXPECT_LE(a.found, b.found) << text;
    if (a.word) {
      EXPECT_EQ(a.word, b.word) << text;
    }
  }
  EXPECT_GT(strict, 0);
  EXPECT_GT(lenient, strict);
}

}  // namespace
}  // namespace espalier
