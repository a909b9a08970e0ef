#include "coordinator/journal/disk_reserve.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "common/base/file_system.h"

namespace espalier {

void DiskReserve::Keep() {
  if (kept_ || clock_.Monotonic() < next_attempt_) return;
  std::error_code error;
  kept_ = std::filesystem::file_size(path_, error) == static_cast<uintmax_t>(kBytes) && !error;
  if (!kept_) kept_ = Write();
  if (!kept_) PosixFileSystem().Remove(path_).IgnoreError();
  next_attempt_ = clock_.Monotonic() + kBetweenAttempts;
}

// Not zeros, of which a file system may make a hole.
bool DiskReserve::Write() const {
  absl::StatusOr<std::unique_ptr<WritableFile>> file = PosixFileSystem().Create(path_);
  if (!file.ok()) return false;
  const std::vector<std::byte> piece(1 << 16, std::byte{0xa5});
  for (int64_t written = 0; written < kBytes; written += static_cast<int64_t>(piece.size())) {
    if (!(*file)->Append(piece).ok()) return false;
  }
  return (*file)->Close().ok();
}

bool DiskReserve::Release() {
  if (!kept_) return false;
  kept_ = false;
  next_attempt_ = clock_.Monotonic() + kBetweenAttempts;
  return PosixFileSystem().Remove(path_).ok();
}

}  // namespace espalier
