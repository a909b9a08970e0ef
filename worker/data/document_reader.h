// DocumentReader: the documents of text and JSONL files, in pieces of bounded size. ExampleReader:
// the prompts and completions of JSONL files. Used by prepare.h. One thread.
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
  // False at the end of the file. Empty documents are left out. Text pieces end at the end of a
  // line where there is one, never inside a UTF-8 character. Errors name the file and the line.
  virtual absl::StatusOr<bool> Next(DocumentPiece& piece) = 0;
};

absl::StatusOr<std::unique_ptr<DocumentReader>> OpenDocuments(const InputFile& file,
                                                              const std::string& jsonl_field);

// One line of JSONL. Both texts are valid until the next call.
struct PromptCompletion {
  absl::string_view prompt;      // may be empty
  absl::string_view completion;  // not empty
  int64_t position = 0;          // bytes of this file before the line
};

// Names of the fields that hold them.
struct ExampleFields {
  std::string prompt = "prompt";
  std::string completion = "completion";
};

class ExampleReader {
 public:
  virtual ~ExampleReader() = default;
  // False at the end of the file. Empty lines are left out; a line without both fields, and a
  // completion without text, are INVALID_ARGUMENT with file and line.
  virtual absl::StatusOr<bool> Next(PromptCompletion& example) = 0;
};

// INVALID_ARGUMENT when the file is not JSONL by its name.
absl::StatusOr<std::unique_ptr<ExampleReader>> OpenExamples(const InputFile& file,
                                                            const ExampleFields& fields);

// The first place at or after `wanted` where `text` can be cut: after a line if one ends within
// 64 KiB, else between two UTF-8 characters.
size_t CutAtOrAfter(absl::string_view text, size_t wanted);

}  // namespace espalier
