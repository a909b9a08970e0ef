// `espalier data tokenizer`: learns a tokenizer from text and JSONL files, to prepare data with.
// Used by worker/verbs.h. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "worker/tokenizer/bpe_trainer.h"

namespace espalier {

struct LearnProgress {
  int64_t done_bytes = 0, total_bytes = 0;
  int64_t tokens = 0;  // of the vocabulary; 0 while the text is read
};

struct LearnTokenizerOptions {
  std::vector<std::string> inputs;  // files and folders, as PrepareOptions::inputs
  std::string output;               // folder to be made; must not exist, or be empty
  std::string jsonl_field = "text";
  BpeTrainerOptions trainer;
  // Of the input, at most; evenly spread over it when there is more.
  int64_t sample_bytes = int64_t{1} << 30;
  std::function<void(const LearnProgress&)> progress;
};

struct LearntTokenizer {
  int64_t vocab_size = 0;
  int64_t files = 0;
  int64_t read_bytes = 0;
  double bytes_per_token = 0;  // of the last of the text that was read, up to 4 MiB
};

// Writes tokenizer.json and tokenizer_config.json. INVALID_ARGUMENT (no text, bad option),
// NOT_FOUND, ALREADY_EXISTS.
absl::StatusOr<LearntTokenizer> LearnTokenizer(FileSystem& files,
                                               const LearnTokenizerOptions& options);

}  // namespace espalier
