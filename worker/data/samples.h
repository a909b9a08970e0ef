// SampleSource: hands the trainer the token windows of its slots of a step.
// Implementations: DirectSamples (reads when asked; tests, evaluation) and PrefetchedSamples
// (prefetch.h). Both give the same samples for the same (step, range).
// Thread rule: one thread calls Fetch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "worker/data/order.h"

namespace espalier {

// A long row of token ids: a split of a Dataset, or a vector. Immutable: any thread.
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

// Windows of sequence_length + 1 tokens at a stride of sequence_length: how many fit.
int64_t SampleCount(int64_t tokens, int64_t sequence_length);

struct Samples {
  std::vector<int64_t> ids;  // sample numbers, one per row
  // [rows, sequence_length + 1], row-major. Inputs are columns [0, T), targets [1, T].
  std::vector<int64_t> tokens;
  int64_t rows() const { return static_cast<int64_t>(ids.size()); }
};

// Reads the windows `ids` of `row`.
absl::StatusOr<Samples> ReadSamples(const TokenRow& row, int64_t sequence_length,
                                    std::vector<int64_t> ids);

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
  DirectSamples(std::shared_ptr<const TokenRow> row, SampleOrder order, int64_t sequence_length)
      : row_(std::move(row)), order_(order), sequence_length_(sequence_length) {}
  absl::StatusOr<std::shared_ptr<const Samples>> Fetch(Step step, SlotRange range) override;

 private:
  std::shared_ptr<const TokenRow> row_;
  SampleOrder order_;
  int64_t sequence_length_;
};

}  // namespace espalier
