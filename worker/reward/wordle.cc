#include "worker/reward/wordle.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

// The mark at the beginning of `text`, which it loses.
std::optional<Mark> TakeMark(absl::string_view& text) {
  static constexpr std::pair<absl::string_view, Mark> kMarks[] = {
      {"✓", Mark::kGreen},  {"√", Mark::kGreen},  {"G", Mark::kGreen},
      {"g", Mark::kGreen},  {"-", Mark::kYellow}, {"Y", Mark::kYellow},
      {"y", Mark::kYellow}, {"x", Mark::kGrey},   {"X", Mark::kGrey}};
  for (const auto& [spelling, mark] : kMarks) {
    if (absl::ConsumePrefix(&text, spelling)) return mark;
  }
  return std::nullopt;
}

// "C(x)" or, without a letter, "x".
std::optional<Mark> TakeLetter(WordleWord word, int position, absl::string_view& text) {
  text = absl::StripLeadingAsciiWhitespace(text);
  const bool spelled = text.size() > 1 && text[1] == '(';
  if (spelled) {
    if (absl::ascii_toupper(static_cast<unsigned char>(text[0])) != word.text()[position]) {
      return std::nullopt;
    }
    text.remove_prefix(2);
  }
  const std::optional<Mark> mark = TakeMark(text);
  if (spelled && !absl::ConsumePrefix(&text, ")")) return std::nullopt;
  return mark;
}

}  // namespace

std::optional<WordleWord> WordleWord::Parse(absl::string_view text) {
  if (text.size() != kWordleLetters) return std::nullopt;
  const char first = absl::ascii_islower(static_cast<unsigned char>(text[0])) ? 'a' : 'A';
  WordleWord word;
  for (const char c : text) {
    if (c < first || c > first + 25) return std::nullopt;
    word.bits_ = word.bits_ << 5 | static_cast<uint32_t>(c - first);
  }
  return word;
}

std::string WordleWord::text() const {
  std::string text(kWordleLetters, ' ');
  for (int i = 0; i < kWordleLetters; ++i) text[i] = static_cast<char>('A' + letter(i));
  return text;
}

LetterSet LettersOf(WordleWord word) {
  LetterSet letters = 0;
  for (int i = 0; i < kWordleLetters; ++i) letters |= LetterSet{1} << word.letter(i);
  return letters;
}

Pattern Feedback(WordleWord secret, WordleWord guess) {
  int8_t left[32] = {};  // letters of the secret that no mark stands for
  int marks[kWordleLetters] = {};
  for (int i = 0; i < kWordleLetters; ++i) {
    if (secret.letter(i) == guess.letter(i)) {
      marks[i] = static_cast<int>(Mark::kGreen);
    } else {
      ++left[secret.letter(i)];
    }
  }
  int code = 0;
  for (int i = 0; i < kWordleLetters; ++i) {
    if (marks[i] == 0 && left[guess.letter(i)] > 0) {
      --left[guess.letter(i)];
      marks[i] = static_cast<int>(Mark::kYellow);
    }
    code = code * 3 + marks[i];
  }
  return Pattern(code);
}

bool Agrees(WordleWord word, absl::Span<const Guess> history) {
  return std::all_of(history.begin(), history.end(), [&](const Guess& guess) {
    return Feedback(word, guess.word) == guess.pattern;
  });
}

std::vector<WordleWord> Candidates(absl::Span<const WordleWord> words,
                                   absl::Span<const Guess> history) {
  std::vector<WordleWord> candidates;
  for (const WordleWord word : words) {
    if (Agrees(word, history)) candidates.push_back(word);
  }
  return candidates;
}

LetterKnowledge KnowledgeOf(absl::Span<const Guess> history) {
  LetterKnowledge known;
  LetterSet present = 0;
  for (const Guess& guess : history) {
    known.guessed |= LettersOf(guess.word);
    for (int i = 0; i < kWordleLetters; ++i) {
      const LetterSet letter = LetterSet{1} << guess.word.letter(i);
      switch (guess.pattern.mark(i)) {
        case Mark::kGrey:
          known.grey |= letter;
          break;
        case Mark::kYellow:
          known.yellow[i] |= letter;
          present |= letter;
          break;
        case Mark::kGreen:
          known.green[i] |= letter;
          present |= letter;
          break;
      }
    }
  }
  known.dead = known.guessed & ~present;
  return known;
}

std::array<int32_t, Pattern::kCount> SplitByPattern(WordleWord guess,
                                                    absl::Span<const WordleWord> candidates) {
  std::array<int32_t, Pattern::kCount> split{};
  for (const WordleWord candidate : candidates) {
    ++split[static_cast<size_t>(Feedback(candidate, guess).code())];
  }
  return split;
}

double InformationBits(WordleWord guess, absl::Span<const WordleWord> candidates) {
  if (candidates.size() < 2) return 0;
  const double n = static_cast<double>(candidates.size());
  double left = 0;  // bits that are expected to be unknown afterwards
  for (const int32_t count : SplitByPattern(guess, candidates)) {
    if (count > 1) left += count / n * std::log2(count);
  }
  return std::log2(n) - left;
}

double InformationShare(WordleWord guess, absl::Span<const WordleWord> candidates) {
  if (candidates.size() < 2) return 0;
  return InformationBits(guess, candidates) / std::log2(static_cast<double>(candidates.size()));
}

std::string SpellMarks(const Guess& guess) {
  static constexpr absl::string_view kSpelling[] = {"x", "-", "✓"};
  const std::string word = guess.word.text();
  std::string text;
  for (int i = 0; i < kWordleLetters; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " ", word.substr(i, 1), "(",
                    kSpelling[static_cast<int>(guess.pattern.mark(i))], ")");
  }
  return text;
}

std::string SpellPattern(Pattern pattern) {
  std::string text;
  for (int i = 0; i < kWordleLetters; ++i) text += "XYG"[static_cast<int>(pattern.mark(i))];
  return text;
}

absl::StatusOr<Pattern> ParseMarks(WordleWord word, absl::string_view text) {
  absl::string_view rest = text;
  int code = 0;
  for (int i = 0; i < kWordleLetters; ++i) {
    const std::optional<Mark> mark = TakeLetter(word, i, rest);
    if (!mark) {
      rest = "?";
      break;
    }
    code = code * 3 + static_cast<int>(*mark);
  }
  if (absl::StripAsciiWhitespace(rest).empty()) return Pattern(code);
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' are no marks of ", word.text(), "; write them as ",
                   SpellMarks({.word = word, .pattern = Pattern(0)}),
                   " (✓ at its place, - elsewhere, x not there) or as XYG.. (G, Y, X)"));
}

}  // namespace espalier
