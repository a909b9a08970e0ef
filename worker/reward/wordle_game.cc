#include "worker/reward/wordle_game.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace espalier {
namespace {

constexpr double kTurnsOfUnsolved = kWordleTurns + 1;

double Ratio(double part, double all) { return all > 0 ? part / all : 0; }

}  // namespace

TurnKind WordleGame::Play(absl::string_view completion) {
  ESPALIER_CHECK(!over(), "a turn after the end of the game");
  const WrittenGuess guess = ReadGuessLeniently(completion);
  const TurnKind kind = KindOf(guess, *words_, history_);
  turns_.push_back(kind);
  // One of more letters than a word has is none with fewer of them.
  said_.push_back(
      guess.found ? absl::StrCat("<guess>", guess.text.substr(0, kWordleLetters + 1), "</guess>")
                  : "");
  if (kind == TurnKind::kPlayed) {
    history_.push_back({.word = *guess.word, .pattern = Feedback(secret_, *guess.word)});
  }
  return kind;
}

void GameTally::Add(const WordleGame& game) {
  ++games_;
  if (game.solved()) {
    ++solved_;
    turns_of_solved_ += static_cast<int64_t>(game.turns().size());
  }
  for (const TurnKind kind : game.turns()) ++turns_[static_cast<int>(kind)];
  std::vector<WordleWord> left(secrets_.begin(), secrets_.end());
  for (const Guess& guess : game.history()) {
    const double before = std::max(1.0, static_cast<double>(left.size()));
    left = Candidates(left, {guess});
    const double after = std::max(1.0, static_cast<double>(left.size()));
    log_reductions_ += std::log(before / after);
    fraction_reductions_ += 1 - after / before;
  }
}

std::vector<GameFigure> GameTally::Figures() const {
  const auto of_kind = [&](TurnKind kind) {
    return static_cast<double>(turns_[static_cast<int>(kind)]);
  };
  const double turns =
      static_cast<double>(std::accumulate(std::begin(turns_), std::end(turns_), int64_t{0}));
  const double games = static_cast<double>(games_), solved = static_cast<double>(solved_);
  const double turns_of_solved = static_cast<double>(turns_of_solved_);
  const double played = of_kind(TurnKind::kPlayed);
  return {
      {"solve_rate", Ratio(solved, games)},
      {"mean_turns_solved", Ratio(turns_of_solved, solved)},
      {"mean_turns", Ratio(turns_of_solved + kTurnsOfUnsolved * (games - solved), games)},
      {"parse_fail_rate", Ratio(of_kind(TurnKind::kUnread) + of_kind(TurnKind::kNotAWord), turns)},
      {"out_of_vocabulary_rate", Ratio(of_kind(TurnKind::kNotInList), turns)},
      {"repeat_rate", Ratio(of_kind(TurnKind::kRepeated), turns)},
      {"mean_log_reduction", Ratio(log_reductions_, played)},
      {"mean_fraction_reduction", Ratio(fraction_reductions_, played)}};
}

}  // namespace espalier
