#include "worker/reward/wordle_game.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

WordleWord Word(absl::string_view text) { return *WordleWord::Parse(text); }

const WordList& List() {
  static const WordList& list = *new WordList(*WordList::Of(
      {Word("CRANE"), Word("SWEAT"), Word("ALLEY"), Word("SLATE"), Word("STALE"), Word("ABBEY")}));
  return list;
}

WordleGame Played(absl::string_view secret, std::initializer_list<const char*> turns) {
  WordleGame game(Word(secret), List());
  for (const char* turn : turns) game.Play(absl::StrCat("<guess>", turn, "</guess>"));
  return game;
}

std::map<std::string, double> Figures(const GameTally& tally) {
  std::map<std::string, double> figures;
  for (const GameFigure& figure : tally.Figures()) figures[figure.name] = figure.value;
  return figures;
}

TEST(WordleGame, EndsWhenItIsSolvedOrAfterSixTurns) {
  const WordleGame solved = Played("ALLEY", {"CRANE", "ALLEY"});
  EXPECT_TRUE(solved.solved());
  EXPECT_TRUE(solved.over());
  const WordleGame going = Played("ALLEY", {"CRANE", "SLATE", "STALE", "SWEAT", "ABBEY"});
  EXPECT_FALSE(going.over());
  const WordleGame lost = Played("ALLEY", {"CRANE", "SLATE", "STALE", "SWEAT", "ABBEY", "?"});
  EXPECT_TRUE(lost.over());
  EXPECT_FALSE(lost.solved());
}

TEST(WordleGame, WhatWasSaidMakesTheSameTurnsAgain) {
  WordleGame game(Word("ALLEY"), List());
  for (const std::string& turn :
       {std::string("a label <GUESS>word: crane</GUESS>"), std::string("none"),
        std::string("<guess>crane</guess>"), std::string("<guess>ZZZZZ</guess>"),
        "<guess>" + std::string(300, 'x') + "</guess>", std::string("<guess></guess>")}) {
    game.Play(turn);
  }
  WordleGame again(Word("ALLEY"), List());
  for (const std::string& turn : game.said()) again.Play(turn);
  EXPECT_EQ(again.turns(), game.turns());
  EXPECT_EQ(again.said(), game.said());
  ASSERT_EQ(again.history().size(), 1U);
  EXPECT_EQ(again.history()[0].word, Word("CRANE"));
}

TEST(WordleGame, AnInvalidTurnIsUsedUpAndTellsNothing) {
  const WordleGame game = Played("ALLEY", {"CRANE", "CRANE", "ZZZZZ", "TOO LONG", ""});
  EXPECT_EQ(game.turns().size(), 5u);
  EXPECT_EQ(game.history().size(), 1u);
  EXPECT_EQ(game.turns()[1], TurnKind::kRepeated);
  EXPECT_EQ(game.turns()[2], TurnKind::kNotInList);
  EXPECT_EQ(game.turns()[3], TurnKind::kNotAWord);
}

TEST(GameTally, FiguresAreAsReckonedByHand) {
  GameTally tally(List().words());
  tally.Add(Played("ALLEY", {"CRANE", "ALLEY"}));
  tally.Add(Played("ALLEY", {"?", "ZZZZZ", "SLATE", "SLATE", "SLATE", "SLATE"}));
  const std::map<std::string, double> figures = Figures(tally);
  EXPECT_EQ(figures.size(), 8u);
  EXPECT_DOUBLE_EQ(figures.at("solve_rate"), 0.5);
  EXPECT_DOUBLE_EQ(figures.at("mean_turns_solved"), 2);
  EXPECT_DOUBLE_EQ(figures.at("mean_turns"), (2 + 7) / 2.0);
  EXPECT_DOUBLE_EQ(figures.at("parse_fail_rate"), 1 / 8.0);
  EXPECT_DOUBLE_EQ(figures.at("out_of_vocabulary_rate"), 1 / 8.0);
  EXPECT_DOUBLE_EQ(figures.at("repeat_rate"), 3 / 8.0);
  // CRANE: of six words SWEAT, ALLEY and ABBEY are left; then ALLEY is. SLATE: ALLEY alone.
  EXPECT_NEAR(figures.at("mean_log_reduction"), (std::log(2) + std::log(3) + std::log(6)) / 3,
              1e-12);
  EXPECT_NEAR(figures.at("mean_fraction_reduction"), (3 / 6.0 + 2 / 3.0 + 5 / 6.0) / 3, 1e-12);
}

TEST(GameTally, OfNoGameIsAllZero) {
  for (const GameFigure& figure : GameTally(List().words()).Figures()) {
    EXPECT_EQ(figure.value, 0) << figure.name;
  }
}

}  // namespace
}  // namespace espalier
