// FileSystem: the operations on files whose order and completeness matter when the machine stops at
// any instant: writing, syncing, renaming, removing. Used by common/, coordinator/ and worker/;
// tests inject full disks and crashes through it. PosixFileSystem is thread-safe; one WritableFile
// belongs to one thread. MappedFile: how readers of large files see them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace espalier {

class WritableFile {
 public:
  // Closes without syncing when Close was not called.
  virtual ~WritableFile() = default;
  // All bytes or an error; RESOURCE_EXHAUSTED when the disk or the quota is full.
  virtual absl::Status Append(absl::Span<const std::byte> bytes) = 0;
  // What was appended is on stable storage afterwards (F_FULLFSYNC on macOS).
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

// Every message names the operation and the path.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Creates the file, or empties the one that is there.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // At most `limit` bytes may be there; more is RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::string> Read(const std::string& path, int64_t limit) = 0;
  // Names inside a folder, sorted, without "." and "..". NOT_FOUND when there is no folder.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
  // With its parents; fine when it is there already.
  virtual absl::Status MakeDirectory(const std::string& path) = 0;
  // Atomic; replaces a file that has the new name.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // A file, or a folder with all that is in it; fine when nothing is there.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Creations, renames and removals inside the folder are on stable storage afterwards.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
};

// The machine's file system; lives as long as the process.
FileSystem& PosixFileSystem();

// The bytes of a file, mapped read-only. Immutable after Open: any thread.
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

// Writes `path` so that it holds the old or the new text at every instant: temporary name beside
// it, sync, rename, sync of the folder.
absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 absl::string_view text);

// Makes the folder and the parents that are missing, each on stable storage. Fine when it is there.
absl::Status MakeDurableDirectory(FileSystem& files, const std::string& path);

// "a" + "b" -> "a/b".
std::string JoinPath(absl::string_view folder, absl::string_view name);
// "a/b" -> "a", "b" -> ".".
std::string ParentPath(absl::string_view path);

// A configured path on the node that opens it (loading a configuration leaves "~" alone, because
// nodes differ): "~" and "~/x" with the user's home folder in place of "~"; other paths as they
// are. INVALID_ARGUMENT: "~name"; FAILED_PRECONDITION: the user has no home folder.
absl::StatusOr<std::string> ExpandHome(const std::string& path);

// How the system is told to put a file on stable storage; one source per system. 0, or an errno
// value.
int SyncDescriptor(int descriptor);

}  // namespace espalier
