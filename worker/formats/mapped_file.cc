#include "worker/formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::StatusOr<MappedFile> Refuse(int fd, absl::Status status) {
  close(fd);
  return status;
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return Refuse(fd, absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path)));
  }
  if (!S_ISREG(info.st_mode)) {
    return Refuse(fd, absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file")));
  }
  if (info.st_size == 0) {
    close(fd);
    return MappedFile();
  }
  if (static_cast<uint64_t>(info.st_size) > SIZE_MAX / 2) {
    return Refuse(fd, absl::ResourceExhaustedError(absl::StrCat(path, " is too large to map")));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    return Refuse(fd, absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path)));
  }
  close(fd);
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

}  // namespace espalier
