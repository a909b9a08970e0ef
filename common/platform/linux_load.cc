// How busy the processors are, and with what, see proc(5).
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/platform/linux_machine.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

// Places in the line of all processors, and after the name in that of a process.
enum { kUser = 1, kSystem = 3, kInterrupts = 6, kSoftInterrupts = 7 };
enum { kProcessUser = 11, kProcessSystem = 12 };

int64_t NumberAt(const std::vector<absl::string_view>& words, size_t place) {
  int64_t number = 0;
  return place < words.size() && absl::SimpleAtoi(words[place], &number) ? number : 0;
}

// "4711 (espalier-worker) S 1 ..."; the name may hold anything.
std::optional<int64_t> TicksOf(const std::string& line, const std::string& program) {
  const size_t begin = line.find('(');
  const size_t end = line.rfind(')');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return std::nullopt;
  const absl::string_view text = line;
  if (!absl::StartsWith(text.substr(begin + 1, end - begin - 1), program)) return std::nullopt;
  const std::vector<absl::string_view> words =
      absl::StrSplit(text.substr(end + 1), ' ', absl::SkipEmpty());
  return NumberAt(words, kProcessUser) + NumberAt(words, kProcessSystem);
}

}  // namespace

std::optional<LinuxTimes> ReadTimes(const std::string& root, const std::string& program) {
  LinuxTimes times;
  for (const std::string& line : ReadLines(root + "proc/stat")) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty() || !absl::StartsWith(words[0], "cpu")) continue;
    if (words[0] != "cpu") {
      ++times.processors;
      continue;
    }
    for (const int place : {kUser, kSystem, kInterrupts, kSoftInterrupts}) {
      times.busy += NumberAt(words, static_cast<size_t>(place));
    }
  }
  if (times.processors == 0) return std::nullopt;
  std::error_code error;
  for (fs::directory_iterator entry(root + "proc", error), end; !error && entry != end;
       entry.increment(error)) {
    int64_t pid = 0;
    if (!absl::SimpleAtoi(entry->path().filename().string(), &pid)) continue;
    const std::vector<std::string> lines = ReadLines((entry->path() / "stat").string());
    if (lines.empty()) continue;
    if (const auto ticks = TicksOf(lines[0], program)) times.of_program[pid] = *ticks;
  }
  return times;
}

}  // namespace espalier
