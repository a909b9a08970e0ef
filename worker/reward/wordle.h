// Wordle's rules: words, what the marks of a guess are, how they are written, which words agree
// with what is known, and what a guess is expected to tell. Used by worker/reward, worker/task and
// tests/bench/reward_bench.cc. Pure: any thread.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace espalier {

constexpr int kWordleLetters = 5;
constexpr int kWordleTurns = 6;

// Five letters A to Z, packed five bits each, the first one highest: words order as they spell.
class WordleWord {
 public:
  constexpr WordleWord() = default;
  // Five letters, all of either case; nullopt for anything else.
  static std::optional<WordleWord> Parse(absl::string_view text);

  // 0 for A to 25 for Z.
  constexpr int letter(int position) const {
    return static_cast<int>(bits_ >> (5 * (kWordleLetters - 1 - position))) & 31;
  }
  std::string text() const;  // upper case
  friend auto operator<=>(const WordleWord&, const WordleWord&) = default;

 private:
  uint32_t bits_ = 0;
};

// Letters as a set, bit 0 for A.
using LetterSet = uint32_t;
LetterSet LettersOf(WordleWord word);

enum class Mark {
  kGrey,    // the secret does not have the letter, or not as often
  kYellow,  // at another place
  kGreen,   // at this place
};

// The marks of a guess, as a number in base three, the first letter highest.
class Pattern {
 public:
  static constexpr int kCount = 243;
  constexpr Pattern() = default;
  constexpr explicit Pattern(int code) : code_(static_cast<uint8_t>(code)) {}
  constexpr int code() const { return code_; }
  constexpr Mark mark(int position) const {
    constexpr int kPower[] = {81, 27, 9, 3, 1};
    return static_cast<Mark>(code_ / kPower[position] % 3);
  }
  constexpr bool solved() const { return code_ == kCount - 1; }
  friend bool operator==(const Pattern&, const Pattern&) = default;

 private:
  uint8_t code_ = 0;
};

// Letters at their place are green. Of the rest, from left to right, each is yellow as long as the
// secret has such a letter that neither a green nor an earlier yellow one stands for.
Pattern Feedback(WordleWord secret, WordleWord guess);

struct Guess {
  WordleWord word;
  Pattern pattern;
  friend bool operator==(const Guess&, const Guess&) = default;
};
using History = std::vector<Guess>;

// Whether `word` may be the secret: as such it would give every guess the marks that it has. That
// is the whole rule, letters that occur twice included.
bool Agrees(WordleWord word, absl::Span<const Guess> history);
std::vector<WordleWord> Candidates(absl::Span<const WordleWord> words,
                                   absl::Span<const Guess> history);

// What a history says of single letters.
struct LetterKnowledge {
  LetterSet green[kWordleLetters] = {};   // at a position: at most one
  LetterSet yellow[kWordleLetters] = {};  // seen yellow at a position: they are elsewhere
  LetterSet grey = 0;                     // seen grey, whatever else they were
  LetterSet dead = 0;                     // seen, never green nor yellow: not in the secret
  LetterSet guessed = 0;

  LetterSet all_yellow() const { return yellow[0] | yellow[1] | yellow[2] | yellow[3] | yellow[4]; }
};
LetterKnowledge KnowledgeOf(absl::Span<const Guess> history);

// What a guess is expected to tell: how it splits the words that the secret may be. One pass over
// the candidates, some nanoseconds a word.
//
// By the code of the pattern: how many of the candidates would, as the secret, give `guess` those
// marks.
std::array<int32_t, Pattern::kCount> SplitByPattern(WordleWord guess,
                                                    absl::Span<const WordleWord> candidates);

// Bits that the marks of `guess` are expected to tell, every candidate being equally likely: the
// entropy of the split. 0 for no candidate, or one.
double InformationBits(WordleWord guess, absl::Span<const WordleWord> candidates);

// As a part of all bits that there are to know, log2 of the candidates: 0 to 1.
double InformationShare(WordleWord guess, absl::Span<const WordleWord> candidates);

// "C(x) R(x) A(-) N(x) E(-)"; green is ✓.
std::string SpellMarks(const Guess& guess);
// "XXYXY".
std::string SpellPattern(Pattern pattern);
// Of both forms, in which green may also be √ or G, yellow Y, and grey X, of either case.
// INVALID_ARGUMENT: something else, or the letters are not those of `word`.
absl::StatusOr<Pattern> ParseMarks(WordleWord word, absl::string_view text);

}  // namespace espalier
