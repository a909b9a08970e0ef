// `espalier data prepare`: text and JSONL files to a folder of token shards, as text or as prompts
// with completions. Streams: memory does not grow with the input. Used by worker/verbs.h. One
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "worker/data/document_reader.h"
#include "worker/data/token_manifest.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

enum class SplitBy {
  // kDocument when there are at least 10 documents that can be told apart beforehand (10 files, or
  // any JSONL file), else kTail.
  kAuto,
  // A seeded hash of each document (its first MiB), or of each example, decides: equal ones land in
  // the same split, and adding some moves none.
  kDocument,
  // The last part of the input, by bytes, in the order given; cut at the end of a line, never
  // inside
  // an example.
  kTail,
  // The files given as `validation_inputs`.
  kFiles,
  // No validation split.
  kNone,
};

struct PrepareProgress {
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  int64_t documents = 0;  // or examples
  int64_t tokens = 0;
};

struct PrepareOptions {
  // Files and folders. Folders are walked in order of name (hidden and binary files are left out).
  // Text: a file whose name ends in .jsonl (or .ndjson) holds one document per line, any other is
  // one document. Prompts with completions: every file is JSONL, a line is one example.
  std::vector<std::string> inputs;
  std::vector<std::string> validation_inputs;  // kFiles only
  std::string output;                          // folder to be made; must not exist, or be empty
  DataKind kind = DataKind::kText;
  std::string jsonl_field = "text";  // kText
  ExampleFields fields;              // kPromptCompletion
  SplitBy split_by = SplitBy::kAuto;
  double validation_fraction = 0.1;  // in (0, 1)
  uint64_t split_seed = 1;
  int64_t shard_tokens = int64_t{1} << 25;               // per shard file, 1 to 2^30
  std::function<void(const PrepareProgress&)> progress;  // about once per 16 MiB, and at the end
};

struct PrepareResult {
  TokenManifest manifest;
  int64_t files = 0;
  int64_t skipped_files = 0;  // binary files inside walked folders
};

// The folder appears under its name complete and synced, or not at all: it is written beside it and
// renamed. What a killed run left there is removed by the next one.
// INVALID_ARGUMENT (empty input, bad option, line of a JSONL file with its number), NOT_FOUND,
// ALREADY_EXISTS, RESOURCE_EXHAUSTED (disk full; what was written is removed).
absl::StatusOr<PrepareResult> PrepareData(FileSystem& files, const Tokenizer& tokenizer,
                                          const PrepareOptions& options);

}  // namespace espalier
