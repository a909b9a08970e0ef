// MaskedTable: conversations and texts as samples of one length, any of whose tokens may count in
// the loss. Used by dataset.h and shard_reader.h, which map them. Immutable: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/samples.h"
#include "worker/data/token_manifest.h"

namespace espalier {

// Where an example lies in the row of tokens of its split, and its stretches among all of them.
struct MaskedSpan {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t runs_begin = 0;
  int64_t runs_end = 0;
  int64_t tokens() const { return end - begin; }
};

// The examples of a split, in the order of their tokens.
class MaskedIndex {
 public:
  virtual ~MaskedIndex() = default;
  virtual int64_t size() const = 0;
  virtual int64_t runs() const = 0;
  // `example` in [0, size()), `run` in [0, runs()).
  virtual MaskedSpan At(int64_t example) const = 0;
  virtual TokenRun Run(int64_t run) const = 0;
};

class VectorMaskedIndex : public MaskedIndex {
 public:
  VectorMaskedIndex(std::vector<MaskedSpan> spans, std::vector<TokenRun> runs)
      : spans_(std::move(spans)), runs_(std::move(runs)) {}
  int64_t size() const override { return static_cast<int64_t>(spans_.size()); }
  int64_t runs() const override { return static_cast<int64_t>(runs_.size()); }
  MaskedSpan At(int64_t example) const override { return spans_[static_cast<size_t>(example)]; }
  TokenRun Run(int64_t run) const override { return runs_[static_cast<size_t>(run)]; }

 private:
  std::vector<MaskedSpan> spans_;
  std::vector<TokenRun> runs_;
};

// A row is one example from its beginning, and then end-of-text tokens up to T + 1. An example of
// more than T + 1 tokens loses its end. A token counts when a stretch has it and it is not the
// first of its example.
class MaskedTable : public ExampleRows {
 public:
  struct Options {
    int64_t sequence_length = 0;
    int64_t end_of_text = 0;
  };
  // What the length does to the examples of the table.
  struct Summary {
    int64_t examples = 0;
    int64_t cut = 0;          // examples that lost their end
    int64_t unlearnable = 0;  // of those, the ones with no token left that counts
    int64_t longest = 0;      // tokens of the longest example, uncut
    int64_t tokens = 0;       // of all examples, cut
    int64_t loss_tokens = 0;  // targets that count, of all examples

    // "120 of 5000 examples are longer than 257 tokens ..."; empty when nothing is cut.
    std::string Warning(int64_t sequence_length) const;
  };
  // Looks at every entry of the index: DATA_LOSS names one that does not follow the one before it
  // or leaves the row.
  static absl::StatusOr<MaskedTable> Create(std::shared_ptr<const TokenRow> row,
                                            std::shared_ptr<const MaskedIndex> index,
                                            Options options);

  int64_t size() const override { return index_->size(); }
  int64_t sequence_length() const override { return options_.sequence_length; }
  int64_t Length(int64_t id) const override;
  absl::Status ReadRow(int64_t id, absl::Span<int64_t> tokens,
                       absl::Span<uint8_t> counted) const override;
  const Summary& summary() const { return summary_; }

 private:
  MaskedTable(std::shared_ptr<const TokenRow> row, std::shared_ptr<const MaskedIndex> index,
              Options options)
      : row_(std::move(row)), index_(std::move(index)), options_(options) {}
  // Adds what the example has to the summary; false when an entry is wrong.
  bool Summarise(const MaskedSpan& span);

  std::shared_ptr<const TokenRow> row_;
  std::shared_ptr<const MaskedIndex> index_;
  Options options_;
  Summary summary_;
};

}  // namespace espalier
