// SplitWriter: collects the tokens of one split, and where its examples lie, and writes them as
// shard files. Used by preparer.h only. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/file_system.h"
#include "worker/data/token_manifest.h"

namespace espalier {

class SplitWriter {
 public:
  struct Options {
    std::string folder;
    std::string name;  // "train": files train-00000.tokens and so on
    int token_bytes = 0;
    // Of every shard but the last; this much memory is used.
    int64_t shard_tokens = 0;
    int64_t shard_examples = int64_t{1} << 20;
  };
  SplitWriter(FileSystem& files, Options options) : files_(files), options_(std::move(options)) {}

  absl::Status Append(absl::Span<const int32_t> ids);
  void EndDocument() { ++split_.documents; }
  // A whole example: its first `prompt_tokens` tokens are the prompt, the others the completion and
  // the end-of-text token.
  absl::Status AppendExample(absl::Span<const int32_t> ids, int64_t prompt_tokens);
  // The same of a folder of kMasked; `counted` are the stretches that count in the loss, within it.
  absl::Status AppendMasked(absl::Span<const int32_t> ids, absl::Span<const TokenRun> counted);
  // A prompt of a folder of kPrompts, with its record.
  absl::Status AppendPrompt(absl::Span<const int32_t> ids, absl::string_view record);
  // Writes what is left.
  absl::Status Finish();
  const TokenSplit& split() const { return split_; }

 private:
  absl::Status WriteTokens();
  int64_t tokens() const;
  absl::Status WriteExamples();
  absl::Status WriteMasked();
  absl::Status WriteRuns();
  absl::Status WritePrompts();
  absl::Status WriteRecords();
  absl::StatusOr<DataShard> WriteShard(const char* extension, size_t number, ShardHeader header,
                                       absl::Span<const std::byte> items);

  FileSystem& files_;
  Options options_;
  TokenSplit split_;
  std::vector<std::byte> buffer_;       // encoded tokens of the shard in progress
  std::vector<ExampleEntry> examples_;  // of the table in progress
  std::vector<MaskedEntry> masked_;     // the same, and of the next
  std::vector<TokenRun> runs_;
  std::vector<PromptEntry> prompts_;
  std::string records_;  // of the shard in progress
};

}  // namespace espalier
