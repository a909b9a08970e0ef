// PreferenceTable: pairs of a chosen and a rejected answer to a prompt as samples: both share a
// row, and neither sees the other. So a pair is one slot of a step, whoever computes it. Used by
// dataset.h and by the task dpo (worker/task). Immutable: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/example_table.h"
#include "worker/data/samples.h"

namespace espalier {

// Pair p is the examples 2 p, with the chosen completion, and 2 p + 1, with the rejected one. A row
// is the one, then the other, each its prompt and its completion, and then end-of-text tokens up to
// T + 1; Samples::parts are the two. Exactly the completions count, and each of their tokens has
// one before it. A pair of more than T + 1 tokens loses the front of its prompts, the same number
// of tokens of both; its completions stay whole.
class PreferenceTable final : public SampleTable {
 public:
  struct Options {
    int64_t sequence_length = 0;
    int64_t end_of_text = 0;
  };
  struct Summary {
    int64_t pairs = 0;
    int64_t cut = 0;      // that lost the front of their prompts
    int64_t longest = 0;  // tokens of the longest pair, uncut

    // "120 of 5000 pairs are longer than 257 tokens ..."; empty when nothing is cut.
    std::string Warning(int64_t sequence_length) const;
  };
  // Looks at every entry: DATA_LOSS names one that does not follow the one before it, has no
  // prompt, or none beside it. INVALID_ARGUMENT: the completions of a pair do not fit in a row.
  static absl::StatusOr<PreferenceTable> Create(std::shared_ptr<const TokenRow> row,
                                                std::shared_ptr<const ExampleIndex> index,
                                                Options options);

  int64_t size() const override { return index_->size() / 2; }
  int64_t sequence_length() const override { return options_.sequence_length; }
  int64_t Length(int64_t id) const override;
  bool packed() const override { return true; }
  absl::StatusOr<Samples> Read(std::vector<int64_t> ids) const override;
  const Summary& summary() const { return summary_; }

 private:
  PreferenceTable(std::shared_ptr<const TokenRow> row, std::shared_ptr<const ExampleIndex> index,
                  Options options)
      : row_(std::move(row)), index_(std::move(index)), options_(options) {}
  // As a row keeps them.
  struct Pair {
    ExampleSpan chosen, rejected;
    int64_t tokens() const { return chosen.end - chosen.prompt + rejected.end - rejected.prompt; }
  };
  Pair At(int64_t pair) const;
  absl::Status Summarise(int64_t pair);
  absl::Status ReadRow(int64_t pair, absl::Span<int64_t> tokens, absl::Span<uint8_t> counted,
                       std::vector<RowPart>& parts) const;

  std::shared_ptr<const TokenRow> row_;
  std::shared_ptr<const ExampleIndex> index_;
  Options options_;
  Summary summary_;
};

}  // namespace espalier
