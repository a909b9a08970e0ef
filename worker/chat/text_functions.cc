#include "worker/chat/text_functions.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/tokenizer/unicode_text.h"

namespace espalier {
namespace {

constexpr size_t kTextBytesMax = size_t{64} << 20;

bool IsLetter(int32_t point) {
  return IsWord(point) && !(point >= '0' && point <= '9') && point != '_';
}

}  // namespace

size_t CharactersOf(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

absl::Status CheckTextSize(size_t bytes) {
  if (bytes <= kTextBytesMax) return absl::OkStatus();
  return absl::ResourceExhaustedError("the chat template makes a text of over 64 MiB");
}

absl::string_view Stripped(absl::string_view text, const Value* characters, bool left, bool right) {
  const bool given = characters != nullptr && characters->text() != nullptr;
  const absl::string_view set = given ? absl::string_view(*characters->text()) : "";
  const auto goes = [&](absl::string_view character, int32_t point) {
    return given ? absl::StrContains(set, character)
                 : IsSpace(point) || (point >= 0x1c && point <= 0x1f);
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

absl::StatusOr<Value> ReplaceText(absl::string_view text, absl::string_view old,
                                  absl::string_view by, const Value* count) {
  int64_t left = count == nullptr || count->is_none() ? -1 : count->integer();
  std::string out;
  while (!old.empty() && left != 0) {
    const size_t at = text.find(old);
    if (at == text.npos) break;
    absl::StrAppend(&out, text.substr(0, at), by);
    text.remove_prefix(at + old.size());
    RETURN_IF_ERROR(CheckTextSize(out.size()));
    --left;
  }
  absl::StrAppend(&out, text);
  return Value::Text(std::move(out));
}

std::string IndentLines(absl::string_view text, absl::string_view spaces, bool first, bool blank) {
  std::string out;
  bool indent = first;
  for (;;) {
    const size_t end = text.find('\n');
    const absl::string_view line = text.substr(0, end);
    absl::StrAppend(&out, indent && (blank || !line.empty()) ? spaces : "", line);
    if (end == text.npos) return out;
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
    out += begins ? Upper(character) : Lower(character);
    begins = every_word && !IsLetter(point.value);
    text.remove_prefix(point.bytes);
  }
  return out;
}

absl::StatusOr<Value> SplitText(absl::string_view text, const Value* separator, int64_t most) {
  Value::List parts;
  const auto add = [&](absl::string_view part) -> absl::Status {
    ASSIGN_OR_RETURN(Value value, Value::Text(std::string(part)));
    parts.push_back(std::move(value));
    return absl::OkStatus();
  };
  const bool by_space = separator == nullptr || separator->text() == nullptr;
  if (!by_space && separator->text()->empty()) {
    return absl::InvalidArgumentError("split is given an empty separator");
  }
  if (by_space) text = Stripped(text, nullptr, true, false);
  while (by_space ? !text.empty() : true) {
    size_t end = by_space ? 0 : text.find(*separator->text());
    while (by_space && end < text.size()) {
      const CodePoint point = FirstCodePoint(text.substr(end));
      if (IsSpace(point.value)) break;
      end += point.bytes;
    }
    const bool last =
        end >= text.size() || (most >= 0 && static_cast<int64_t>(parts.size()) >= most);
    if (last) {
      if (by_space) text = Stripped(text, nullptr, false, true);
      RETURN_IF_ERROR(add(text));
      break;
    }
    RETURN_IF_ERROR(add(text.substr(0, end)));
    text.remove_prefix(by_space ? end : end + separator->text()->size());
    if (by_space) text = Stripped(text, nullptr, true, false);
  }
  return Value::Of(std::move(parts));
}

}  // namespace espalier
