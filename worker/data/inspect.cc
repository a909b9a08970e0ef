#include "worker/data/inspect.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/data/packed_table.h"

namespace espalier {
namespace {

constexpr size_t kShownBytes = 400;

// Printable UTF-8 stays; control bytes (terminal escapes among them) do not reach the terminal.
std::string Printable(absl::string_view text) {
  std::string shown;
  for (char c : text.substr(0, kShownBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool control = (byte < 0x20 && c != '\n') || byte == 0x7f;
    absl::StrAppend(&shown, control ? "." : absl::string_view(&c, 1));
    if (c == '\n') absl::StrAppend(&shown, "  | ");
  }
  return absl::StrCat("  | ", shown, text.size() > kShownBytes ? " ..." : "", "\n");
}

// The tokens of a sample that begin at `begin`, as far as `end`, as text.
absl::StatusOr<std::string> Decode(const Tokenizer& tokenizer, const Samples& sample, size_t begin,
                                   size_t end) {
  const std::vector<int32_t> ids(sample.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                 sample.tokens.begin() + static_cast<std::ptrdiff_t>(end));
  ASSIGN_OR_RETURN(const std::string text, tokenizer.Decode(ids));
  return Printable(text);
}

absl::StatusOr<std::string> ShowSample(const SampleTable& table, const Tokenizer& tokenizer,
                                       const std::string& split, int64_t number) {
  ASSIGN_OR_RETURN(const Samples sample, table.Read({number}));
  if (sample.counted.empty()) {
    ASSIGN_OR_RETURN(const std::string text, Decode(tokenizer, sample, 0, sample.tokens.size()));
    return absl::StrFormat("\n%s, sequence %d:\n%s", split, number, text);
  }
  // The target at t is the token at t + 1. Of several answers all from the first one on are shown
  // as such; `data preview` shows each token.
  const auto first = std::find(sample.counted.begin(), sample.counted.end(), uint8_t{1});
  const auto completion = static_cast<size_t>(first - sample.counted.begin()) + 1;
  ASSIGN_OR_RETURN(const std::string asked, Decode(tokenizer, sample, 0, completion));
  ASSIGN_OR_RETURN(const std::string answered,
                   Decode(tokenizer, sample, completion, sample.tokens.size()));
  return absl::StrFormat("\n%s, example %d, prompt:\n%scompletion:\n%s", split, number, asked,
                         answered);
}

absl::StatusOr<std::string> InspectWindows(const Dataset& dataset, const Tokenizer& tokenizer,
                                           const InspectOptions& options) {
  std::string text = absl::StrFormat("%-12s%14s%12s%8s%14s\n", "split", "tokens", "documents",
                                     "shards", absl::StrCat("x ", options.sequence_length));
  for (const auto& [name, split] : dataset.manifest().splits) {
    absl::StrAppendFormat(&text, "%-12s%14d%12d%8d%14d\n", name, split.tokens, split.documents,
                          split.shards.size(),
                          WindowTable::Count(split.tokens, options.sequence_length));
  }
  for (const auto& [name, split] : dataset.manifest().splits) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const TokenRow> row, dataset.Tokens(name));
    const WindowTable table(row, options.sequence_length);
    for (int64_t i = 0; i < std::min(table.size(), options.shown_samples); ++i) {
      ASSIGN_OR_RETURN(const std::string shown, ShowSample(table, tokenizer, name, i));
      text += shown;
    }
  }
  return text;
}

// `TableOf` opens the table of a split.
template <typename TableOf>
absl::StatusOr<std::string> InspectExamples(const Dataset& dataset, const Tokenizer& tokenizer,
                                            const InspectOptions& options,
                                            const TableOf& table_of) {
  std::string text = absl::StrFormat("%-12s%14s%12s%8s%14s%10s\n", "split", "tokens", "examples",
                                     "shards", "loss tokens", "longest");
  std::string notes, packing, shown;
  for (const auto& [name, split] : dataset.manifest().splits) {
    ASSIGN_OR_RETURN(const auto table, table_of(name));
    const auto& summary = table->summary();
    absl::StrAppendFormat(&text, "%-12s%14d%12d%8d%14d%10d\n", name, split.tokens, summary.examples,
                          split.shards.size() + split.examples.size() + split.runs.size(),
                          summary.loss_tokens, summary.longest);
    const std::string warning = summary.Warning(options.sequence_length);
    if (!warning.empty()) absl::StrAppend(&notes, "\n", name, ": ", warning, "\n");
    absl::StrAppend(&packing, name, ": with data.packing, ", PackedTable(table, 0).Summary(), "\n");
    for (int64_t i = 0; i < std::min(table->size(), options.shown_samples); ++i) {
      ASSIGN_OR_RETURN(const std::string sample, ShowSample(*table, tokenizer, name, i));
      shown += sample;
    }
  }
  const std::string rows = DescribeRows(dataset.manifest().rows);
  return absl::StrCat(text, rows.empty() ? "" : "rows        ", rows, rows.empty() ? "" : "\n",
                      packing, notes, shown);
}

absl::StatusOr<std::string> InspectPrompts(const Dataset& dataset, const Tokenizer& tokenizer,
                                           const InspectOptions& options) {
  std::string text = absl::StrFormat("%-12s%14s%12s%10s%14s\n", "split", "tokens", "prompts",
                                     "longest", "record bytes");
  std::string shown;
  for (const auto& [name, split] : dataset.manifest().splits) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const PromptTable> table, dataset.Prompts(name));
    size_t longest = 0;
    for (int64_t i = 0; i < table->size(); ++i) longest = std::max(longest, table->ids(i).size());
    absl::StrAppendFormat(&text, "%-12s%14d%12d%10d%14d\n", name, split.tokens, table->size(),
                          longest, split.record_bytes);
    for (int64_t i = 0; i < std::min(table->size(), options.shown_samples); ++i) {
      ASSIGN_OR_RETURN(const std::string prompt, tokenizer.Decode(table->ids(i)));
      absl::StrAppendFormat(&shown, "\n%s, prompt %d:\n%srecord:\n%s", name, i, Printable(prompt),
                            Printable(table->record(i)));
    }
  }
  return absl::StrCat(text, "rows        ", DescribeRows(dataset.manifest().rows), "\n", shown);
}

absl::StatusOr<std::string> InspectPreferences(const Dataset& dataset, const Tokenizer& tokenizer,
                                               const InspectOptions& options) {
  std::string text = absl::StrFormat("%-12s%14s%12s%10s\n", "split", "tokens", "pairs", "longest");
  std::string notes, shown;
  for (const auto& [name, split] : dataset.manifest().splits) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const PreferenceTable> table,
                     dataset.Preferences(name, options.sequence_length));
    const PreferenceTable::Summary& summary = table->summary();
    absl::StrAppendFormat(&text, "%-12s%14d%12d%10d\n", name, split.tokens, summary.pairs,
                          summary.longest);
    const std::string warning = summary.Warning(options.sequence_length);
    if (!warning.empty()) absl::StrAppend(&notes, "\n", name, ": ", warning, "\n");
    for (int64_t i = 0; i < std::min(table->size(), options.shown_samples); ++i) {
      ASSIGN_OR_RETURN(const Samples pair, table->Read({i}));
      std::vector<std::string> answered;
      for (const RowPart& part : pair.parts[0]) {
        ASSIGN_OR_RETURN(answered.emplace_back(), Decode(tokenizer, pair, part.begin, part.end));
      }
      absl::StrAppendFormat(&shown, "\n%s, pair %d, chosen:\n%srejected:\n%s", name, i, answered[0],
                            answered[1]);
    }
  }
  return absl::StrCat(text, "rows        ", DescribeRows(dataset.manifest().rows), "\n", notes,
                      shown);
}

absl::StatusOr<std::string> InspectBody(const Dataset& dataset, const Tokenizer& tokenizer,
                                        const InspectOptions& options) {
  const int64_t length = options.sequence_length;
  switch (dataset.manifest().holds) {
    case DataKind::kText:
      return InspectWindows(dataset, tokenizer, options);
    case DataKind::kPromptCompletion:
      return InspectExamples(dataset, tokenizer, options, [&](const std::string& split) {
        return dataset.Examples(split, length);
      });
    case DataKind::kMasked:
      return InspectExamples(dataset, tokenizer, options, [&](const std::string& split) {
        return dataset.Masked(split, length);
      });
    case DataKind::kPrompts:
      return InspectPrompts(dataset, tokenizer, options);
    case DataKind::kPreferences:
      return InspectPreferences(dataset, tokenizer, options);
  }
  return absl::InternalError("unknown kind of data");
}

}  // namespace

absl::Status CheckTokenizer(const Dataset& dataset, const Tokenizer& tokenizer) {
  const TokenManifest& manifest = dataset.manifest();
  if (manifest.tokenizer != tokenizer.kind() || manifest.vocab_size != tokenizer.vocab_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        dataset.folder(), " was prepared with tokenizer '", manifest.tokenizer, "' of ",
        manifest.vocab_size, " ids, got '", tokenizer.kind(), "' of ", tokenizer.vocab_size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> InspectData(const Dataset& dataset, const Tokenizer& tokenizer,
                                        InspectOptions options) {
  RETURN_IF_ERROR(CheckTokenizer(dataset, tokenizer));
  const TokenManifest& manifest = dataset.manifest();
  const std::string head = absl::StrFormat(
      "folder      %s\n"
      "holds       %s\n"
      "tokenizer   %s, %d ids, %d bytes a token\n"
      "source      %d bytes of text\n"
      "hash        %s\n\n",
      dataset.folder(), DataKindName(manifest.holds), manifest.tokenizer, manifest.vocab_size,
      manifest.token_bytes, manifest.source_bytes, dataset.manifest_hash());
  ASSIGN_OR_RETURN(const std::string body, InspectBody(dataset, tokenizer, options));
  return head + body;
}

}  // namespace espalier
