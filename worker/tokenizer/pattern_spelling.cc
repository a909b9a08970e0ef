// Expressions of Oniguruma in the spelling of PCRE2.
#include <array>
#include <cctype>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/tokenizer/text_pattern.h"

namespace espalier {
namespace {

// The property White_Space, which \s is to Oniguruma; PCRE2's has U+180E as well.
constexpr char kSpaces[] =
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"
    "\\x{3000}";

bool IsCategory(absl::string_view name) {
  static constexpr std::array<absl::string_view, 36> kCategories{
      "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
      "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
      "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn"};
  for (const absl::string_view category : kCategories) {
    if (category == name) return true;
  }
  return false;
}

class Translation {
 public:
  explicit Translation(absl::string_view expression) : whole_(expression), rest_(expression) {}

  absl::StatusOr<std::string> Run() {
    while (!rest_.empty()) {
      const char c = rest_.front();
      if (c == '\\') {
        RETURN_IF_ERROR(Escape());
      } else if (c == '[') {
        RETURN_IF_ERROR(OpenClass());
      } else if (c == ']' && in_class_) {
        in_class_ = false;
        Copy(1);
      } else if (in_class_ && absl::StartsWith(rest_, "&&")) {
        return Unknown("&& in a class");
      } else if (!in_class_ && c == '(') {
        RETURN_IF_ERROR(OpenGroup());
      } else if (!in_class_ && (c == '$' || c == '^')) {
        return Unknown(absl::StrCat("the anchor ", std::string(1, c)));
      } else if (!in_class_ && absl::StartsWith(rest_, "{,")) {
        return Unknown("{,n}");
      } else {
        Copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  absl::Status Unknown(absl::string_view what) const {
    return absl::UnimplementedError(
        absl::StrCat("the regular expression '", whole_.substr(0, 200), "' has ", what,
                     ", which is not supported; allowed: groups, classes, \\s, \\S, \\d, \\D, "
                     "general categories such as \\p{L}, quantifiers, look-around"));
  }

  void Copy(size_t bytes) {
    absl::StrAppend(&out_, rest_.substr(0, bytes));
    rest_.remove_prefix(bytes);
  }

  void Replace(size_t bytes, absl::string_view by) {
    absl::StrAppend(&out_, by);
    rest_.remove_prefix(bytes);
  }

  absl::Status OpenClass() {
    if (in_class_) return Unknown("a class within a class");
    in_class_ = true;
    Copy(absl::StartsWith(rest_, "[^") ? 2 : 1);
    return absl::StartsWith(rest_, "]") ? Unknown("an empty class") : absl::OkStatus();
  }

  absl::Status OpenGroup() {
    for (const absl::string_view opening : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (!absl::StartsWith(rest_, opening)) continue;
      Copy(opening.size());
      return absl::OkStatus();
    }
    if (absl::StartsWith(rest_, "(?") || absl::StartsWith(rest_, "(*")) {
      return Unknown(absl::StrCat("the group ", rest_.substr(0, 4)));
    }
    Replace(1, "(?:");  // what it captures is used by nobody
    return absl::OkStatus();
  }

  absl::Status Escape() {
    if (rest_.size() < 2) return Unknown("a \\ at its end");
    const char c = rest_[1];
    if (c == 's') {
      Replace(2, in_class_ ? std::string(kSpaces) : absl::StrCat("[", kSpaces, "]"));
      return absl::OkStatus();
    }
    if (c == 'S' && !in_class_) {
      Replace(2, absl::StrCat("[^", kSpaces, "]"));
      return absl::OkStatus();
    }
    if (c == 'p' || c == 'P') return Property();
    const bool letter = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (letter && absl::string_view("dDrntfv").find(c) == absl::string_view::npos) {
      if (c != 'u' && c != 'x') return Unknown(absl::StrCat("\\", std::string(1, c)));
      return Number();
    }
    Copy(c == 'v' ? 0 : 2);
    if (c == 'v') Replace(2, "\\x0b");  // to PCRE2 it is every vertical space
    return absl::OkStatus();
  }

  // \p{L}, \P{N}, \pL
  absl::Status Property() {
    const absl::string_view after = rest_.substr(2);
    const size_t close = after.find('}');
    if (!absl::StartsWith(after, "{") || close == absl::string_view::npos) {
      return Unknown("a property without {}");
    }
    absl::string_view name = after.substr(1, close - 1);
    const bool negated = absl::StartsWith(name, "^");
    if (negated) name.remove_prefix(1);
    if (!IsCategory(name)) return Unknown(absl::StrCat("\\p{", name.substr(0, 40), "}"));
    Copy(2 + close + 1);
    return absl::OkStatus();
  }

  // \u12ab, \x1f, \x{12ab}
  absl::Status Number() {
    const bool braces = rest_[1] == 'x' && absl::StartsWith(rest_.substr(2), "{");
    const size_t close = rest_.find('}');
    const size_t begin = braces ? 3 : 2;
    const size_t digits = braces ? close - begin : rest_[1] == 'u' ? 4 : 2;
    const absl::string_view number = rest_.substr(begin, digits);
    if ((braces && close == absl::string_view::npos) || number.size() != digits || digits == 0 ||
        number.find_first_not_of("0123456789abcdefABCDEF") != absl::string_view::npos) {
      return Unknown(rest_.substr(0, 6));
    }
    Replace(begin + digits + (braces ? 1 : 0), absl::StrCat("\\x{", number, "}"));
    return absl::OkStatus();
  }

  const absl::string_view whole_;
  absl::string_view rest_;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> PcreOf(absl::string_view expression) {
  return Translation(expression).Run();
}

}  // namespace espalier
