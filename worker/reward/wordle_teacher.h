// Good games of Wordle to learn from. The teacher sees what a player sees, never the secret: it
// guesses words that agree with the marks, and says what it knows. Used by
// worker/verbs.h. Pure but for what it writes: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/random.h"
#include "worker/reward/data_writer.h"
#include "worker/reward/prompts.h"
#include "worker/reward/word_list.h"
#include "worker/reward/wordle.h"

namespace espalier {

// How a teacher chooses among the words that agree.
struct WordleTeacher {
  // The one expected to tell most of so many, drawn at random; 1: any.
  int considered = 32;
};

// The teacher's next word: a secret that agrees with the history. `candidates` are all of these, at
// least one.
WordleWord TeachGuess(const WordleTeacher& teacher, absl::Span<const WordleWord> candidates,
                      SplitMix64& random);

// What the history says, in a sentence or two, and that `guess` agrees with it.
std::string TeachThoughts(absl::Span<const Guess> history, WordleWord guess);

// A game to its end, at most six turns. `secrets` has `secret`.
History TeachGame(const WordleTeacher& teacher, WordleWord secret,
                  absl::Span<const WordleWord> secrets, SplitMix64& random);

// What games for validation do not have in common with those for training: the secrets too, which
// asks for words that never earned anything, or the states alone.
enum class WordleHoldOut { kSecrets, kPositions };
absl::StatusOr<WordleHoldOut> ParseWordleHoldOut(absl::string_view name);

// A game before its end, of so many guesses, by one who errs: none is the secret or comes twice.
History ErringGame(double erring, size_t guesses, WordleWord secret,
                   absl::Span<const WordleWord> secrets, SplitMix64& random);

struct WordleDataOptions {
  DataAmount amount;  // games
  WordleTeacher teacher;
  // Above 0, prompts are positions of players who err: of their guesses this part is any secret,
  // the others agree with the marks. A teacher never meets the positions that a learner gets into.
  double erring = 0;
  WordleHoldOut hold_out = WordleHoldOut::kSecrets;
  PromptForm form = PromptForm::kChat;
};

// Every turn of every game is an example; of each game one state, after any number of its guesses
// but the last, is a prompt; or such a state of one who errs on the same secret. No secret of a
// game for training is one of a game for validation, where these are held out. Of a game for
// validation those states are left out that games for training have too: so the beginning of a game
// always, and a game of which nothing is left is replaced by a further one. What is made for
// training does not depend on that. INVALID_ARGUMENT: too few secrets for both, or nothing is left
// of game after game.
absl::Status MakeWordleData(const Vocabulary& vocabulary, const WordleDataOptions& options,
                            DataWriter& writer);

}  // namespace espalier
