#include "worker/reward/wordle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "common/base/random.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

WordleWord Word(absl::string_view text) { return *WordleWord::Parse(text); }

Guess Marked(absl::string_view secret, absl::string_view guess) {
  return {.word = Word(guess), .pattern = Feedback(Word(secret), Word(guess))};
}

std::vector<WordleWord> Words(std::initializer_list<const char*> texts) {
  std::vector<WordleWord> words;
  for (const char* text : texts) words.push_back(Word(text));
  return words;
}

// Of few letters, so that letters repeat.
WordleWord AnyWord(SplitMix64& random, uint64_t letters) {
  std::string text;
  for (int i = 0; i < kWordleLetters; ++i) text += static_cast<char>('A' + random.Below(letters));
  return Word(text);
}

// By the count of each letter: the n-th not green one of a guess is yellow when the secret has more
// than n of them beside the green ones.
std::string PlainMarks(const std::string& secret, const std::string& guess) {
  std::string marks(5, 'X');
  for (size_t i = 0; i < 5; ++i) {
    if (secret[i] == guess[i]) marks[i] = 'G';
  }
  for (char letter = 'A'; letter <= 'Z'; ++letter) {
    int free = 0;
    for (size_t i = 0; i < 5; ++i) free += secret[i] == letter && marks[i] != 'G' ? 1 : 0;
    for (size_t i = 0; i < 5; ++i) {
      if (guess[i] == letter && marks[i] != 'G' && free-- > 0) marks[i] = 'Y';
    }
  }
  return marks;
}

TEST(WordleWord, IsFiveLettersOfOneCase) {
  EXPECT_EQ(Word("crane").text(), "CRANE");
  EXPECT_EQ(Word("CRANE"), Word("crane"));
  EXPECT_LT(Word("CRANE"), Word("CRATE"));
  for (const char* text : {"", "CRAN", "CRANES", "Crane", "CRAN3", "CRAN ", "cran\xC3\xA9"}) {
    EXPECT_FALSE(WordleWord::Parse(text).has_value()) << text;
  }
}

TEST(Wordle, MarksGreenFirstThenYellowAsOftenAsTheSecretHasTheLetter) {
  const std::array<const char*, 3> vectors[] = {
      {"ALLEY", "LLAMA", "YGYXX"}, {"ABIDE", "SPEED", "XXYXY"}, {"ERASE", "SPEED", "YXYYX"},
      {"STEAL", "SPEED", "GXGXX"}, {"CREPE", "SPEED", "XYGYX"}, {"APPLE", "PAPAL", "YYGXY"},
      {"MAMMA", "MAXIM", "GGXXY"}, {"ABBEY", "BABES", "YYGGX"}, {"GEESE", "EERIE", "YGXXG"},
      {"BRISK", "STORM", "YXXYX"}, {"ALLEY", "CRANE", "XXYXY"}, {"ALLEY", "SWEAT", "XXYYX"}};
  for (const auto& [secret, guess, marks] : vectors) {
    EXPECT_EQ(SpellPattern(Feedback(Word(secret), Word(guess))), marks) << secret << " " << guess;
  }
}

TEST(Wordle, MarksAreThoseOfCountingLetters) {
  SplitMix64 random(3);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t letters = 2 + random.Below(5);
    const WordleWord secret = AnyWord(random, letters), guess = AnyWord(random, letters);
    EXPECT_EQ(SpellPattern(Feedback(secret, guess)), PlainMarks(secret.text(), guess.text()))
        << secret.text() << " " << guess.text();
  }
}

TEST(Wordle, OnlyTheSecretItselfIsSolved) {
  EXPECT_TRUE(Feedback(Word("ALLEY"), Word("ALLEY")).solved());
  EXPECT_FALSE(Feedback(Word("ALLEY"), Word("ALLAY")).solved());
}

TEST(Wordle, MarksAreSpelledAndReadBack) {
  const Guess guess = Marked("ALLEY", "CRANE");
  EXPECT_EQ(SpellMarks(guess), "C(x) R(x) A(-) N(x) E(-)");
  EXPECT_EQ(SpellMarks(Marked("ALLEY", "ALLOY")), "A(✓) L(✓) L(✓) O(x) Y(✓)");
  SplitMix64 random(4);
  for (int i = 0; i < 1000; ++i) {
    const Guess any{.word = AnyWord(random, 26), .pattern = Pattern(int(random.Below(243)))};
    EXPECT_EQ(*ParseMarks(any.word, SpellMarks(any)), any.pattern);
    EXPECT_EQ(*ParseMarks(any.word, SpellPattern(any.pattern)), any.pattern);
  }
}

TEST(Wordle, MarksAreReadInAllTheirSpellings) {
  const WordleWord word = Word("CRANE");
  for (const char* text : {"C(√) R(X) A(-) N(x) E(-)", "C(G) R(X) A(Y) N(X) E(Y)", " gxyxy ",
                           "G X Y X Y", "c(✓) r(x) a(-) n(x) e(-)", "✓x-x-"}) {
    const auto marks = ParseMarks(word, text);
    ASSERT_TRUE(marks.ok()) << marks.status();
    EXPECT_EQ(SpellPattern(*marks), "GXYXY") << text;
  }
}

TEST(Wordle, WhatIsNoMarksSaysSo) {
  const WordleWord word = Word("CRANE");
  for (const char* text : {"", "GXYX", "GXYXYG", "C(x) R(x) A(-) N(x) F(-)", "C(x R(x)", "CRANE",
                           "C(?) R(x) A(-) N(x) E(-)", "\xE2\x9C", "G(G) (G) (G) (G) (G)"}) {
    const auto marks = ParseMarks(word, text);
    EXPECT_EQ(marks.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(marks.status().message()), HasSubstr("CRANE"));
  }
}

TEST(Wordle, ParserOfMarksTakesAnyBytes) {
  SplitMix64 random(5);
  const std::string alphabet = "CRANE()✓√-xXGgYy \n\xFF";
  int sound = 0;
  for (int i = 0; i < 50000; ++i) {
    std::string text;
    for (uint64_t n = random.Below(30); n > 0; --n) text += alphabet[random.Below(alphabet.size())];
    sound += ParseMarks(Word("CRANE"), text).ok() ? 1 : 0;
  }
  EXPECT_GT(sound, 0);
}

TEST(Wordle, AWordAgreesWhenItWouldGiveTheSameMarks) {
  const History history{Marked("ABIDE", "SPEED")};  // one E yellow, one grey
  EXPECT_TRUE(Agrees(Word("ABIDE"), history)) << "a grey E beside a yellow one bans no E";
  EXPECT_FALSE(Agrees(Word("EDGED"), history)) << "it has two";
  EXPECT_FALSE(Agrees(Word("DREAD"), history)) << "the E is not at its place";
  EXPECT_THAT(Candidates(Words({"ABIDE", "ELDER", "BADGE", "EDICT"}), history),
              ElementsAre(Word("ABIDE"), Word("BADGE"), Word("EDICT")));
}

TEST(Wordle, TheSecretAlwaysAgrees) {
  SplitMix64 random(6);
  for (int i = 0; i < 3000; ++i) {
    const WordleWord secret = AnyWord(random, 6);
    History history;
    for (int turn = 0; turn < 5; ++turn) {
      const WordleWord guess = AnyWord(random, 6);
      history.push_back({.word = guess, .pattern = Feedback(secret, guess)});
    }
    EXPECT_TRUE(Agrees(secret, history)) << secret.text();
  }
}

TEST(Wordle, ALetterIsDeadOnlyWhenNoMarkSaysThatItIsThere) {
  const LetterKnowledge known = KnowledgeOf(History{Marked("ABIDE", "SPEED")});
  const auto bit = [](char c) { return LetterSet{1} << (c - 'A'); };
  EXPECT_EQ(known.dead, bit('S') | bit('P'));
  EXPECT_EQ(known.grey, bit('S') | bit('P') | bit('E'));
  EXPECT_EQ(known.yellow[2], bit('E'));
  EXPECT_EQ(known.all_yellow(), bit('E') | bit('D'));
  EXPECT_EQ(known.guessed, LettersOf(Word("SPEED")));
}

TEST(Information, IsAsReckonedByHand) {
  const auto list = Words({"CRANE", "CRATE", "TRACE", "BRACE", "GRACE", "SLATE", "STALE", "LEAST"});
  EXPECT_NEAR(InformationShare(Word("TRACE"), list), 0.8333, 5e-5);
  EXPECT_NEAR(InformationShare(Word("SLATE"), list), 0.8019, 5e-5);
  EXPECT_NEAR(InformationShare(Word("CRANE"), list), 0.718546, 5e-7);
  EXPECT_NEAR(InformationBits(Word("TRACE"), list), 2.5, 1e-12);
}

TEST(Information, OfOneCandidateOrNoneIsNothing) {
  EXPECT_EQ(InformationShare(Word("CRANE"), {}), 0);
  EXPECT_EQ(InformationShare(Word("CRANE"), Words({"SLATE"})), 0);
  EXPECT_EQ(InformationShare(Word("FUZZY"), Words({"SLATE", "STALE"})), 0);
}

// As its definition has it: bits left in each part, by marks spelled out.
double PlainShare(WordleWord guess, const std::vector<WordleWord>& candidates) {
  std::map<std::string, double> parts;
  for (const WordleWord one : candidates) parts[PlainMarks(one.text(), guess.text())] += 1;
  const double n = static_cast<double>(candidates.size());
  double left = 0;
  for (const auto& [marks, count] : parts) left += count / n * std::log2(count);
  return (std::log2(n) - left) / std::log2(n);
}

TEST(Information, IsThatOfItsDefinitionForAnyList) {
  SplitMix64 random(7);
  for (int round = 0; round < 200; ++round) {
    const uint64_t letters = 2 + random.Below(10);
    std::vector<WordleWord> candidates(2 + random.Below(80));
    for (WordleWord& word : candidates) word = AnyWord(random, letters);
    const WordleWord guess = AnyWord(random, letters);
    EXPECT_NEAR(InformationShare(guess, candidates), PlainShare(guess, candidates), 1e-12);
    const auto split = SplitByPattern(guess, candidates);
    for (const WordleWord word : candidates) {
      const auto code = static_cast<size_t>(Feedback(word, guess).code());
      EXPECT_GT(split[code], 0) << word.text() << " " << guess.text();
    }
  }
}

}  // namespace
}  // namespace espalier
