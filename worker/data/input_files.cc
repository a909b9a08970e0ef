#include "worker/data/input_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

absl::Status PathError(const fs::path& path, const std::error_code& error) {
  return absl::ErrnoToStatus(error.value(), absl::StrCat("input ", path.string()));
}

absl::StatusOr<bool> LooksBinary(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path.string()));
  const absl::Cleanup close_it = [fd] { close(fd); };
  char head[8192];
  const ssize_t got = read(fd, head, sizeof(head));
  if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path.string()));
  return std::find(head, head + got, '\0') != head + got;
}

class Finder {
 public:
  Finder(const InputFiles& excluded, InputKind kind) : kind_(kind) {
    for (const InputFile& file : excluded.files) excluded_.insert(RealPath(file.path));
  }

  absl::Status Add(const fs::path& path, bool named) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (error) return PathError(path, error);
    if (fs::is_directory(status)) return Walk(path);
    if (fs::is_regular_file(status)) return AddFile(path, named);
    if (!named) return absl::OkStatus();  // sockets and the like inside a folder
    return absl::InvalidArgumentError(
        absl::StrCat("input ", path.string(), " is neither a file nor a folder"));
  }

  InputFiles Take() { return std::move(found_); }

 private:
  static std::string RealPath(const fs::path& path) {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    return error ? path.string() : real.string();
  }

  absl::Status Walk(const fs::path& folder) {
    std::error_code error;
    std::vector<fs::path> entries;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      entries.push_back(it->path());
    }
    if (error) return PathError(folder, error);
    std::sort(entries.begin(), entries.end());
    for (const fs::path& entry : entries) {
      if (absl::StartsWith(entry.filename().string(), ".")) continue;
      const bool link = fs::is_symlink(fs::symlink_status(entry, error));
      if (link && !fs::is_regular_file(fs::status(entry, error))) continue;
      RETURN_IF_ERROR(Add(entry, /*named=*/false));
    }
    return absl::OkStatus();
  }

  absl::Status AddFile(const fs::path& path, bool named) {
    if (excluded_.count(RealPath(path)) > 0) return absl::OkStatus();
    const std::string extension = path.extension().string();
    const bool parquet = extension == ".parquet";
    if (!named && !(parquet && kind_ == InputKind::kRows)) {
      ASSIGN_OR_RETURN(const bool binary, LooksBinary(path));
      found_.skipped += binary;
      if (binary) return absl::OkStatus();
    }
    std::error_code error;
    const uintmax_t bytes = fs::file_size(path, error);
    if (error) return PathError(path, error);
    found_.files.push_back({.path = path.string(),
                            .bytes = static_cast<int64_t>(bytes),
                            .jsonl = extension == ".jsonl" || extension == ".ndjson",
                            .parquet = parquet});
    return absl::OkStatus();
  }

  InputKind kind_;
  std::set<std::string> excluded_;
  InputFiles found_;
};

}  // namespace

int64_t InputFiles::bytes() const {
  int64_t sum = 0;
  for (const InputFile& file : files) sum += file.bytes;
  return sum;
}

absl::StatusOr<InputFiles> FindInputFiles(const std::vector<std::string>& paths,
                                          const InputFiles& excluded, InputKind kind) {
  Finder finder(excluded, kind);
  for (const std::string& path : paths) RETURN_IF_ERROR(finder.Add(path, /*named=*/true));
  return finder.Take();
}

absl::StatusOr<ForwardFile> ForwardFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  return ForwardFile(fd, path);
}

ForwardFile::ForwardFile(ForwardFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      buffer_(std::move(other.buffer_)),
      used_(other.used_),
      position_(other.position_),
      ended_(other.ended_) {}

ForwardFile::~ForwardFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status ForwardFile::Fill(size_t size) {
  if (used_ > 0) {
    buffer_.erase(0, used_);
    position_ += static_cast<int64_t>(std::exchange(used_, 0));
  }
  while (!ended_ && buffer_.size() < size) {
    const size_t had = buffer_.size();
    buffer_.resize(size);
    const ssize_t got = read(fd_, buffer_.data() + had, size - had);
    buffer_.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno != EINTR) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path_));
    }
    if (got == 0) ended_ = true;
  }
  return absl::OkStatus();
}

absl::string_view ForwardFile::Take(size_t size) {
  const absl::string_view taken = held().substr(0, size);
  used_ += taken.size();
  return taken;
}

}  // namespace espalier
