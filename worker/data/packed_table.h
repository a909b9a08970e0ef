// PackedTable: rows that several examples share, as samples: as many of them as have room, of which
// none sees another. Which examples share a row follows from the data and a seed alone, so that a
// row is used by every epoch, rank and restart as any other sample is. Used by dataset.cc,
// inspect.cc and worker/task/sft.cc. Immutable: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/packing.h"
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

}  // namespace espalier
