// Rows that several examples share, as samples: none of them sees another. PackedTable: as many as
// have room. Which examples share a row follows from the data and a seed alone, so that a row is
// used by every epoch, rank and restart as any other sample is. PreferenceTable: a chosen and a
// rejected answer, so that a pair is one slot of a step, whoever computes it. Used by dataset.h,
// inspect.cc and worker/task/sft.cc. Immutable: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/packing.h"
#include "worker/data/example_table.h"
#include "worker/data/samples.h"

namespace espalier {

class PackedTable : public SampleTable {
 public:
  // Every example of the table, whole, in exactly one row of T + 1 tokens. `seed` chooses among
  // examples of one length. Takes 8 bytes an example.
  PackedTable(std::shared_ptr<const ExampleRows> examples, uint64_t seed);

  int64_t size() const override { return packed_.rows(); }
  int64_t sequence_length() const override { return examples_->sequence_length(); }
  int64_t Length(int64_t id) const override;
  bool packed() const override { return true; }
  // Samples::ids are numbers of rows; those of examples are in their parts. What no example fills
  // is made of the tokens that end a text.
  absl::StatusOr<Samples> Read(std::vector<int64_t> ids) const override;

  int64_t examples() const { return examples_->size(); }
  // Tokens of examples among those that the rows have room for.
  double fill() const;
  // "890 examples share 121 rows of 2049 tokens, 97.4 % full".
  std::string Summary() const;

 private:
  absl::Status ReadRow(int64_t row, absl::Span<int64_t> tokens, absl::Span<uint8_t> counted,
                       std::vector<RowPart>& parts) const;

  std::shared_ptr<const ExampleRows> examples_;
  PackedRows packed_;
  int64_t tokens_ = 0;  // of all examples, as their rows keep them
};

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
