#include "worker/chat/lexer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

class Splitter {
 public:
  explicit Splitter(absl::string_view source)
      : source_(absl::StrReplaceAll(source, {{"\r\n", "\n"}})), rest_(source_) {
    if (absl::EndsWith(rest_, "\n")) rest_.remove_suffix(1);
  }

  absl::StatusOr<std::vector<TemplatePart>> Run() {
    while (!rest_.empty()) {
      const size_t tag = NextTag();
      absl::string_view text = rest_.substr(0, tag);
      if (tag == absl::string_view::npos) {
        AddText(text);
        break;
      }
      const char kind = rest_[tag + 1];
      const char sign = tag + 2 < rest_.size() ? rest_[tag + 2] : ' ';
      AddText(WithoutSpacesBefore(text, kind, sign));
      Skip(tag + 2 + (sign == '-' || sign == '+' ? 1 : 0));
      RETURN_IF_ERROR(kind == '#' ? Comment() : Tag(kind));
    }
    return std::move(parts_);
  }

 private:
  size_t NextTag() const {
    for (size_t at = rest_.find('{'); at != rest_.npos; at = rest_.find('{', at + 1)) {
      const char next = at + 1 < rest_.size() ? rest_[at + 1] : ' ';
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return absl::string_view::npos;
  }

  // What is left of the text before a tag. A statement on a line of its own takes the indentation
  // along.
  absl::string_view WithoutSpacesBefore(absl::string_view text, char kind, char sign) const {
    if (sign == '-') return absl::StripTrailingAsciiWhitespace(text);
    if (sign == '+' || kind == '{') return text;
    const size_t newline = text.rfind('\n');
    if (newline == absl::string_view::npos && !at_line_start_) return text;
    const size_t line = newline == absl::string_view::npos ? 0 : newline + 1;
    const bool only_spaces = absl::StripAsciiWhitespace(text.substr(line)).empty();
    return only_spaces ? text.substr(0, line) : text;
  }

  void AddText(absl::string_view text) {
    if (text.empty()) return;
    parts_.push_back({TemplatePart::Kind::kText, std::string(text), line_});
  }

  void Skip(size_t bytes) {
    const absl::string_view skipped = rest_.substr(0, bytes);
    line_ += static_cast<int>(std::count(skipped.begin(), skipped.end(), '\n'));
    rest_.remove_prefix(skipped.size());
  }

  // After the end of a tag: the white space that goes with it.
  void EndTag(char sign, bool takes_newline) {
    at_line_start_ = false;
    if (sign == '-') {
      const size_t spaces = rest_.size() - absl::StripLeadingAsciiWhitespace(rest_).size();
      at_line_start_ = spaces > 0 && rest_[spaces - 1] == '\n';
      Skip(spaces);
    } else if (takes_newline && sign != '+' && absl::StartsWith(rest_, "\n")) {
      at_line_start_ = true;
      Skip(1);
    }
  }

  absl::Status Comment() {
    const size_t end = rest_.find("#}");
    if (end == absl::string_view::npos) return TemplateError(line_, "a comment has no #}");
    const char sign = end > 0 ? rest_[end - 1] : ' ';
    Skip(end + 2);
    EndTag(sign, /*takes_newline=*/true);
    return absl::OkStatus();
  }

  absl::Status Tag(char kind) {
    const absl::string_view close = kind == '{' ? "}}" : "%}";
    const size_t end = EndOf(close);
    if (end == absl::string_view::npos) {
      return TemplateError(line_, absl::StrCat("what is opened has no ", close));
    }
    absl::string_view text = rest_.substr(0, end);
    const char sign =
        !text.empty() && (text.back() == '-' || text.back() == '+') ? text.back() : ' ';
    if (sign != ' ') text.remove_suffix(1);
    const bool raw = kind == '%' && absl::StripAsciiWhitespace(text) == "raw";
    if (!raw) {
      parts_.push_back({kind == '{' ? TemplatePart::Kind::kOutput : TemplatePart::Kind::kStatement,
                        std::string(text), line_});
    }
    Skip(end + 2);
    EndTag(sign, kind == '%');
    return raw ? Raw() : absl::OkStatus();
  }

  absl::Status Raw() {
    for (size_t at = rest_.find("{%"); at != rest_.npos; at = rest_.find("{%", at + 1)) {
      const size_t end = rest_.find("%}", at);
      if (end == absl::string_view::npos) break;
      const absl::string_view tag = rest_.substr(at + 2, end - at - 2);
      const absl::string_view name =
          absl::StripAsciiWhitespace(absl::StripSuffix(absl::StripPrefix(tag, "-"), "-"));
      if (name != "endraw") continue;
      AddText(WithoutSpacesBefore(rest_.substr(0, at), '%', tag.front()));
      Skip(end + 2);
      EndTag(tag.back(), /*takes_newline=*/true);
      return absl::OkStatus();
    }
    return TemplateError(line_, "raw has no endraw");
  }

  // Where `close` stands outside of texts and brackets.
  size_t EndOf(absl::string_view close) const {
    int depth = 0;
    char quote = 0;
    for (size_t i = 0; i < rest_.size(); ++i) {
      const char c = rest_[i];
      if (quote != 0) {
        if (c == '\\') ++i;
        if (c == quote) quote = 0;
        continue;
      }
      if (depth == 0 && absl::StartsWith(rest_.substr(i), close)) return i;
      if (c == '\'' || c == '"') quote = c;
      if (c == '(' || c == '[' || c == '{') ++depth;
      if ((c == ')' || c == ']' || c == '}') && depth > 0) --depth;
    }
    return absl::string_view::npos;
  }

  const std::string source_;
  absl::string_view rest_;
  int line_ = 1;
  bool at_line_start_ = true;  // where rest_ begins
  std::vector<TemplatePart> parts_;
};

}  // namespace

absl::Status TemplateError(int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("chat template, line ", line, ": ", what));
}

absl::StatusOr<std::vector<TemplatePart>> SplitTemplate(absl::string_view source) {
  return Splitter(source).Run();
}

}  // namespace espalier
