#include "worker/data/samples.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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

int64_t SampleCount(int64_t tokens, int64_t sequence_length) {
  return tokens <= 0 ? 0 : (tokens - 1) / sequence_length;
}

absl::StatusOr<Samples> ReadSamples(const TokenRow& row, int64_t sequence_length,
                                    std::vector<int64_t> ids) {
  const int64_t width = sequence_length + 1;
  Samples samples;
  samples.tokens.resize(ids.size() * static_cast<size_t>(width));
  for (size_t i = 0; i < ids.size(); ++i) {
    const absl::Span<int64_t> window =
        absl::MakeSpan(samples.tokens).subspan(i * static_cast<size_t>(width), width);
    RETURN_IF_ERROR(row.Copy(ids[i] * sequence_length, window));
  }
  samples.ids = std::move(ids);
  return samples;
}

absl::StatusOr<std::shared_ptr<const Samples>> DirectSamples::Fetch(Step step, SlotRange range) {
  ASSIGN_OR_RETURN(Samples samples,
                   ReadSamples(*row_, sequence_length_, order_.SamplesOfStep(step, range)));
  return std::make_shared<const Samples>(std::move(samples));
}

}  // namespace espalier
