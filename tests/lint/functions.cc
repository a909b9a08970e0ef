#include "tests/lint/functions.h"

#include <regex>

namespace espalier::lint {
namespace {

size_t Indentation(const std::string& line) { return line.find_first_not_of(' '); }

// "namespace {", "class X {", "if (...) {", "const auto f = [](...) {" and the like open blocks
// that are no functions, or parts of one.
bool OpensFunction(const std::string& line) {
  static const std::regex not_a_function(
      R"(^\s*(namespace|class|struct|enum|union|extern|if|for|while|switch|do|else|try|\}|case|return)\b.*|.* = \[.*)");
  static const std::regex body(
      R"(.*\)\s*(const|noexcept|override|final|->\s*[\w:<>*&, ]+|\s)*\{$)");
  return std::regex_match(line, body) && !std::regex_match(line, not_a_function);
}

}  // namespace

std::vector<FunctionSpan> Functions(const SourceFile& file) {
  std::vector<FunctionSpan> functions;
  const std::vector<std::string>& lines = file.lines;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty() || !EndsWith(lines[i], "{") || !OpensFunction(lines[i])) continue;
    size_t first = i;  // a signature may take several lines, each further one indented more
    while (first > 0 && Indentation(lines[first]) != 0 && Indentation(lines[first]) != 2) --first;
    const size_t indent = Indentation(lines[first]);
    size_t last = i + 1;
    while (last < lines.size() &&
           !(Indentation(lines[last]) == indent && lines[last][indent] == '}')) {
      ++last;
    }
    functions.push_back({.signature = lines[first],
                         .first_line = static_cast<int>(first + 1),
                         .lines = static_cast<int>(last - first + 1)});
    i = last;
  }
  return functions;
}

}  // namespace espalier::lint
