#include "worker/data/samples.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace espalier {

absl::Status VectorTokenRow::Copy(int64_t begin, absl::Span<int64_t> out) const {
  if (begin < 0 || begin > size() - static_cast<int64_t>(out.size())) {
    return absl::OutOfRangeError(
        absl::StrCat("tokens from ", begin, " on: ", out.size(), " wanted, the row has ", size()));
  }
  std::copy_n(tokens_.begin() + begin, out.size(), out.begin());
  return absl::OkStatus();
}

int64_t Samples::LossTokens(SlotRange range) const {
  ESPALIER_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= rows(),
                 "rows outside the samples");
  const int64_t length = sequence_length();
  if (counted.empty()) return range.size() * length;
  return std::count(counted.begin() + range.begin * length, counted.begin() + range.end * length,
                    uint8_t{1});
}

int64_t Samples::CountedColumns(SlotRange range) const {
  ESPALIER_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= rows(),
                 "rows outside the samples");
  const int64_t length = sequence_length();
  if (counted.empty()) return length;
  int64_t columns = 0;
  for (int64_t row = range.begin; row < range.end; ++row) {
    const uint8_t* const begin = counted.data() + row * length;
    int64_t end = length;
    while (end > columns && begin[end - 1] == 0) --end;
    columns = end;
  }
  return columns;
}

std::vector<int64_t> Samples::UsedIds() const {
  if (parts.empty()) return ids;
  std::vector<int64_t> used;
  for (const std::vector<RowPart>& row : parts) {
    for (const RowPart& part : row) used.push_back(part.id);
  }
  return used;
}

Samples LongestFirst(const Samples& samples) {
  std::vector<std::pair<int64_t, int64_t>> order;  // columns, negated, and row
  for (int64_t row = 0; row < samples.rows(); ++row) {
    order.emplace_back(-samples.CountedColumns({row, row + 1}), row);
  }
  std::sort(order.begin(), order.end());
  const int64_t length = samples.sequence_length();
  const auto kept_length =
      static_cast<int64_t>(samples.kept.size()) / std::max<int64_t>(1, samples.rows());
  Samples sorted;
  for (const auto& [unused, row] : order) {
    const auto tokens = samples.tokens.begin() + row * (length + 1);
    sorted.ids.push_back(samples.ids[static_cast<size_t>(row)]);
    sorted.tokens.insert(sorted.tokens.end(), tokens, tokens + length + 1);
    if (!samples.parts.empty()) sorted.parts.push_back(samples.parts[static_cast<size_t>(row)]);
    if (!samples.slots.empty()) sorted.slots.push_back(samples.slots[static_cast<size_t>(row)]);
    if (!samples.carried.empty()) {
      sorted.carried.push_back(samples.carried[static_cast<size_t>(row)]);
    }
    const auto kept = samples.kept.begin() + row * kept_length;
    sorted.kept.insert(sorted.kept.end(), kept, kept + kept_length);
    if (samples.counted.empty()) continue;
    const auto counted = samples.counted.begin() + row * length;
    sorted.counted.insert(sorted.counted.end(), counted, counted + length);
  }
  return sorted;
}

absl::StatusOr<Samples> WindowTable::Read(std::vector<int64_t> ids) const {
  const auto width = static_cast<size_t>(sequence_length_ + 1);
  Samples samples;
  samples.tokens.resize(ids.size() * width);
  for (size_t i = 0; i < ids.size(); ++i) {
    const absl::Span<int64_t> window = absl::MakeSpan(samples.tokens).subspan(i * width, width);
    RETURN_IF_ERROR(row_->Copy(ids[i] * sequence_length_, window));
  }
  samples.ids = std::move(ids);
  return samples;
}

absl::StatusOr<Samples> ExampleRows::Read(std::vector<int64_t> ids) const {
  const auto length = static_cast<size_t>(sequence_length());
  Samples samples;
  samples.tokens.resize(ids.size() * (length + 1));
  samples.counted.resize(ids.size() * length);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= size()) {
      return absl::OutOfRangeError(
          absl::StrCat("example ", ids[i], " is wanted, the split has ", size()));
    }
    RETURN_IF_ERROR(ReadRow(ids[i],
                            absl::MakeSpan(samples.tokens).subspan(i * (length + 1), length + 1),
                            absl::MakeSpan(samples.counted).subspan(i * length, length)));
  }
  samples.ids = std::move(ids);
  return samples;
}

absl::StatusOr<std::shared_ptr<const Samples>> DirectSamples::Fetch(Step step, SlotRange range) {
  ASSIGN_OR_RETURN(Samples samples, table_->Read(order_.SamplesOfStep(step, range)));
  return std::make_shared<const Samples>(std::move(samples));
}

}  // namespace espalier
