#include "worker/data/preference_table.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr int64_t kAnyLength = int64_t{1} << 40;

}  // namespace

std::string PreferenceTable::Summary::Warning(int64_t sequence_length) const {
  if (cut == 0) return "";
  return absl::StrCat(cut, " of ", pairs, " pairs are longer than ", sequence_length + 1,
                      " tokens (data.sequence_length + 1, for both answers with their prompts) and "
                      "lose the front of their prompts; the longest has ",
                      longest, ", which a length of ", longest - 1, " holds");
}

absl::StatusOr<PreferenceTable> PreferenceTable::Create(std::shared_ptr<const TokenRow> row,
                                                        std::shared_ptr<const ExampleIndex> index,
                                                        Options options) {
  // That examples follow each other is as in any table of them.
  RETURN_IF_ERROR(
      ExampleTable::Create(row, index,
                           {.sequence_length = kAnyLength, .end_of_text = options.end_of_text})
          .status());
  if (index->size() % 2 != 0) {
    return absl::DataLossError(absl::StrCat("there are ", index->size(),
                                            " examples, and two make a pair: the table of "
                                            "examples is damaged"));
  }
  PreferenceTable table(std::move(row), std::move(index), options);
  table.summary_.pairs = table.size();
  for (int64_t i = 0; i < table.size(); ++i) RETURN_IF_ERROR(table.Summarise(i));
  return table;
}

absl::Status PreferenceTable::Summarise(int64_t pair) {
  const ExampleSpan chosen = index_->At(2 * pair), rejected = index_->At(2 * pair + 1);
  if (chosen.completion == chosen.prompt || rejected.completion == rejected.prompt) {
    return absl::DataLossError(absl::StrCat("pair ", pair,
                                            " has an answer without a token before it: the table "
                                            "of examples is damaged"));
  }
  const int64_t tokens = rejected.end - chosen.prompt;
  summary_.longest = std::max(summary_.longest, tokens);
  summary_.cut += tokens > sequence_length() + 1;
  const Pair kept = At(pair);
  if (kept.chosen.prompt < kept.chosen.completion &&
      kept.rejected.prompt < kept.rejected.completion) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "pair ", pair, " has answers of ", chosen.end - chosen.completion, " and ",
      rejected.end - rejected.completion, " tokens and is ", tokens,
      " long; they share a row of data.sequence_length + 1, which is ", sequence_length() + 1,
      " tokens, with one of the prompt before each at least: raise it, or leave such pairs out "
      "(espalier data prepare --max-tokens ",
      sequence_length() + 1, " --long-rows skip)"));
}

PreferenceTable::Pair PreferenceTable::At(int64_t pair) const {
  Pair found{index_->At(2 * pair), index_->At(2 * pair + 1)};
  const int64_t over = std::max<int64_t>(0, found.tokens() - (sequence_length() + 1));
  found.chosen.prompt += (over + 1) / 2;
  found.rejected.prompt += (over + 1) / 2;
  return found;
}

int64_t PreferenceTable::Length(int64_t id) const { return At(id).tokens(); }

absl::Status PreferenceTable::ReadRow(int64_t pair, absl::Span<int64_t> tokens,
                                      absl::Span<uint8_t> counted,
                                      std::vector<RowPart>& parts) const {
  const Pair kept = At(pair);
  int64_t begin = 0;
  for (const ExampleSpan& span : {kept.chosen, kept.rejected}) {
    const int64_t length = span.end - span.prompt, prompt = span.completion - span.prompt;
    RETURN_IF_ERROR(row_->Copy(span.prompt, tokens.subspan(begin, length)));
    // The target at t is the token at t + 1.
    std::fill_n(counted.begin() + begin + prompt - 1, length - prompt, uint8_t{1});
    parts.push_back({.id = 2 * pair + static_cast<int64_t>(parts.size()),
                     .begin = begin,
                     .end = begin + length});
    begin += length;
  }
  std::fill(tokens.begin() + begin, tokens.end(), options_.end_of_text);
  return absl::OkStatus();
}

absl::StatusOr<Samples> PreferenceTable::Read(std::vector<int64_t> ids) const {
  const auto length = static_cast<size_t>(sequence_length());
  Samples samples;
  samples.tokens.resize(ids.size() * (length + 1));
  samples.counted.resize(ids.size() * length);
  samples.parts.resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= size()) {
      return absl::OutOfRangeError(
          absl::StrCat("pair ", ids[i], " is wanted, the split has ", size()));
    }
    RETURN_IF_ERROR(
        ReadRow(ids[i], absl::MakeSpan(samples.tokens).subspan(i * (length + 1), length + 1),
                absl::MakeSpan(samples.counted).subspan(i * length, length), samples.parts[i]));
  }
  samples.ids = std::move(ids);
  return samples;
}

}  // namespace espalier
