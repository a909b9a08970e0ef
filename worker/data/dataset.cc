#include "worker/data/dataset.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/file_system.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr int64_t kManifestBytesMax = 64 << 20;
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
  // The target at t is the token at t + 1.
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

absl::StatusOr<std::string> InspectExamples(const Dataset& dataset, const Tokenizer& tokenizer,
                                            const InspectOptions& options) {
  std::string text = absl::StrFormat("%-12s%14s%12s%8s%14s%10s\n", "split", "tokens", "examples",
                                     "shards", "loss tokens", "longest");
  std::string notes, shown;
  for (const auto& [name, split] : dataset.manifest().splits) {
    ASSIGN_OR_RETURN(const auto table, dataset.Examples(name, options.sequence_length));
    const ExampleTable::Summary& summary = table->summary();
    absl::StrAppendFormat(&text, "%-12s%14d%12d%8d%14d%10d\n", name, split.tokens, summary.examples,
                          split.shards.size() + split.examples.size(), summary.loss_tokens,
                          summary.longest);
    const std::string warning = summary.Warning(options.sequence_length);
    if (!warning.empty()) absl::StrAppend(&notes, "\n", name, ": ", warning, "\n");
    for (int64_t i = 0; i < std::min(table->size(), options.shown_samples); ++i) {
      ASSIGN_OR_RETURN(const std::string sample, ShowSample(*table, tokenizer, name, i));
      shown += sample;
    }
  }
  return absl::StrCat(text, notes, shown);
}

}  // namespace

absl::StatusOr<Dataset> Dataset::Open(const std::string& folder, VerifyOptions options) {
  const std::string path = JoinPath(folder, kTokenManifestName);
  const absl::StatusOr<std::string> text = PosixFileSystem().Read(path, kManifestBytesMax);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat("no prepared data in ", folder, ": there is no ",
                                            kTokenManifestName,
                                            "; make it with `espalier data prepare`"));
  }
  if (!text.ok()) return text.status();
  absl::StatusOr<TokenManifest> manifest = TokenManifestFromJson(*text);
  if (!manifest.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " does not describe prepared data: ", manifest.status().message(),
                     "; run `espalier data prepare` again"));
  }
  RETURN_IF_ERROR(VerifyFolder(folder, *manifest, options));
  Dataset dataset;
  dataset.folder_ = folder;
  dataset.manifest_hash_ = Sha256Hex(*text);
  for (const auto& [name, split] : manifest->splits) {
    ASSIGN_OR_RETURN(dataset.splits_[name], MapSplit(folder, *manifest, split));
  }
  dataset.manifest_ = *std::move(manifest);
  return dataset;
}

absl::StatusOr<SplitRows> Dataset::Split(absl::string_view name) const {
  const auto it = splits_.find(name);
  if (it != splits_.end()) return it->second;
  const std::string names = absl::StrJoin(
      splits_, ", ", [](std::string* out, const auto& split) { *out += split.first; });
  return absl::NotFoundError(absl::StrCat(folder_, " has no split '", name, "'; it has: ", names));
}

absl::StatusOr<std::shared_ptr<const TokenRow>> Dataset::Tokens(absl::string_view split) const {
  ASSIGN_OR_RETURN(SplitRows rows, Split(split));
  return std::move(rows.tokens);
}

absl::Status Dataset::CheckHolds(DataKind wanted) const {
  if (manifest_.holds == wanted) return absl::OkStatus();
  switch (manifest_.holds) {
    case DataKind::kText:
      return absl::FailedPreconditionError(
          absl::StrCat(folder_,
                       " holds text; train.task: pretrain uses it. Prompts with completions are "
                       "prepared with `espalier data prepare --format prompt-completion`"));
    case DataKind::kPromptCompletion:
      return absl::FailedPreconditionError(absl::StrCat(
          folder_,
          " holds prompt/completion examples; train.task: sft uses it. Text is prepared "
          "with `espalier data prepare`"));
  }
  return absl::InternalError("unknown kind of data");
}

absl::StatusOr<std::shared_ptr<const WindowTable>> Dataset::Windows(absl::string_view split,
                                                                    int64_t sequence_length) const {
  RETURN_IF_ERROR(CheckHolds(DataKind::kText));
  ASSIGN_OR_RETURN(const SplitRows rows, Split(split));
  auto table = std::make_shared<const WindowTable>(rows.tokens, sequence_length);
  if (table->size() > 0) return table;
  return absl::FailedPreconditionError(
      absl::StrCat("split '", split, "' of ", folder_, " has ", rows.tokens->size(),
                   " tokens, too few for one sequence of ", sequence_length,
                   " (+ 1 for the last target); lower data.sequence_length or prepare more text"));
}

absl::StatusOr<std::shared_ptr<const ExampleTable>> Dataset::Examples(
    absl::string_view split, int64_t sequence_length) const {
  RETURN_IF_ERROR(CheckHolds(DataKind::kPromptCompletion));
  ASSIGN_OR_RETURN(const SplitRows rows, Split(split));
  absl::StatusOr<ExampleTable> table =
      ExampleTable::Create(rows.tokens, rows.examples,
                           {.sequence_length = sequence_length, .end_of_text = manifest_.eos_id});
  if (!table.ok()) {
    return absl::Status(table.status().code(), absl::StrCat("split '", split, "' of ", folder_,
                                                            ": ", table.status().message()));
  }
  if (table->size() > 0) return std::make_shared<const ExampleTable>(*std::move(table));
  return absl::FailedPreconditionError(
      absl::StrCat("split '", split, "' of ", folder_, " has no examples"));
}

absl::StatusOr<std::string> InspectData(const Dataset& dataset, const Tokenizer& tokenizer,
                                        InspectOptions options) {
  const TokenManifest& manifest = dataset.manifest();
  if (manifest.tokenizer != tokenizer.kind() || manifest.vocab_size != tokenizer.vocab_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        dataset.folder(), " was prepared with tokenizer '", manifest.tokenizer, "' of ",
        manifest.vocab_size, " ids, got '", tokenizer.kind(), "' of ", tokenizer.vocab_size()));
  }
  const std::string head = absl::StrFormat(
      "folder      %s\n"
      "holds       %s\n"
      "tokenizer   %s, %d ids, %d bytes a token\n"
      "source      %d bytes of text\n"
      "hash        %s\n\n",
      dataset.folder(), DataKindName(manifest.holds), manifest.tokenizer, manifest.vocab_size,
      manifest.token_bytes, manifest.source_bytes, dataset.manifest_hash());
  const bool examples = manifest.holds == DataKind::kPromptCompletion;
  ASSIGN_OR_RETURN(const std::string body, examples ? InspectExamples(dataset, tokenizer, options)
                                                    : InspectWindows(dataset, tokenizer, options));
  return head + body;
}

}  // namespace espalier
