// The guess in what a model wrote, read strictly or leniently, and what such a turn is worth as a
// move. Used by worker/reward. Pure: any thread.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/reward/word_list.h"
#include "worker/reward/wordle.h"

namespace espalier {

// A completion follows a prompt that ends with "<think>", and has lost its end-of-text token.
struct WrittenGuess {
  // There is a guess in the form asked for, whatever it says.
  bool found = false;
  // A "</think>" stands before the guess.
  bool thought = false;
  // What it says, blanks around it (leniently: all but letters) removed.
  std::string text;
  // When that is a word: strictly five upper-case letters, leniently of any case.
  std::optional<WordleWord> word;
};

// The completion, "<think>" put before it, is exactly <think>...</think>, a line break and
// <guess>...</guess>, with none of these tags inside.
WrittenGuess ReadGuessStrictly(absl::string_view completion);

// The first <guess>...</guess>, of either case, wherever it stands; a label before its word
// ("word: crane") and all that is no letter are dropped.
WrittenGuess ReadGuessLeniently(absl::string_view completion);

// What a turn was. All but kPlayed use a turn up and tell nothing.
enum class TurnKind {
  kUnread,     // no guess was found
  kNotAWord,   // it is not five letters
  kNotInList,  // not in the vocabulary
  kRepeated,   // was played before
  kPlayed,
};
TurnKind KindOf(const WrittenGuess& guess, const WordList& words, absl::Span<const Guess> history);

// Why the turn is none, for a person; empty for kPlayed.
std::string Explain(TurnKind kind, const WrittenGuess& guess);

}  // namespace espalier
