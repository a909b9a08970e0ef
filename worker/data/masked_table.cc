#include "worker/data/masked_table.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

// The targets [begin, end) of a row that a stretch has: the target at t is the token at t + 1.
TokenRun TargetsOf(const TokenRun& run, const MaskedSpan& span, int64_t sequence_length) {
  return {std::max<int64_t>(run.begin - span.begin - 1, 0),
          std::min(run.end - span.begin - 1, sequence_length)};
}

}  // namespace

std::string MaskedTable::Summary::Warning(int64_t sequence_length) const {
  if (cut == 0) return "";
  return absl::StrCat(
      "data.sequence_length ", sequence_length, " cuts examples: of ", examples, ", ", cut,
      " lose their end",
      unlearnable > 0 ? absl::StrCat(", ", unlearnable, " of them all that counts in the loss")
                      : "",
      "; the longest has ", longest, " tokens, which a length of ", longest - 1, " holds");
}

absl::StatusOr<MaskedTable> MaskedTable::Create(std::shared_ptr<const TokenRow> row,
                                                std::shared_ptr<const MaskedIndex> index,
                                                Options options) {
  MaskedTable table(std::move(row), std::move(index), options);
  table.summary_.examples = table.size();
  int64_t end = 0, runs_end = 0;  // of the example before
  for (int64_t i = 0; i < table.size(); ++i) {
    const MaskedSpan span = table.index_->At(i);
    const bool follows = span.begin == end && span.runs_begin == runs_end &&
                         span.begin < span.end && span.end <= table.row_->size() &&
                         span.runs_begin <= span.runs_end && span.runs_end <= table.index_->runs();
    if (!follows || !table.Summarise(span)) {
      return absl::DataLossError(
          absl::StrCat("example ", i, " says that its tokens are [", span.begin, ", ", span.end,
                       ") and its stretches [", span.runs_begin, ", ", span.runs_end,
                       "), or one of these leaves it; the example before it ends at ", end, " and ",
                       runs_end, ", the split at ", table.row_->size(), " and ",
                       table.index_->runs(), ": the table of examples is damaged"));
    }
    end = span.end;
    runs_end = span.runs_end;
  }
  if (end == table.row_->size() && runs_end == table.index_->runs()) return table;
  return absl::DataLossError(absl::StrCat(
      "the examples end at token ", end, " and stretch ", runs_end, ", the split at ",
      table.row_->size(), " and ", table.index_->runs(), ": the table of examples is damaged"));
}

bool MaskedTable::Summarise(const MaskedSpan& span) {
  int64_t at = span.begin, counted = 0;
  for (int64_t i = span.runs_begin; i < span.runs_end; ++i) {
    const TokenRun run = index_->Run(i);
    if (run.begin < at || run.end <= run.begin || run.end > span.end) return false;
    at = run.end;
    const TokenRun targets = TargetsOf(run, span, options_.sequence_length);
    counted += std::max<int64_t>(targets.end - targets.begin, 0);
  }
  const bool cut = span.tokens() > options_.sequence_length + 1;
  summary_.cut += cut;
  summary_.unlearnable += cut && counted == 0;
  summary_.longest = std::max(summary_.longest, span.tokens());
  summary_.tokens += std::min(span.tokens(), options_.sequence_length + 1);
  summary_.loss_tokens += counted;
  return true;
}

absl::Status MaskedTable::ReadRow(int64_t id, absl::Span<int64_t> tokens,
                                  absl::Span<uint8_t> counted) const {
  const MaskedSpan span = index_->At(id);
  const size_t kept = std::min(static_cast<size_t>(span.tokens()), tokens.size());
  RETURN_IF_ERROR(row_->Copy(span.begin, tokens.first(kept)));
  std::fill(tokens.begin() + static_cast<std::ptrdiff_t>(kept), tokens.end(), options_.end_of_text);
  std::fill(counted.begin(), counted.end(), uint8_t{0});
  for (int64_t i = span.runs_begin; i < span.runs_end; ++i) {
    const TokenRun targets = TargetsOf(index_->Run(i), span, options_.sequence_length);
    if (targets.begin >= targets.end) continue;
    std::fill(counted.begin() + targets.begin, counted.begin() + targets.end, uint8_t{1});
  }
  return absl::OkStatus();
}

int64_t MaskedTable::Length(int64_t id) const {
  return std::min(index_->At(id).tokens(), options_.sequence_length + 1);
}

}  // namespace espalier
