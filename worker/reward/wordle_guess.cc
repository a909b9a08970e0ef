#include "worker/reward/wordle_guess.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

constexpr char kThink[] = "<think>";
constexpr char kThinkEnd[] = "</think>";
constexpr char kGuess[] = "<guess>";
constexpr char kGuessEnd[] = "</guess>";
constexpr size_t kShownBytes = 40;

bool HasTag(absl::string_view text) {
  return absl::StrContains(text, kThink) || absl::StrContains(text, kThinkEnd) ||
         absl::StrContains(text, kGuess) || absl::StrContains(text, kGuessEnd);
}

// "word: crane!" -> "CRANE".
std::string BareWord(absl::string_view text) {
  const size_t colon = text.find(':');
  const auto is_label = [](char c) {
    return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == ' ' || c == '_' || c == '*';
  };
  if (colon != absl::string_view::npos &&
      std::all_of(text.begin(), text.begin() + static_cast<ptrdiff_t>(colon), is_label)) {
    text.remove_prefix(colon + 1);
  }
  std::string word;
  for (const char c : text) {
    if (absl::ascii_isalpha(static_cast<unsigned char>(c))) {
      word += absl::ascii_toupper(static_cast<unsigned char>(c));
    }
  }
  return word;
}

}  // namespace

WrittenGuess ReadGuessStrictly(absl::string_view completion) {
  const size_t thought = completion.find(kThinkEnd);
  if (thought == absl::string_view::npos || HasTag(completion.substr(0, thought))) return {};
  absl::string_view rest = completion.substr(thought + sizeof(kThinkEnd) - 1);
  if (!absl::ConsumePrefix(&rest, "\n") || !absl::ConsumePrefix(&rest, kGuess) ||
      !absl::ConsumeSuffix(&rest, kGuessEnd) || HasTag(rest)) {
    return {};
  }
  WrittenGuess guess{.found = true, .thought = true};
  guess.text = std::string(absl::StripAsciiWhitespace(rest));
  if (std::all_of(guess.text.begin(), guess.text.end(),
                  [](char c) { return absl::ascii_isupper(static_cast<unsigned char>(c)); })) {
    guess.word = WordleWord::Parse(guess.text);
  }
  return guess;
}

WrittenGuess ReadGuessLeniently(absl::string_view completion) {
  const std::string lower = absl::AsciiStrToLower(completion);
  const size_t begin = lower.find(kGuess);
  if (begin == std::string::npos) return {};
  const size_t text = begin + sizeof(kGuess) - 1;
  const size_t end = lower.find(kGuessEnd, text);
  if (end == std::string::npos) return {};
  WrittenGuess guess{.found = true};
  guess.thought = lower.find(kThinkEnd) < begin;
  guess.text = BareWord(completion.substr(text, end - text));
  guess.word = WordleWord::Parse(guess.text);
  return guess;
}

TurnKind KindOf(const WrittenGuess& guess, const WordList& words, absl::Span<const Guess> history) {
  if (!guess.found) return TurnKind::kUnread;
  if (guess.text.size() != kWordleLetters) return TurnKind::kNotAWord;
  if (!guess.word || !words.contains(*guess.word)) return TurnKind::kNotInList;
  const bool repeated = std::any_of(history.begin(), history.end(), [&](const Guess& earlier) {
    return earlier.word == *guess.word;
  });
  return repeated ? TurnKind::kRepeated : TurnKind::kPlayed;
}

std::string Explain(TurnKind kind, const WrittenGuess& guess) {
  const std::string shown =
      absl::StrCat("'", absl::CHexEscape(guess.text.substr(0, kShownBytes)), "'");
  switch (kind) {
    case TurnKind::kUnread:
      return "there is no <guess>WORD</guess> in the form asked for";
    case TurnKind::kNotAWord:
      return absl::StrCat(shown, " is not five letters");
    case TurnKind::kNotInList:
      return absl::StrCat(shown, " is not in the list of words");
    case TurnKind::kRepeated:
      return absl::StrCat(shown, " was guessed before");
    case TurnKind::kPlayed:
      return "";
  }
  return "";
}

}  // namespace espalier
