// What a guess of Wordle earns: four sets of rewards. Used by wordle_verifier.h and
// worker/rollout. Pure: any thread.
//
// P, `predibase`, reads strictly, and what it cannot read earns nothing:
//   format       0.1 not five upper-case letters, 0.5 not in the list, 1 a word
//   feedback     without a history 0.1; else of each letter 0.2 where it is known to be, a yellow
//                one 0.1 at a new place and -0.2 at one tried, -0.5 a grey one, else 0.05
//   information  of a word, the part of the bits left to know that it is expected to tell
//
// S, `shaped`, reads leniently; p is the progress of training:
//   format       0.4 with </think> before the guess, else 0.2; and 0.4 for a word, -1.5 (0.5 + 0.5
//   p)
//                for none. Words alone earn the rest
//   feedback     without a history 0.05 a different letter; else 0.4 for a known place kept and
//   -0.2
//                for one lost, for each yellow letter 0.3 (its first place in the guess is new),
//                -0.2 (it was tried) or -0.4 (it is missing), -0.5 for each use of a letter that is
//                not in the secret, 0.05 for each different letter not guessed before; -1.2 at
//                least
//   accuracy     min(1, 1.2 (exact + 0.2 elsewhere) / 6), of the letters shared with the secret
//   information  0.12 for each different letter that some candidate has, and 0.08 where it is one
//   of
//                ETAOINSHRDLU
//
// L, `guess-only`, reads leniently:
//   format       -2 unread, or not five letters; -1.5 not in the list; else 0.6. Words alone earn
//   the
//                rest
//   repeat       -0.3 for a word guessed before
//   consistency  0.6 when it agrees with the history, else -0.2
//   information  0.15 ln(candidates before / after its marks), 0 to 0.8
//   solved       2
//
// A, `agreeing`, reads leniently; what cannot win earns nothing, whatever is wrong with it, so that
// nothing is gained by another fault (in the other sets a word guessed before is better than none):
//   consistency  1 for a new word of the list that agrees with the history
//   solved       1
//
// `information` may begin at a later step; it is 0 before.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/reward/schedules.h"
#include "worker/reward/verifier.h"
#include "worker/reward/word_list.h"
#include "worker/reward/wordle.h"

namespace espalier {

enum class RewardSet { kPredibase, kShaped, kGuessOnly, kAgreeing };
// "predibase", "shaped", "guess-only" or "agreeing".
absl::StatusOr<RewardSet> ParseRewardSet(absl::string_view text);

struct WordleRewardOptions {
  RewardSet set = RewardSet::kPredibase;
  ComponentStart information;
};

// A game before its next turn.
struct WordlePosition {
  WordleWord secret;
  History history;
  std::vector<WordleWord> candidates;  // secrets that agree with the history
};

// The judgement of a turn; accepted is a new word of the list that agrees with the history.
Judgement JudgeTurn(const WordlePosition& position, const WordList& words,
                    absl::string_view completion, const WordleRewardOptions& options,
                    const TrainingMoment& moment);

}  // namespace espalier
