// Whole games of Wordle, which a model plays to its best: all at once, turn by turn, by all ranks
// together. Used by grpo_practice.h and open_grpo.cc. Compute thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/observe/task_figures.h"
#include "espalier/v1/job.pb.h"
#include "worker/reward/word_list.h"
#include "worker/reward/wordle.h"
#include "worker/reward/wordle_game.h"
#include "worker/rollout/rollout.h"
#include "worker/task/paced_rollouts.h"

namespace espalier {

struct WordleMatch {
  Vocabulary vocabulary;
  std::vector<WordleWord> secrets;  // of the games
  int64_t trained = 0;              // secrets of validation that training has: they are left out
  bool practised = false;           // but where these are most of them: then none is
  // What the model is to go on from, before a turn.
  std::function<absl::StatusOr<std::vector<int32_t>>(const History&)> prompt;
};

// What a match is made of.
struct MatchPrompts {
  const std::vector<RolloutPrompt>& training;
  const std::vector<RolloutPrompt>& validation;
};
// The match of a job whose verifier is Wordle: games for the first `games` different secrets of the
// records of validation that no record of training has, or of all where it has most of them, asked
// as validation's prompts are (`encode` gives the ids of a text, as it gave theirs). Says which,
// and where fewer games are left than `games`. INVALID_ARGUMENT: a record is none of Wordle's; or
// the prompts are not in a form of `data make wordle`, so that nobody knows how the next turn is
// asked for.
using EncodeText = std::function<absl::StatusOr<std::vector<int32_t>>(const std::string& text)>;
absl::StatusOr<WordleMatch> MakeWordleMatch(Vocabulary vocabulary, const MatchPrompts& prompts,
                                            int64_t games, const EncodeText& encode);

// INVALID_ARGUMENT: before a game's last turn a model of that many positions has no room for a
// guess of `max_new_tokens`, which the shorter games of the data may not show.
absl::Status CheckRoomForGames(const WordleMatch& match, int64_t positions, int64_t max_new_tokens);

// All of the match, none of them begun.
std::vector<WordleGame> GamesOf(const WordleMatch& match);
bool AreOver(const std::vector<WordleGame>& games);
// Plays the next turn, with the likeliest ids, in as many games as an order takes; not all are
// over. False: the ranks were called away, and the games are as they were. Every rank calls it;
// errors as RolloutSource::Sample.
absl::StatusOr<bool> PlayTurns(const WordleMatch& match, const TrainingMoment& moment,
                               const Decoder& decoder, const RolloutAround& around,
                               PacedRollouts& source, std::vector<WordleGame>& games);
// Of games that are over (wordle_game.h says which).
std::vector<TaskFigure> FiguresOf(const WordleMatch& match, const std::vector<WordleGame>& games);

}  // namespace espalier
