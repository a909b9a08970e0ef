#include "coordinator/service/log_reader.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

constexpr size_t kLongestLine = 65536;
// Looked through in one call at most, however little of it is wanted.
constexpr size_t kLookBytes = 4 << 20;

std::string ReadFrom(const std::string& path, int64_t offset, size_t most_bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file || !file.seekg(offset)) return "";
  std::string text(most_bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(most_bytes));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

bool IsShorterThan(const std::string& path, int64_t offset) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  return !error && static_cast<int64_t>(bytes) < offset;
}

// N of "gen-000N.log"; 0: another file.
int64_t GenerationOf(absl::string_view name) {
  int64_t number = 0;
  if (!absl::ConsumePrefix(&name, "gen-") || !absl::ConsumeSuffix(&name, ".log")) return 0;
  return absl::SimpleAtoi(name, &number) ? number : 0;
}

}  // namespace

std::map<int64_t, std::string> GenerationLogs(const std::string& folder) {
  std::map<int64_t, std::string> logs;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const int64_t number = GenerationOf(it->path().filename().string());
    if (number > 0) logs[number] = it->path().string();
  }
  return logs;
}

LogReader::LogReader(std::string folder, LogSelection selection, LogPlace from)
    : folder_(std::move(folder)), selection_(selection) {
  if (from.generation <= Generation(0)) return;
  generation_ = from.generation.value() - 1;
  if (OpenNext() && generation_ == from.generation.value()) {
    offset_ = std::max<int64_t>(0, from.offset);
  }
}

// Takes the log of the next generation that has one.
bool LogReader::OpenNext() {
  const std::map<int64_t, std::string> logs = GenerationLogs(folder_);
  auto next = logs.upper_bound(generation_);
  if (selection_.generation && generation_ < selection_.generation->value()) {
    next = logs.find(selection_.generation->value());
  } else if (selection_.generation) {
    next = logs.end();
  }
  if (next == logs.end()) return false;
  generation_ = next->first;
  path_ = next->second;
  offset_ = 0;
  return true;
}

std::string LogReader::Filtered(std::string lines) const {
  if (!selection_.rank) return lines;
  const std::string mark = absl::StrCat("[rank ", selection_.rank->value(), "]");
  std::string kept;
  for (absl::string_view line : absl::StrSplit(lines, '\n')) {
    if (absl::StrContains(line, mark)) absl::StrAppend(&kept, line, "\n");
  }
  return kept;
}

std::string LogReader::Next(size_t most_bytes) {
  std::string text;
  at_end_ = false;
  for (size_t looked = 0; text.empty() && looked < kLookBytes;) {
    if (IsShorterThan(path_, offset_)) {
      offset_ = 0;
      partial_.clear();
    }
    std::string read = path_.empty() ? "" : ReadFrom(path_, offset_, most_bytes);
    offset_ += static_cast<int64_t>(read.size());
    looked += read.size();
    std::string lines = std::exchange(partial_, "");
    if (read.empty()) {
      const bool more = OpenNext();
      if (!more) {
        at_end_ = true;
        partial_ = std::move(lines);
        return text;
      }
      if (!lines.empty()) text = Filtered(absl::StrCat(lines, "\n"));
      continue;
    }
    absl::StrAppend(&lines, read);
    const size_t end = lines.rfind('\n');
    if (end != std::string::npos) {
      partial_ = lines.substr(end + 1);
      lines.resize(end + 1);
    } else if (lines.size() < kLongestLine) {
      partial_ = std::exchange(lines, "");
    }
    text = Filtered(std::move(lines));
  }
  return text;
}

std::string LogReader::Rest() {
  std::string rest = Filtered(std::exchange(partial_, ""));
  return rest;
}

}  // namespace espalier
