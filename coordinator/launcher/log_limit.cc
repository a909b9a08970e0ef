#include "coordinator/launcher/log_limit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status Errno(const std::string& what) { return absl::ErrnoToStatus(errno, what); }

// Whole lines of the last `bytes` of the file.
absl::StatusOr<std::string> Tail(int file, const std::string& path, int64_t bytes) {
  struct stat facts {};
  if (fstat(file, &facts) != 0) return Errno(absl::StrCat("cannot look at ", path));
  std::string text(static_cast<size_t>(bytes), '\0');
  const ssize_t got = pread(file, text.data(), text.size(), facts.st_size - bytes);
  if (got < 0) return Errno(absl::StrCat("cannot read ", path));
  text.resize(static_cast<size_t>(got));
  const size_t line = text.find('\n');
  return line == std::string::npos ? text : text.substr(line + 1);
}

absl::Status WriteAll(int file, absl::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Errno(absl::StrCat("cannot write ", path));
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t LogBytes(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

absl::Status ShortenLog(const std::string& path, const LogLimits& limits) {
  const int file = open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
  if (file < 0)
    return errno == ENOENT ? absl::OkStatus() : Errno(absl::StrCat("cannot open ", path));
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat facts {};
  if (fstat(file, &facts) != 0) return Errno(absl::StrCat("cannot look at ", path));
  if (facts.st_size <= limits.bytes) return absl::OkStatus();
  absl::StatusOr<std::string> kept = Tail(file, path, limits.bytes / 4);
  if (!kept.ok()) return kept.status();
  if (ftruncate(file, 0) != 0) return Errno(absl::StrCat("cannot shorten ", path));
  const std::string notice =
      absl::StrCat("(espalierd removed the first ",
                   facts.st_size - static_cast<int64_t>(kept->size()), " bytes of this log)\n");
  return WriteAll(file, absl::StrCat(notice, *kept), path);
}

absl::Status RemoveOldLogs(const std::string& folder, const LogLimits& limits) {
  std::vector<std::pair<std::string, int64_t>> logs;  // newest first
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    const auto bytes = static_cast<int64_t>(it->file_size(ignored));
    if (absl::StartsWith(name, "gen-") && absl::EndsWith(name, ".log") && !ignored) {
      logs.emplace_back(it->path().string(), bytes);
    }
  }
  // By length first: gen-10000 is newer than gen-9999.
  std::sort(logs.begin(), logs.end(), [](const auto& a, const auto& b) {
    return std::make_pair(a.first.size(), a.first) > std::make_pair(b.first.size(), b.first);
  });
  int64_t total = 0;
  for (size_t i = 0; i < logs.size(); ++i) {
    total += logs[i].second;
    if (i < static_cast<size_t>(limits.files) && total <= limits.job_bytes) continue;
    if (unlink(logs[i].first.c_str()) != 0 && errno != ENOENT) {
      return Errno(absl::StrCat("cannot remove ", logs[i].first));
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
