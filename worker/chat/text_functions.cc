#include "worker/chat/text_functions.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/tokenizer/unicode_text.h"

namespace espalier {
namespace {

constexpr size_t kStripBytesMax = 256;  // each is looked for in them
constexpr size_t kCharactersMax = size_t{1} << 20;
constexpr size_t kPartsMax = size_t{1} << 20;
constexpr size_t kShortWanted = 16;  // bytes at each place at most, if searched for simply

bool IsLetter(int32_t point) {
  return IsWord(point) && !(point >= '0' && point <= '9') && point != '_';
}

// As Python's str.isspace.
bool IsBlank(int32_t point) { return IsSpace(point) || (point >= 0x1c && point <= 0x1f); }

// Without the characters of `set`, or without white space where there is none, at its ends.
absl::string_view WithoutEnds(absl::string_view text, const std::string* set, bool left,
                              bool right) {
  const auto goes = [&](absl::string_view character, int32_t point) {
    return set != nullptr ? absl::StrContains(*set, character) : IsBlank(point);
  };
  while (left && !text.empty()) {
    const CodePoint point = FirstCodePoint(text);
    if (!goes(text.substr(0, point.bytes), point.value)) break;
    text.remove_prefix(point.bytes);
  }
  while (right && !text.empty()) {
    const CodePoint point = LastCodePoint(text);
    if (!goes(text.substr(text.size() - point.bytes), point.value)) break;
    text.remove_suffix(point.bytes);
  }
  return text;
}

}  // namespace

size_t CharactersOf(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

absl::StatusOr<std::vector<absl::string_view>> CharactersIn(absl::string_view text) {
  if (text.size() > kCharactersMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the characters of a text of over ", kCharactersMax, " bytes"));
  }
  std::vector<absl::string_view> characters;
  while (!text.empty()) {
    characters.push_back(text.substr(0, FirstCodePoint(text).bytes));
    text.remove_prefix(characters.back().size());
  }
  return characters;
}

size_t FindText(absl::string_view text, absl::string_view wanted) {
  if (wanted.size() > text.size()) return absl::string_view::npos;
  if (wanted.size() <= kShortWanted) return text.find(wanted);
  // Knuth, Morris and Pratt 1977: `border` has of each beginning of `wanted` the length of its
  // longest end that begins it.
  std::vector<uint32_t> border(wanted.size());
  const auto extended = [&](uint32_t length, char next) {
    while (length > 0 && wanted[length] != next) length = border[length - 1];
    return wanted[length] == next ? length + 1 : 0;
  };
  for (size_t i = 1; i < wanted.size(); ++i) border[i] = extended(border[i - 1], wanted[i]);
  uint32_t length = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    length = extended(length, text[i]);
    if (length == wanted.size()) return i + 1 - wanted.size();
  }
  return absl::string_view::npos;
}

absl::StatusOr<absl::string_view> Stripped(absl::string_view text, const Value* characters,
                                           bool left, bool right) {
  const std::string* set = characters == nullptr ? nullptr : characters->text();
  if (set != nullptr && set->size() > kStripBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("strip of over ", kStripBytesMax, " bytes of characters"));
  }
  return WithoutEnds(text, set, left, right);
}

absl::StatusOr<Value> ReplaceText(absl::string_view text, absl::string_view old,
                                  absl::string_view by, const Value* count) {
  int64_t left = count == nullptr || count->is_none() ? -1 : count->integer();
  std::string out;
  while (!old.empty() && left != 0) {
    const size_t at = FindText(text, old);
    if (at == text.npos) break;
    absl::StrAppend(&out, text.substr(0, at), by);
    text.remove_prefix(at + old.size());
    RETURN_IF_ERROR(CheckTextSize(out.size()));
    --left;
  }
  absl::StrAppend(&out, text);
  return Value::Text(std::move(out));
}

absl::StatusOr<Value> IndentLines(absl::string_view text, absl::string_view spaces, bool first,
                                  bool blank) {
  std::string out;
  bool indent = first;
  for (;;) {
    const size_t end = text.find('\n');
    const absl::string_view line = text.substr(0, end);
    absl::StrAppend(&out, indent && (blank || !line.empty()) ? spaces : "", line);
    RETURN_IF_ERROR(CheckTextSize(out.size()));
    if (end == text.npos) return Value::Text(std::move(out));
    out += '\n';
    text.remove_prefix(end + 1);
    indent = true;
  }
}

std::string WithCapitals(absl::string_view text, bool every_word) {
  std::string out;
  bool begins = true;
  while (!text.empty()) {
    const CodePoint point = FirstCodePoint(text);
    const absl::string_view character = text.substr(0, point.bytes);
    if (point.value >= 0 && point.value < 0x80) {
      const auto byte = static_cast<unsigned char>(text.front());
      out += begins ? absl::ascii_toupper(byte) : absl::ascii_tolower(byte);
    } else {
      out += begins ? Upper(character) : Lower(character);
    }
    begins = every_word && !IsLetter(point.value);
    text.remove_prefix(point.bytes);
  }
  return out;
}

absl::StatusOr<Value> SplitText(absl::string_view text, const Value* separator, int64_t most) {
  Value::List parts;
  const auto add = [&](absl::string_view part) -> absl::Status {
    if (parts.size() == kPartsMax) {
      return absl::ResourceExhaustedError(absl::StrCat("split into over ", kPartsMax, " parts"));
    }
    ASSIGN_OR_RETURN(Value value, Value::Text(std::string(part)));
    parts.push_back(std::move(value));
    return absl::OkStatus();
  };
  const bool by_space = separator == nullptr || separator->text() == nullptr;
  if (!by_space && separator->text()->empty()) {
    return absl::InvalidArgumentError("split is given an empty separator");
  }
  if (by_space) text = WithoutEnds(text, nullptr, true, false);
  while (by_space ? !text.empty() : true) {
    size_t end = by_space ? 0 : FindText(text, *separator->text());
    while (by_space && end < text.size()) {
      const CodePoint point = FirstCodePoint(text.substr(end));
      if (IsBlank(point.value)) break;
      end += point.bytes;
    }
    const bool last =
        end >= text.size() || (most >= 0 && static_cast<int64_t>(parts.size()) >= most);
    if (last) {
      RETURN_IF_ERROR(add(text));
      break;
    }
    RETURN_IF_ERROR(add(text.substr(0, end)));
    text.remove_prefix(by_space ? end : end + separator->text()->size());
    if (by_space) text = WithoutEnds(text, nullptr, true, false);
  }
  return Value::Of(std::move(parts));
}

}  // namespace espalier
