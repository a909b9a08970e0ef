// DocumentReader: the documents of text and JSONL files, in pieces of bounded size. Used by
// preparer.h and learn_tokenizer.cc. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/input_files.h"

namespace espalier {

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
  // False at the end of the file. Text pieces end at the end of a line where there is one, never
  // inside a UTF-8 character. Errors name the file and the line; behind one that is of a row
  // (bad_rows.h), as an empty document is, the next call goes on.
  virtual absl::StatusOr<bool> Next(DocumentPiece& piece) = 0;
};

absl::StatusOr<std::unique_ptr<DocumentReader>> OpenDocuments(const InputFile& file,
                                                              const std::string& jsonl_field);

// The first place at or after `wanted` where `text` can be cut: after a line if one ends within
// 64 KiB, else between two UTF-8 characters.
size_t CutAtOrAfter(absl::string_view text, size_t wanted);

}  // namespace espalier
