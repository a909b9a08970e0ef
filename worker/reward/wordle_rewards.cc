#include "worker/reward/wordle_rewards.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "worker/reward/wordle_guess.h"

namespace espalier {
namespace {

int CountOf(LetterSet letters) { return __builtin_popcount(letters); }

LetterSet LetterAt(WordleWord word, int position) { return LetterSet{1} << word.letter(position); }

bool IsWord(TurnKind kind) { return kind == TurnKind::kPlayed || kind == TurnKind::kRepeated; }

// What a turn is judged by.
struct Turn {
  const WordlePosition& position;
  WrittenGuess guess;
  TurnKind kind;
  LetterKnowledge known;
  double progress;
};

double PredibaseFormat(const Turn& turn) {
  if (turn.kind == TurnKind::kUnread) return 0;
  if (turn.kind == TurnKind::kNotAWord) return 0.1;
  return turn.kind == TurnKind::kNotInList ? 0.5 : 1;
}

double PredibaseFeedback(const Turn& turn) {
  if (!turn.guess.word) return 0;
  if (turn.position.history.empty()) return 0.1;
  double reward = 0;
  for (int i = 0; i < kWordleLetters; ++i) {
    const LetterSet letter = LetterAt(*turn.guess.word, i);
    if (turn.known.green[i] & letter) {
      reward += 0.2;
    } else if (turn.known.all_yellow() & letter) {
      reward += turn.known.yellow[i] & letter ? -0.2 : 0.1;
    } else if (turn.known.grey & letter) {
      reward -= 0.5;
    } else {
      reward += 0.05;
    }
  }
  return reward;
}

double PredibaseInformation(const Turn& turn) {
  if (!IsWord(turn.kind)) return 0;
  return InformationShare(*turn.guess.word, turn.position.candidates);
}

double ShapedFormat(const Turn& turn) {
  if (turn.kind == TurnKind::kUnread) return 0;
  const double tags = turn.guess.thought ? 0.4 : 0.2;
  return tags + (IsWord(turn.kind) ? 0.4 : -1.5 * (0.5 + 0.5 * turn.progress));
}

// Of a letter that is known to be elsewhere than at its yellow places.
double ShapedYellow(const LetterKnowledge& known, WordleWord word, LetterSet letter) {
  for (int i = 0; i < kWordleLetters; ++i) {
    if (LetterAt(word, i) == letter) return known.yellow[i] & letter ? -0.2 : 0.3;
  }
  return -0.4;
}

double ShapedFeedback(const Turn& turn) {
  if (!IsWord(turn.kind)) return 0;
  const WordleWord word = *turn.guess.word;
  const LetterKnowledge& known = turn.known;
  if (turn.position.history.empty()) return 0.05 * CountOf(LettersOf(word));
  double reward = 0.05 * CountOf(LettersOf(word) & ~known.guessed);
  for (int i = 0; i < kWordleLetters; ++i) {
    if (known.green[i] != 0) reward += known.green[i] & LetterAt(word, i) ? 0.4 : -0.2;
    if (known.dead & LetterAt(word, i)) reward -= 0.5;
  }
  for (int letter = 0; letter < 26; ++letter) {
    const LetterSet one = LetterSet{1} << letter;
    if (known.all_yellow() & one) reward += ShapedYellow(known, word, one);
  }
  return std::max(reward, -1.2);
}

double ShapedAccuracy(const Turn& turn) {
  if (!IsWord(turn.kind)) return 0;
  const Pattern marks = Feedback(turn.position.secret, *turn.guess.word);
  double exact = 0, elsewhere = 0;
  for (int i = 0; i < kWordleLetters; ++i) {
    exact += marks.mark(i) == Mark::kGreen ? 1 : 0;
    elsewhere += marks.mark(i) == Mark::kYellow ? 1 : 0;
  }
  return std::min(1.0, 1.2 * (exact + 0.2 * elsewhere) / 6);
}

double ShapedInformation(const Turn& turn) {
  if (!IsWord(turn.kind)) return 0;
  LetterSet frequent = 0;
  for (const char c : absl::string_view("ETAOINSHRDLU")) frequent |= LetterSet{1} << (c - 'A');
  LetterSet allowed = 0;
  for (const WordleWord candidate : turn.position.candidates) allowed |= LettersOf(candidate);
  const LetterSet letters = LettersOf(*turn.guess.word) & allowed;
  return 0.6 * CountOf(letters) / 5 + 0.4 * CountOf(letters & frequent) / 5;
}

double GuessOnlyFormat(const Turn& turn) {
  if (turn.kind == TurnKind::kUnread || turn.kind == TurnKind::kNotAWord) return -2;
  return turn.kind == TurnKind::kNotInList ? -1.5 : 0.6;
}

double GuessOnlyRepeat(const Turn& turn) { return turn.kind == TurnKind::kRepeated ? -0.3 : 0; }

double GuessOnlyConsistency(const Turn& turn) {
  if (!IsWord(turn.kind)) return 0;
  return Agrees(*turn.guess.word, turn.position.history) ? 0.6 : -0.2;
}

double GuessOnlyInformation(const Turn& turn) {
  if (!IsWord(turn.kind)) return 0;
  const WordleWord word = *turn.guess.word;
  const Guess guess{.word = word, .pattern = Feedback(turn.position.secret, word)};
  const double before = static_cast<double>(turn.position.candidates.size());
  // The secret itself is left, also where it is not among the words.
  const double after = static_cast<double>(Candidates(turn.position.candidates, {guess}).size());
  return std::clamp(0.15 * std::log(std::max(before, 1.0) / std::max(after, 1.0)), 0.0, 0.8);
}

double GuessOnlySolved(const Turn& turn) {
  return IsWord(turn.kind) && *turn.guess.word == turn.position.secret ? 2 : 0;
}

double AgreeingConsistency(const Turn& turn) {
  return turn.kind == TurnKind::kPlayed && Agrees(*turn.guess.word, turn.position.history) ? 1 : 0;
}

double AgreeingSolved(const Turn& turn) { return GuessOnlySolved(turn) / 2; }

struct Part {
  const char* name;
  double (*reward)(const Turn& turn);
  bool may_begin_later = false;
};

std::vector<Part> PartsOf(RewardSet set) {
  switch (set) {
    case RewardSet::kPredibase:
      return {{"format", PredibaseFormat},
              {"feedback", PredibaseFeedback},
              {"information", PredibaseInformation, true}};
    case RewardSet::kShaped:
      return {{"format", ShapedFormat},
              {"feedback", ShapedFeedback},
              {"accuracy", ShapedAccuracy},
              {"information", ShapedInformation, true}};
    case RewardSet::kGuessOnly:
      return {{"format", GuessOnlyFormat},
              {"repeat", GuessOnlyRepeat},
              {"consistency", GuessOnlyConsistency},
              {"information", GuessOnlyInformation, true},
              {"solved", GuessOnlySolved}};
    case RewardSet::kAgreeing:
      return {{"consistency", AgreeingConsistency}, {"solved", AgreeingSolved}};
  }
  return {};
}

}  // namespace

absl::StatusOr<RewardSet> ParseRewardSet(absl::string_view text) {
  if (text == "predibase") return RewardSet::kPredibase;
  if (text == "shaped") return RewardSet::kShaped;
  if (text == "guess-only") return RewardSet::kGuessOnly;
  if (text == "agreeing") return RewardSet::kAgreeing;
  return absl::InvalidArgumentError(
      absl::StrCat("there is no set of Wordle's rewards '", text,
                   "'; allowed: predibase, shaped, guess-only, agreeing"));
}

Judgement JudgeTurn(const WordlePosition& position, const WordList& words,
                    absl::string_view completion, const WordleRewardOptions& options,
                    const TrainingMoment& moment) {
  WrittenGuess guess = options.set == RewardSet::kPredibase ? ReadGuessStrictly(completion)
                                                            : ReadGuessLeniently(completion);
  const TurnKind kind = KindOf(guess, words, position.history);
  const Turn turn{.position = position,
                  .guess = std::move(guess),
                  .kind = kind,
                  .known = KnowledgeOf(position.history),
                  .progress = moment.progress};
  Judgement judgement;
  for (const Part& part : PartsOf(options.set)) {
    const bool on = !part.may_begin_later || options.information.IsOn(moment);
    judgement.Add(part.name, on ? part.reward(turn) : 0);
  }
  judgement.invalid = Explain(kind, turn.guess);
  if (kind == TurnKind::kPlayed && !Agrees(*turn.guess.word, position.history)) {
    judgement.invalid = absl::StrCat(turn.guess.text, " does not agree with the marks so far");
  }
  return judgement;
}

}  // namespace espalier
