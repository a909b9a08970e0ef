// The words of an expression.
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/chat/lexer.h"

namespace espalier {
namespace {

constexpr size_t kWordsMax = 4096;  // bounds the depth of what is parsed
constexpr size_t kNameBytesMax = 256;

void AppendUtf8(uint32_t point, std::string& out) {
  const auto add = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (point < 0x80) return add(point);
  if (point < 0x800) {
    add(0xc0 | point >> 6);
  } else {
    if (point < 0x10000) {
      add(0xe0 | point >> 12);
    } else {
      add(0xf0 | point >> 18);
      add(0x80 | (point >> 12 & 0x3f));
    }
    add(0x80 | (point >> 6 & 0x3f));
  }
  add(0x80 | (point & 0x3f));
}

class WordReader {
 public:
  WordReader(absl::string_view text, int line) : rest_(text), line_(line) {}

  absl::StatusOr<std::vector<TemplateWord>> Run() {
    for (;;) {
      rest_ = absl::StripLeadingAsciiWhitespace(rest_);
      if (words_.size() > kWordsMax) {
        return TemplateError(line_, absl::StrCat("it has over ", kWordsMax, " words"));
      }
      if (rest_.empty()) break;
      const char c = rest_.front();
      if (c == '\'' || c == '"') {
        RETURN_IF_ERROR(Text(c));
      } else if (absl::ascii_isdigit(static_cast<unsigned char>(c))) {
        RETURN_IF_ERROR(Number());
      } else if (IsNamePart(c)) {
        size_t end = 1;
        while (end < rest_.size() && IsNamePart(rest_[end])) ++end;
        if (end > kNameBytesMax) {
          return TemplateError(line_, absl::StrCat("a name has over ", kNameBytesMax, " bytes"));
        }
        words_.push_back({TemplateWord::Kind::kName, Take(end)});
      } else {
        RETURN_IF_ERROR(Sign());
      }
    }
    words_.push_back({});
    return std::move(words_);
  }

 private:
  static bool IsNamePart(char c) {
    return c == '_' || absl::ascii_isalnum(static_cast<unsigned char>(c));
  }

  bool IsDigit(size_t at) const {
    return at < rest_.size() && absl::ascii_isdigit(static_cast<unsigned char>(rest_[at]));
  }

  std::string Take(size_t bytes) {
    std::string taken(rest_.substr(0, bytes));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  absl::Status Sign() {
    static constexpr std::array<absl::string_view, 29> kSigns{
        "==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "<", ">", "=",
        "(",  ")",  "[",  "]",  "{",  "}",  ",", ":", ".", "|", ";", "!", "&", "\\"};
    for (const absl::string_view sign : kSigns) {
      if (!absl::StartsWith(rest_, sign)) continue;
      words_.push_back({TemplateWord::Kind::kSign, Take(sign.size())});
      return absl::OkStatus();
    }
    return TemplateError(line_, absl::StrCat("'", rest_.substr(0, 1), "' is not expected here"));
  }

  absl::Status Number() {
    size_t end = 0;
    bool real = false, exponent_seen = false;
    while (end < rest_.size()) {
      const char c = rest_[end];
      const bool point = c == '.' && !real && IsDigit(end + 1);
      const size_t sign =
          end + 1 < rest_.size() && (rest_[end + 1] == '+' || rest_[end + 1] == '-');
      const bool exponent = (c == 'e' || c == 'E') && !exponent_seen && IsDigit(end + 1 + sign);
      if (!point && !exponent && !IsDigit(end)) break;
      real = real || point || exponent;
      exponent_seen = exponent_seen || exponent;
      end += exponent ? 1 + sign : 1;
    }
    TemplateWord word{real ? TemplateWord::Kind::kReal : TemplateWord::Kind::kInteger, Take(end)};
    const bool read =
        real ? absl::SimpleAtod(word.text, &word.real) : absl::SimpleAtoi(word.text, &word.integer);
    if (!read) {
      return TemplateError(line_,
                           absl::StrCat("the number ", word.text.substr(0, 40), " is too large"));
    }
    words_.push_back(std::move(word));
    return absl::OkStatus();
  }

  absl::Status Text(char quote) {
    std::string text;
    rest_.remove_prefix(1);
    while (!rest_.empty() && rest_.front() != quote) {
      if (rest_.front() == '\\' && rest_.size() > 1) {
        RETURN_IF_ERROR(Escape(text));
      } else {
        text += Take(1);
      }
    }
    if (rest_.empty()) return TemplateError(line_, "a text has no end");
    rest_.remove_prefix(1);
    const bool goes_on = !words_.empty() && words_.back().kind == TemplateWord::Kind::kText;
    if (goes_on) {
      words_.back().text += text;  // 'a' 'b' is 'ab'
    } else {
      words_.push_back({TemplateWord::Kind::kText, std::move(text)});
    }
    return absl::OkStatus();
  }

  absl::Status Escape(std::string& text) {
    static constexpr absl::string_view kNames = "ntrbfav0", kMeanings("\n\t\r\b\f\a\v\0", 8);
    const char c = rest_[1];
    rest_.remove_prefix(2);
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      uint32_t point = 0;
      if (rest_.size() < digits || !absl::SimpleHexAtoi(rest_.substr(0, digits), &point) ||
          point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) {
        return TemplateError(line_, absl::StrCat("\\", std::string(1, c), " names no character"));
      }
      rest_.remove_prefix(digits);
      AppendUtf8(point, text);
      return absl::OkStatus();
    }
    if (const size_t at = kNames.find(c); at != kNames.npos) {
      text += kMeanings[at];
    } else if (c == '\\' || c == '\'' || c == '"') {
      text += c;
    } else if (c != '\n') {
      text += '\\';
      text += c;
    }
    return absl::OkStatus();
  }

  absl::string_view rest_;
  const int line_;
  std::vector<TemplateWord> words_;
};

}  // namespace

absl::StatusOr<std::vector<TemplateWord>> WordsOf(const TemplatePart& part) {
  return WordReader(part.text, part.line).Run();
}

}  // namespace espalier
