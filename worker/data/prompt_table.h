// PromptTable: the prompts of a split that are to be completed: their tokens, and what the verifier
// of completions is told of each. All in memory. Used by dataset.h and shard_reader.h, and by the
// tasks that sample (worker/task). Immutable: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/data/samples.h"
#include "worker/data/token_manifest.h"

namespace espalier {

class PromptTable {
 public:
  struct Row {
    std::vector<int32_t> ids;  // at least one
    std::string record;        // JSON
  };
  // Of a prepared folder. DATA_LOSS names an entry that does not follow the one before it, holds
  // nothing, or leaves the tokens or the records.
  static absl::StatusOr<PromptTable> Create(const TokenRow& tokens,
                                            absl::Span<const PromptEntry> entries,
                                            absl::string_view records);
  explicit PromptTable(std::vector<Row> rows) : rows_(std::move(rows)) {}

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  // `prompt` in [0, size()).
  const std::vector<int32_t>& ids(int64_t prompt) const { return row(prompt).ids; }
  const std::string& record(int64_t prompt) const { return row(prompt).record; }

 private:
  const Row& row(int64_t prompt) const { return rows_[static_cast<size_t>(prompt)]; }

  std::vector<Row> rows_;
};

}  // namespace espalier
