// What `espalier data prepare` is asked for, and what it says of it: prepare.h takes it. Used by
// prepare.h and preparer.h. Plain data; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "worker/data/bad_rows.h"
#include "worker/data/fine_tune_row.h"
#include "worker/data/row_renderer.h"
#include "worker/data/token_manifest.h"

namespace espalier {

enum class SplitBy {
  // kDocument when there are at least 10 documents that can be told apart beforehand (10 files, or
  // any JSONL file), else kTail.
  kAuto,
  // A seeded hash of each document (its first MiB), or of each example, decides: equal ones land in
  // the same split, and adding some moves none.
  kDocument,
  // The last part of the input, by bytes, in the order given; cut at the end of a line, never
  // inside an example.
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

struct RowOptions {
  // Absent: by the columns of the first row.
  std::optional<RowFormat> format;
  // Absent: prompts with completions learn the completions, others all tokens.
  std::optional<LossOn> loss;
};

struct PrepareOptions {
  // Files and folders. Folders are walked in order of name (hidden and binary files are left out).
  // Text: a file whose name ends in .jsonl (or .ndjson) holds one document per line, any other is
  // one document. Rows: every file is JSONL, a row is one example.
  std::vector<std::string> inputs;
  std::vector<std::string> validation_inputs;  // kFiles only
  std::string output;                          // folder to be made; must not exist, or be empty
  std::string jsonl_field = "text";            // of text
  // Examples for fine-tuning; absent: text.
  std::optional<RowOptions> rows;
  RowFields fields;
  int64_t max_tokens = 0;  // of a row; 0: any number
  LongRows long_rows = LongRows::kCut;
  BadRowPolicy bad_rows = BadRowPolicy::kError;     // also of lines of text
  std::function<void(const std::string&)> bad_row;  // told each row that is left out
  SplitBy split_by = SplitBy::kAuto;
  double validation_fraction = 0.1;  // in (0, 1)
  uint64_t split_seed = 1;
  int64_t shard_tokens = int64_t{1} << 25;               // per shard file, 1 to 2^30
  std::function<void(const PrepareProgress&)> progress;  // about once per 16 MiB, and at the end
};

struct PrepareResult {
  TokenManifest manifest;
  int64_t files = 0;
  int64_t skipped_files = 0;        // binary files inside walked folders
  std::optional<RowFormat> format;  // of rows
};

}  // namespace espalier
