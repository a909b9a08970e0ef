// MappedFile: the bytes of a file, mapped read-only. Used by the readers of worker/model and
// worker/data. Immutable after Open: any thread.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace espalier {

class MappedFile {
 public:
  // NOT_FOUND when there is no such file, INVALID_ARGUMENT for a folder or a device. An empty file
  // maps to an empty span. Whoever maps a file must not let others shorten it in place: readers
  // that cannot be sure of that use pread.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  absl::Span<const std::byte> bytes() const { return bytes_; }

  // Lets go of the memory that reading `part` of bytes() took; reading it again takes it again.
  void Drop(absl::Span<const std::byte> part) const;

 private:
  explicit MappedFile(absl::Span<const std::byte> bytes) : bytes_(bytes) {}
  absl::Span<const std::byte> bytes_;
};

}  // namespace espalier
