// The input of `data prepare`: which files in which order, and one of them read forward. Used by
// document_reader.h, json_lines.h, preparer.h and learn_tokenizer.cc. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

struct InputFile {
  std::string path;
  int64_t bytes = 0;
  // By its name; else it is one document.
  bool jsonl = false;    // one document or row per line
  bool parquet = false;  // rows
};

struct InputFiles {
  std::vector<InputFile> files;
  int64_t skipped = 0;  // binary files of folders
  int64_t bytes() const;
};

// Files as they are; folders walked in order of name, hidden entries, binary files (a NUL in the
// first 8 KiB; not Parquet for `kRows`) and links to folders left out. Files of `excluded`
// (compared by their real path) are left out. NOT_FOUND and INVALID_ARGUMENT name the path.
enum class InputKind { kText, kRows };
absl::StatusOr<InputFiles> FindInputFiles(const std::vector<std::string>& paths,
                                          const InputFiles& excluded,
                                          InputKind kind = InputKind::kText);

// Reads a file forward into a buffer that grows only as far as the caller asks.
class ForwardFile {
 public:
  static absl::StatusOr<ForwardFile> Open(const std::string& path);
  ForwardFile(ForwardFile&& other) noexcept;
  ForwardFile& operator=(ForwardFile&&) = delete;
  ~ForwardFile();

  // Reads on until `size` bytes are held or the file ends.
  absl::Status Fill(size_t size);
  absl::string_view held() const { return absl::string_view(buffer_).substr(used_); }
  // The next `size` held bytes; valid until the next Fill.
  absl::string_view Take(size_t size);
  // Bytes of the file before those that are held.
  int64_t position() const { return position_ + static_cast<int64_t>(used_); }
  bool ended() const { return ended_; }
  const std::string& path() const { return path_; }

 private:
  ForwardFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_;
  std::string buffer_;
  size_t used_ = 0;       // bytes at the front of the buffer that were taken
  int64_t position_ = 0;  // of the front of the buffer in the file
  bool ended_ = false;
};

}  // namespace espalier
