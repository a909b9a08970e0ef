// PromptTable: the prompts of a split that are to be completed: their tokens, and what the verifier
// of completions is told of each. All in memory. Used by dataset.h and shard_reader.h, and by tasks
// that sample. Immutable: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace espalier {

class PromptTable {
 public:
  struct Row {
    std::vector<int32_t> ids;  // at least one
    std::string record;        // JSON
  };
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
