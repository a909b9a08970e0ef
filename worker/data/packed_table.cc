#include "worker/data/packed_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/data/order.h"

namespace espalier {
namespace {

constexpr uint64_t kPackingStream = 0x7061636b696e67;  // tells the uses of a seed apart

}  // namespace

PackedTable::PackedTable(std::shared_ptr<const ExampleRows> examples, uint64_t seed)
    : examples_(std::move(examples)) {
  const auto count = static_cast<uint64_t>(examples_->size());
  if (count == 0) return;
  // Neighbours in the data are often alike: of examples of one length those that meet in a row are
  // no neighbours.
  const Permutation shuffled({.size = count, .seed = seed, .stream = kPackingStream});
  std::vector<int64_t> lengths;
  lengths.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    lengths.push_back(examples_->Length(static_cast<int64_t>(shuffled(i))));
  }
  packed_ = PackLongestFirst(lengths, sequence_length() + 1);
  for (int64_t& item : packed_.items) {
    item = static_cast<int64_t>(shuffled(static_cast<uint64_t>(item)));
  }
  tokens_ = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

int64_t PackedTable::Length(int64_t id) const {
  int64_t tokens = 0;
  for (const int64_t example : packed_.Row(id)) tokens += examples_->Length(example);
  return tokens;
}

// An example's last token has no target: the one at the border to the next does not count. What
// follows the last example is read with it.
absl::Status PackedTable::ReadRow(int64_t row, absl::Span<int64_t> tokens,
                                  absl::Span<uint8_t> counted, std::vector<RowPart>& parts) const {
  const absl::Span<const int64_t> examples = packed_.Row(row);
  size_t begin = 0;
  for (size_t i = 0; i < examples.size(); ++i) {
    const auto length = static_cast<size_t>(examples_->Length(examples[i]));
    const size_t read = i + 1 == examples.size() ? tokens.size() - begin : length;
    RETURN_IF_ERROR(examples_->ReadRow(examples[i], tokens.subspan(begin, read),
                                       counted.subspan(begin, read - 1)));
    parts.push_back({.id = examples[i],
                     .begin = static_cast<int64_t>(begin),
                     .end = static_cast<int64_t>(begin + length)});
    begin += length;
    if (begin <= counted.size()) counted[begin - 1] = 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<Samples> PackedTable::Read(std::vector<int64_t> ids) const {
  const auto length = static_cast<size_t>(sequence_length());
  Samples samples;
  samples.tokens.resize(ids.size() * (length + 1));
  samples.counted.resize(ids.size() * length);
  samples.parts.resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= size()) {
      return absl::OutOfRangeError(
          absl::StrCat("row ", ids[i], " is wanted, the examples of the split share ", size()));
    }
    RETURN_IF_ERROR(
        ReadRow(ids[i], absl::MakeSpan(samples.tokens).subspan(i * (length + 1), length + 1),
                absl::MakeSpan(samples.counted).subspan(i * length, length), samples.parts[i]));
  }
  samples.ids = std::move(ids);
  return samples;
}

double PackedTable::fill() const {
  const int64_t room = size() * (sequence_length() + 1);
  return static_cast<double>(tokens_) / static_cast<double>(std::max<int64_t>(room, 1));
}

std::string PackedTable::Summary() const {
  return absl::StrFormat("%d examples share %d rows of %d tokens, %.1f %% full", examples(), size(),
                         sequence_length() + 1, 100 * fill());
}

}  // namespace espalier
