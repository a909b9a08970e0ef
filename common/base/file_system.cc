#include "common/base/file_system.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

absl::Status Failed(int error, absl::string_view operation, absl::string_view path) {
  if (error == EISDIR) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot ", operation, " ", path, ": it is a folder; name a file"));
  }
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", operation, " ", path));
}

class PosixFile : public WritableFile {
 public:
  PosixFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  ~PosixFile() override {
    if (descriptor_ >= 0) close(descriptor_);
  }

  absl::Status Append(absl::Span<const std::byte> bytes) override {
    // macOS refuses a single write of 2^31 bytes or more.
    constexpr size_t kPieceMax = size_t{1} << 30;
    while (!bytes.empty()) {
      const ssize_t written = write(descriptor_, bytes.data(), std::min(bytes.size(), kPieceMax));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return Failed(errno, "write", path_);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    const int error = SyncDescriptor(descriptor_);
    return error == 0 ? absl::OkStatus() : Failed(error, "sync", path_);
  }

  absl::Status Close() override {
    const int result = close(std::exchange(descriptor_, -1));
    return result == 0 || errno == EINTR ? absl::OkStatus() : Failed(errno, "close", path_);
  }

 private:
  int descriptor_;
  std::string path_;
};

class RealFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return Failed(errno, "create", path);
    return std::make_unique<PosixFile>(fd, path);
  }

  absl::StatusOr<std::string> Read(const std::string& path, int64_t limit) override {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return Failed(errno, "open", path);
    const absl::Cleanup close_it = [fd] { close(fd); };
    std::string text;
    char buffer[1 << 16];
    for (;;) {
      const ssize_t got = read(fd, buffer, sizeof(buffer));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Failed(errno, "read", path);
      if (got == 0) return text;
      text.append(buffer, static_cast<size_t>(got));
      if (static_cast<int64_t>(text.size()) > limit) {
        return absl::ResourceExhaustedError(
            absl::StrCat(path, " is larger than the ", limit, " bytes it may have"));
      }
    }
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    std::error_code error;
    std::vector<std::string> names;
    std::filesystem::directory_iterator it(path, error), end;
    for (; !error && it != end; it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    if (error) return Failed(error.value(), "list", path);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status MakeDirectory(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    return error ? Failed(error.value(), "create folder", path) : absl::OkStatus();
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return Failed(errno, absl::StrCat("rename ", from, " to"), to);
  }

  absl::Status Remove(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    return error ? Failed(error.value(), "remove", path) : absl::OkStatus();
  }

  absl::Status SyncDirectory(const std::string& path) override {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return Failed(errno, "open folder", path);
    const absl::Cleanup close_it = [fd] { close(fd); };
    const int error = SyncDescriptor(fd);
    return error == 0 ? absl::OkStatus() : Failed(error, "sync folder", path);
  }
};

}  // namespace

FileSystem& PosixFileSystem() {
  static RealFileSystem& files = *new RealFileSystem();
  return files;
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Failed(errno, "open", path);
  const absl::Cleanup close_it = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return Failed(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  if (info.st_size == 0) return MappedFile();
  if (static_cast<uint64_t>(info.st_size) > SIZE_MAX / 2) {
    return absl::ResourceExhaustedError(absl::StrCat(path, " is too large to map"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return Failed(errno, "map", path);
  return MappedFile({static_cast<const std::byte*>(address), size});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::Drop(absl::Span<const std::byte> part) const {
  if (part.empty() || bytes_.empty()) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t first = begin / page * page;
  madvise(reinterpret_cast<void*>(first), begin + part.size() - first, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 absl::string_view text) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  const absl::Status written = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(temporary));
    RETURN_IF_ERROR(file->Append({reinterpret_cast<const std::byte*>(text.data()), text.size()}));
    RETURN_IF_ERROR(file->Sync());
    RETURN_IF_ERROR(file->Close());
    return files.Rename(temporary, path);
  }();
  if (!written.ok()) {
    files.Remove(temporary).IgnoreError();
    return written;
  }
  return files.SyncDirectory(ParentPath(path));
}

absl::Status MakeDurableDirectory(FileSystem& files, const std::string& path) {
  const absl::Status listed = files.List(path).status();
  if (!absl::IsNotFound(listed)) return listed;
  const std::string parent = ParentPath(path);
  RETURN_IF_ERROR(MakeDurableDirectory(files, parent));
  RETURN_IF_ERROR(files.MakeDirectory(path));
  return files.SyncDirectory(parent);
}

std::string ParentPath(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const std::string parent = std::filesystem::path(std::string(path)).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string JoinPath(absl::string_view folder, absl::string_view name) {
  return (std::filesystem::path(std::string(folder)) / std::string(name)).string();
}

namespace {

// HOME, or what the user database says (services start without the variable); empty: neither.
std::string HomeFolder() {
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') return home;
  std::vector<char> buffer(1 << 14);
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found) != 0) return "";
  return found == nullptr || found->pw_dir == nullptr ? "" : found->pw_dir;
}

}  // namespace

absl::StatusOr<std::string> ExpandHome(const std::string& path) {
  if (path.empty() || path[0] != '~') return path;
  if (path.size() > 1 && path[1] != '/') {
    return absl::InvalidArgumentError(absl::StrCat(
        "path '", path, "' means another user's home; write that folder out, or begin with '~/'"));
  }
  const std::string home = HomeFolder();
  if (home.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "path '", path, "' needs a home folder, and this user has none; write the path out"));
  }
  return home + path.substr(1);
}

}  // namespace espalier
