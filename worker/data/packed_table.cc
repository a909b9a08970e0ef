#include "worker/data/packed_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "worker/data/order.h"

namespace espalier {
namespace {

constexpr uint64_t kPackingStream = 0x7061636b696e67;  // tells the uses of a seed apart
constexpr int64_t kAnyLength = int64_t{1} << 40;

// Samples of `ids`, each filled by read(id, tokens, counted, parts).
template <typename Table, typename ReadRow>
absl::StatusOr<Samples> ReadParts(const Table& table, std::vector<int64_t> ids,
                                  const ReadRow& read) {
  const auto length = static_cast<size_t>(table.sequence_length());
  Samples samples;
  samples.tokens.resize(ids.size() * (length + 1));
  samples.counted.resize(ids.size() * length);
  samples.parts.resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= table.size()) {
      return absl::OutOfRangeError(
          absl::StrCat("row ", ids[i], " is wanted, the split has ", table.size()));
    }
    RETURN_IF_ERROR(
        read(ids[i], absl::MakeSpan(samples.tokens).subspan(i * (length + 1), length + 1),
             absl::MakeSpan(samples.counted).subspan(i * length, length), samples.parts[i]));
  }
  samples.ids = std::move(ids);
  return samples;
}

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
  return ReadParts(*this, std::move(ids), [this](auto&&... row) { return ReadRow(row...); });
}

double PackedTable::fill() const {
  const int64_t room = size() * (sequence_length() + 1);
  return static_cast<double>(tokens_) / static_cast<double>(std::max<int64_t>(room, 1));
}

std::string PackedTable::Summary() const {
  return absl::StrFormat("%d examples share %d rows of %d tokens, %.1f %% full", examples(), size(),
                         sequence_length() + 1, 100 * fill());
}

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
  return ReadParts(*this, std::move(ids), [this](auto&&... row) { return ReadRow(row...); });
}

}  // namespace espalier
