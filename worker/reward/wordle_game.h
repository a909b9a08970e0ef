// Whole games of Wordle, played by a model: turn by turn, and the figures of many of them. Used by
// worker/task, for evaluations, and by tests/worker/reward. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/reward/word_list.h"
#include "worker/reward/wordle.h"
#include "worker/reward/wordle_guess.h"

namespace espalier {

class WordleGame {
 public:
  // `words` outlives it.
  WordleGame(WordleWord secret, const WordList& words) : secret_(secret), words_(&words) {}

  // The next turn, read leniently: a guess, or what is none and uses the turn up. The game is not
  // over.
  TurnKind Play(absl::string_view completion);

  bool solved() const { return !history_.empty() && history_.back().pattern.solved(); }
  bool over() const { return solved() || turns().size() == kWordleTurns; }
  WordleWord secret() const { return secret_; }
  // Guesses that got marks.
  const History& history() const { return history_; }
  const std::vector<TurnKind>& turns() const { return turns_; }
  // Of each turn what makes the same one when it is played again.
  const std::vector<std::string>& said() const { return said_; }

 private:
  WordleWord secret_;
  const WordList* words_;
  History history_;
  std::vector<TurnKind> turns_;
  std::vector<std::string> said_;
};

struct GameFigure {
  std::string name;
  double value = 0;
};

// Figures of games that are over.
class GameTally {
 public:
  // `secrets`: what a candidate may be; they outlive the tally.
  explicit GameTally(absl::Span<const WordleWord> secrets) : secrets_(secrets) {}
  void Add(const WordleGame& game);

  // solve_rate; mean_turns_solved, of games that were; mean_turns, where a game that was not counts
  // 7; of all turns, parse_fail_rate, out_of_vocabulary_rate and repeat_rate; of turns that got
  // marks, mean_log_reduction, ln(candidates before / after), and mean_fraction_reduction, the part
  // of the candidates that is ruled out. 0 where there is nothing to take the mean of.
  std::vector<GameFigure> Figures() const;
  int64_t games() const { return games_; }

 private:
  absl::Span<const WordleWord> secrets_;
  int64_t games_ = 0;
  int64_t solved_ = 0;
  int64_t turns_of_solved_ = 0;
  int64_t turns_[static_cast<int>(TurnKind::kPlayed) + 1] = {};  // by kind
  double log_reductions_ = 0;
  double fraction_reductions_ = 0;
};

}  // namespace espalier
