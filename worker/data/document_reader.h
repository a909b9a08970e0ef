// DocumentReader: the documents of text and JSONL files, in pieces of bounded size. Used by
// input_files.cc and prepare.cc. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

struct InputFile {
  std::string path;
  int64_t bytes = 0;
  bool jsonl = false;  // one document per line, else one document
};

struct InputFiles {
  std::vector<InputFile> files;
  int64_t skipped = 0;  // binary files of folders
  int64_t bytes() const;
};

// Files as they are; folders walked in order of name, hidden entries, binary files (a NUL in the
// first 8 KiB) and links to folders left out. Files of `excluded` (compared by their real path) are
// left out. NOT_FOUND and INVALID_ARGUMENT name the path.
absl::StatusOr<InputFiles> FindInputFiles(const std::vector<std::string>& paths,
                                          const InputFiles& excluded);

// A part of a document. `text` is valid until the next call.
struct DocumentPiece {
  absl::string_view text;
  bool first = false;    // a document begins here
  bool last = false;     // and ends here
  int64_t position = 0;  // bytes of this file before the piece (before its line in JSONL)
};

class DocumentReader {
 public:
  virtual ~DocumentReader() = default;
  // False at the end of the file. Empty documents are left out. Text pieces end at the end of a
  // line where there is one, never inside a UTF-8 character. Errors name the file and the line.
  virtual absl::StatusOr<bool> Next(DocumentPiece& piece) = 0;
};

absl::StatusOr<std::unique_ptr<DocumentReader>> OpenDocuments(const InputFile& file,
                                                              const std::string& jsonl_field);

// The first place at or after `wanted` where `text` can be cut: after a line if one ends within
// 64 KiB, else between two UTF-8 characters.
size_t CutAtOrAfter(absl::string_view text, size_t wanted);

}  // namespace espalier
