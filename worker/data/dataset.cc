#include "worker/data/dataset.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file_system.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr int64_t kManifestBytesMax = 64 << 20;

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

}  // namespace espalier
