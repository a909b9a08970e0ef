// Samples, and the table they are read from. A SampleTable numbers the samples of a split: windows
// over a row of tokens (WindowTable), examples (example_table.h, masked_table.h), or rows that
// several examples share (packed_table.h). A SampleSource hands the trainer those of its slots of a
// step, in the order of order.h. Sources: DirectSamples (reads when asked; tests) and
// PrefetchedSamples (prefetch.h). Both give the same samples for the same (step, range). Used by
// worker/data, worker/task and worker/train. Thread rule: rows and tables are immutable, any
// thread; one thread calls Fetch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "worker/data/order.h"

namespace espalier {

// A long row of token ids: a split of a Dataset, or a vector.
class TokenRow {
 public:
  virtual ~TokenRow() = default;
  virtual int64_t size() const = 0;
  // Tokens [begin, begin + out.size()), which must exist. DATA_LOSS when one is not below the
  // vocabulary size.
  virtual absl::Status Copy(int64_t begin, absl::Span<int64_t> out) const = 0;
};

class VectorTokenRow : public TokenRow {
 public:
  explicit VectorTokenRow(std::vector<int64_t> tokens) : tokens_(std::move(tokens)) {}
  int64_t size() const override { return static_cast<int64_t>(tokens_.size()); }
  absl::Status Copy(int64_t begin, absl::Span<int64_t> out) const override;

 private:
  std::vector<int64_t> tokens_;
};

// An example in a row: its tokens are those of the columns [begin, end).
struct RowPart {
  int64_t id = 0;  // its number
  int64_t begin = 0;
  int64_t end = 0;
};

struct Samples {
  std::vector<int64_t> ids;  // sample numbers, one per row
  // [rows, T + 1], row-major. Inputs are columns [0, T), targets [1, T].
  std::vector<int64_t> tokens;
  // [rows, T]: 1 where the target at column t, which is the token at t + 1, counts in the loss,
  // else 0. Empty: all count.
  std::vector<uint8_t> counted;
  // Of rows that examples share: those of each row, in order, the first at column 0; none sees
  // another, and its positions begin at 0. Empty: a row is one sample.
  std::vector<std::vector<RowPart>> parts = {};
  // Of a step whose samples may take several: the slot of the global batch of each row, and the
  // numbers that it kept, [rows, n]. Empty: each step has samples of its own.
  std::vector<int64_t> slots = {};
  std::vector<float> kept = {};
  // Numbers that are too many to be copied, of each row where its slot keeps them, until the step
  // after this one. Empty: there are none.
  std::vector<absl::Span<const float>> carried = {};

  int64_t rows() const { return static_cast<int64_t>(ids.size()); }
  // T; 0 without rows.
  int64_t sequence_length() const {
    return ids.empty() ? 0 : static_cast<int64_t>(tokens.size() / ids.size()) - 1;
  }
  // Targets that count in the loss, of the rows [range.begin, range.end).
  int64_t LossTokens(SlotRange range) const;
  // Columns as far as the last target of those rows that counts: a pass over so many of them has
  // the same loss and gradients, since attention looks back only.
  int64_t CountedColumns(SlotRange range) const;
  // Numbers of the samples, or of the examples that share them: all that is used.
  std::vector<int64_t> UsedIds() const;
};

// The same rows, those with more counted columns first, so that rows of one pass are about as long.
Samples LongestFirst(const Samples& samples);

class SampleTable {
 public:
  virtual ~SampleTable() = default;
  // Samples are numbered [0, size()).
  virtual int64_t size() const = 0;
  virtual int64_t sequence_length() const = 0;
  // Tokens of a sample, without what only fills its row; `id` in [0, size()).
  virtual int64_t Length(int64_t id) const = 0;
  // Whether examples share rows: Samples::parts.
  virtual bool packed() const { return false; }
  // The samples `ids`, in that order. OUT_OF_RANGE for a number outside the table, DATA_LOSS for
  // damaged data.
  virtual absl::StatusOr<Samples> Read(std::vector<int64_t> ids) const = 0;
};

// Windows of sequence_length + 1 tokens at a stride of sequence_length, every target counted.
class WindowTable : public SampleTable {
 public:
  WindowTable(std::shared_ptr<const TokenRow> row, int64_t sequence_length)
      : row_(std::move(row)), sequence_length_(sequence_length) {}
  // How many windows `tokens` tokens hold.
  static int64_t Count(int64_t tokens, int64_t sequence_length) {
    return tokens <= 0 ? 0 : (tokens - 1) / sequence_length;
  }
  int64_t size() const override { return Count(row_->size(), sequence_length_); }
  int64_t sequence_length() const override { return sequence_length_; }
  int64_t Length(int64_t) const override { return sequence_length_ + 1; }
  absl::StatusOr<Samples> Read(std::vector<int64_t> ids) const override;

 private:
  std::shared_ptr<const TokenRow> row_;
  int64_t sequence_length_;
};

// A table whose samples are one example each, at the beginning of its row.
class ExampleRows : public SampleTable {
 public:
  // The example, and end-of-text tokens behind it, in tokens [n], n from Length(id) to T + 1;
  // counted [n - 1] says which of the targets count, which are the tokens from the second on.
  virtual absl::Status ReadRow(int64_t id, absl::Span<int64_t> tokens,
                               absl::Span<uint8_t> counted) const = 0;
  absl::StatusOr<Samples> Read(std::vector<int64_t> ids) const final;
};

class SampleSource {
 public:
  virtual ~SampleSource() = default;
  // The samples of the slots `range` of `step`, in slot order. Any step and range may be asked for
  // at any time; asking for step + 1 with the same range next is the fast path. The pointer stays
  // valid for as long as it is held.
  virtual absl::StatusOr<std::shared_ptr<const Samples>> Fetch(Step step, SlotRange range) = 0;
};

class DirectSamples : public SampleSource {
 public:
  DirectSamples(std::shared_ptr<const SampleTable> table, SampleOrder order)
      : table_(std::move(table)), order_(order) {}
  absl::StatusOr<std::shared_ptr<const Samples>> Fetch(Step step, SlotRange range) override;

 private:
  std::shared_ptr<const SampleTable> table_;
  SampleOrder order_;
};

}  // namespace espalier
