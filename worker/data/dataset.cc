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

struct ReadManifest {
  TokenManifest manifest;
  std::string text;
};

absl::StatusOr<ReadManifest> Read(const std::string& folder) {
  const std::string path = JoinPath(folder, kTokenManifestName);
  absl::StatusOr<std::string> text = PosixFileSystem().Read(path, kManifestBytesMax);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat("no prepared data in ", folder, ": there is no ",
                                            kTokenManifestName,
                                            "; make it with `espalier data prepare`"));
  }
  if (!text.ok()) return text.status();
  absl::StatusOr<TokenManifest> manifest = TokenManifestFromJson(*text);
  if (manifest.ok()) return ReadManifest{*std::move(manifest), *std::move(text)};
  return absl::InvalidArgumentError(
      absl::StrCat(path, " does not describe prepared data: ", manifest.status().message(),
                   "; run `espalier data prepare` again"));
}

}  // namespace

absl::StatusOr<int64_t> CountTrainingSamples(const std::string& folder, const SampleShape& shape) {
  ASSIGN_OR_RETURN(const ReadManifest read, Read(folder));
  const auto split = read.manifest.splits.find(kTrainSplit);
  if (split == read.manifest.splits.end()) {
    return absl::NotFoundError(absl::StrCat(folder, " has no split '", kTrainSplit, "'"));
  }
  if (read.manifest.holds == DataKind::kText) {
    return WindowTable::Count(split->second.tokens, shape.sequence_length);
  }
  if (read.manifest.holds == DataKind::kPreferences) return split->second.documents / 2;
  if (!shape.packing) return split->second.documents;
  ASSIGN_OR_RETURN(const Dataset dataset, Dataset::Open(folder, {}));
  std::shared_ptr<const ExampleRows> examples;
  if (read.manifest.holds == DataKind::kMasked) {
    ASSIGN_OR_RETURN(examples, dataset.Masked(kTrainSplit, shape.sequence_length));
  } else {
    ASSIGN_OR_RETURN(examples, dataset.Examples(kTrainSplit, shape.sequence_length));
  }
  return PackedTable(std::move(examples), /*seed=*/0).size();
}

absl::StatusOr<Dataset> Dataset::Open(const std::string& folder, VerifyOptions options) {
  ASSIGN_OR_RETURN(ReadManifest read, Read(folder));
  RETURN_IF_ERROR(VerifyFolder(folder, read.manifest, options));
  Dataset dataset;
  dataset.folder_ = folder;
  dataset.manifest_hash_ = Sha256Hex(read.text);
  for (const auto& [name, split] : read.manifest.splits) {
    ASSIGN_OR_RETURN(dataset.splits_[name], MapSplit(folder, read.manifest, split));
  }
  dataset.manifest_ = std::move(read.manifest);
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
                       " holds text; train.task: pretrain uses it. Conversations, and prompts with "
                       "completions, are prepared with `espalier data prepare --format auto`"));
    case DataKind::kPromptCompletion:
    case DataKind::kMasked:
      return absl::FailedPreconditionError(absl::StrCat(
          folder_, " holds ",
          manifest_.holds == DataKind::kMasked ? "conversations or texts that are examples"
                                               : "prompt/completion examples",
          "; train.task: sft uses it. Text is prepared with `espalier data prepare`"));
    case DataKind::kPrompts:
      return absl::FailedPreconditionError(absl::StrCat(
          folder_,
          " holds prompts that are to be completed; train.task: rft and grpo use them. Text is "
          "prepared with `espalier data prepare`, examples with `--format auto`"));
    case DataKind::kPreferences:
      return absl::FailedPreconditionError(absl::StrCat(
          folder_,
          " holds pairs of a chosen and a rejected answer; train.task: dpo uses them. Text is "
          "prepared with `espalier data prepare`, examples with `--format auto`"));
  }
  return absl::InternalError("unknown kind of data");
}

absl::StatusOr<std::shared_ptr<const PromptTable>> Dataset::Prompts(absl::string_view split) const {
  if (manifest_.holds != DataKind::kPrompts) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder_, " holds ", DataKindName(manifest_.holds),
        ", and train.task rft and grpo learn from prompts: rows {\"prompt\": ..., \"record\": "
        "{...}}, prepared with `espalier data prepare --format prompts`"));
  }
  ASSIGN_OR_RETURN(const SplitRows rows, Split(split));
  if (rows.prompts->size() > 0) return rows.prompts;
  return absl::FailedPreconditionError(
      absl::StrCat("split '", split, "' of ", folder_, " has no prompts"));
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
  return Checked(split, ExampleTable::Create(
                            rows.tokens, rows.examples,
                            {.sequence_length = sequence_length, .end_of_text = manifest_.eos_id}));
}

absl::StatusOr<std::shared_ptr<const MaskedTable>> Dataset::Masked(absl::string_view split,
                                                                   int64_t sequence_length) const {
  RETURN_IF_ERROR(CheckHolds(DataKind::kMasked));
  ASSIGN_OR_RETURN(const SplitRows rows, Split(split));
  return Checked(split, MaskedTable::Create(
                            rows.tokens, rows.masked,
                            {.sequence_length = sequence_length, .end_of_text = manifest_.eos_id}));
}

absl::StatusOr<std::shared_ptr<const PreferenceTable>> Dataset::Preferences(
    absl::string_view split, int64_t sequence_length) const {
  if (manifest_.holds != DataKind::kPreferences) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder_, " holds ", DataKindName(manifest_.holds),
        ", and train.task dpo learns from pairs of answers: rows {\"prompt\": ..., "
        "\"chosen\": ..., \"rejected\": ...}, prepared with `espalier data prepare --format "
        "preferences`"));
  }
  ASSIGN_OR_RETURN(const SplitRows rows, Split(split));
  return Checked(split, PreferenceTable::Create(
                            rows.tokens, rows.examples,
                            {.sequence_length = sequence_length, .end_of_text = manifest_.eos_id}));
}

template <typename Table>
absl::StatusOr<std::shared_ptr<const Table>> Dataset::Checked(absl::string_view split,
                                                              absl::StatusOr<Table> table) const {
  if (!table.ok()) {
    return absl::Status(table.status().code(), absl::StrCat("split '", split, "' of ", folder_,
                                                            ": ", table.status().message()));
  }
  if (table->size() > 0) return std::make_shared<const Table>(*std::move(table));
  return absl::FailedPreconditionError(
      absl::StrCat("split '", split, "' of ", folder_, " has no examples"));
}

}  // namespace espalier
