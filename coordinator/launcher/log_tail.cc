#include "coordinator/launcher/log_tail.h"

#include <fstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/config/utf8.h"

namespace espalier {
namespace {

constexpr std::streamoff kTailBytes = 16384;
constexpr size_t kLongest = 300;

std::string ReadTail(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  const std::streamoff from = size > kTailBytes ? size - kTailBytes : 0;
  std::string text(static_cast<size_t>(size - from), '\0');
  file.seekg(from);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

// Rules and the sentences that mpirun wraps around every failure.
bool IsDecoration(absl::string_view line) {
  return line.empty() || absl::StartsWith(line, "---") ||
         absl::StrContains(line, "Primary job  terminated normally") ||
         absl::StrContains(line, "a non-zero exit code") ||
         absl::StrContains(line, "process returned") ||
         absl::StrContains(line, "the job to be terminated");
}

}  // namespace

std::string LastWords(const std::string& log_path) {
  const std::string text = ReadTail(log_path);
  std::string last, named;
  for (absl::string_view raw : absl::StrSplit(text, '\n')) {
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (IsDecoration(line)) continue;
    last = std::string(line);
    if (absl::StrContains(line, "mpirun noticed that process")) named = last;
  }
  std::string& words = named.empty() ? last : named;
  if (words.size() > kLongest) words = words.substr(0, kLongest - 3) + "...";
  return AsUtf8(words);
}

std::string AsUtf8(std::string text) {
  std::string clean;
  absl::string_view rest = text;
  while (true) {
    const size_t valid = ValidUtf8Prefix(rest);
    if (clean.empty() && valid == text.size()) return text;
    absl::StrAppend(&clean, rest.substr(0, valid));
    rest.remove_prefix(valid);
    if (rest.empty()) return clean;
    clean.push_back('?');
    rest.remove_prefix(1);
  }
}

}  // namespace espalier
