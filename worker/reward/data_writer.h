// A folder of made-up data to learn from: examples for fine-tuning, and prompts whose completions
// are judged, each for training and for validation. Used by question_data.h, wordle_teacher.h,
// sudoku.h and worker/make_data_verb.cc. One thread.
//
//   train.jsonl, validation.jsonl                  {"prompt": ..., "completion": ...}, or of a chat
//                                                  {"messages": [...]}
//   train-prompts.jsonl, validation-prompts.jsonl  {"prompt": ..., "record": {...}}; neither where
//                                                  there are no prompts
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "worker/reward/prompts.h"
#include "worker/reward/record.h"

namespace espalier {

enum class DataSplit { kTrain, kValidation };

// How much is made.
struct DataAmount {
  int64_t train = 1000;
  int64_t validation = 100;
  uint64_t seed = 0;
};
// INVALID_ARGUMENT: less than one for training, or a negative number.
absl::Status CheckAmount(const DataAmount& amount);

class DataWriter {
 public:
  // ALREADY_EXISTS: `output` is there. `files` outlives the writer.
  static absl::StatusOr<DataWriter> Create(FileSystem& files, const std::string& output);
  DataWriter(DataWriter&&) = default;
  // Leaves nothing when it was not finished.
  ~DataWriter();

  absl::Status AddExample(DataSplit split, const Prompt& prompt, absl::string_view completion);
  absl::Status AddPrompt(DataSplit split, const RewardPrompt& prompt);
  // A further file of the folder.
  absl::Status AddFile(absl::string_view name, absl::string_view text);

  // The folder appears under its name, whole.
  absl::Status Finish();
  // "train.jsonl", 1000 and so on, of these files.
  std::vector<std::pair<std::string, int64_t>> Rows() const;

 private:
  struct File {
    std::string name;
    std::unique_ptr<WritableFile> file;
    std::string buffer;
    int64_t rows = 0;
  };
  DataWriter(FileSystem& files, std::string output)
      : files_(&files), output_(std::move(output)), partial_(output_ + ".partial") {}
  absl::Status AddRow(size_t file, std::string row);

  FileSystem* files_;
  std::string output_;
  std::string partial_;  // empty: there is none any more
  std::vector<File> rows_;
};

}  // namespace espalier
