#include "worker/data/example_table.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"

namespace espalier {

std::string ExampleTable::Summary::Warning(int64_t sequence_length) const {
  if (prompts_cut == 0 && completions_cut == 0) return "";
  return absl::StrCat("data.sequence_length ", sequence_length, " cuts examples: of ", examples,
                      ", ", prompts_cut, " lose the front of their prompt and ", completions_cut,
                      " the end of their completion; the longest has ", longest,
                      " tokens, which a length of ", longest - 1, " holds");
}

ExampleTable::ExampleTable(std::shared_ptr<const TokenRow> row,
                           std::shared_ptr<const ExampleIndex> index, Options options)
    : row_(std::move(row)), index_(std::move(index)), options_(options) {}

absl::StatusOr<ExampleTable> ExampleTable::Create(std::shared_ptr<const TokenRow> row,
                                                  std::shared_ptr<const ExampleIndex> index,
                                                  Options options) {
  ExampleTable table(std::move(row), std::move(index), options);
  Summary& summary = table.summary_;
  summary.examples = table.size();
  int64_t end = 0;  // of the example before
  for (int64_t i = 0; i < summary.examples; ++i) {
    const ExampleSpan span = table.index_->At(i);
    if (span.prompt != end || span.completion < span.prompt || span.end <= span.completion ||
        span.end > table.row_->size()) {
      return absl::DataLossError(
          absl::StrCat("example ", i, " says that its prompt begins at token ", span.prompt,
                       ", its completion at ", span.completion, " and ends before ", span.end,
                       "; the example before it ends at ", end, ", the split at ",
                       table.row_->size(), ": the table of examples is damaged"));
    }
    end = span.end;
    const Kept kept = table.KeptOf(span);
    const int64_t prompt = std::max<int64_t>(span.completion - span.prompt, 1);
    const int64_t completion = span.end - span.completion;
    summary.prompts_cut += kept.prompt < prompt;
    summary.completions_cut += kept.completion < completion;
    summary.longest = std::max(summary.longest, prompt + completion);
    summary.loss_tokens += kept.completion;
  }
  if (end == table.row_->size()) return table;
  return absl::DataLossError(absl::StrCat("the examples end at token ", end, ", the split at ",
                                          table.row_->size(),
                                          ": the table of examples is damaged"));
}

ExampleTable::Kept ExampleTable::KeptOf(const ExampleSpan& span) const {
  Kept kept;
  kept.completion = std::min(span.end - span.completion, options_.sequence_length);
  kept.prompt = std::min(std::max<int64_t>(span.completion - span.prompt, 1),
                         options_.sequence_length + 1 - kept.completion);
  return kept;
}

absl::Status ExampleTable::ReadRow(int64_t id, absl::Span<int64_t> tokens,
                                   absl::Span<uint8_t> counted) const {
  const ExampleSpan span = index_->At(id);
  const Kept kept = KeptOf(span);
  // An empty prompt leaves the first token as it is: end of text.
  const int64_t from_row = std::min(kept.prompt, span.completion - span.prompt);
  const absl::Span<int64_t> read =
      tokens.subspan(kept.prompt - from_row, from_row + kept.completion);
  std::fill(tokens.begin(), read.begin(), options_.end_of_text);
  std::fill(read.end(), tokens.end(), options_.end_of_text);
  std::fill(counted.begin(), counted.end(), uint8_t{0});
  RETURN_IF_ERROR(row_->Copy(span.completion - from_row, read));
  // The target at t is the token at t + 1.
  std::fill_n(counted.begin() + (kept.prompt - 1), kept.completion, uint8_t{1});
  return absl::OkStatus();
}

int64_t ExampleTable::Length(int64_t id) const {
  const Kept kept = KeptOf(index_->At(id));
  return kept.prompt + kept.completion;
}

}  // namespace espalier
