#include "worker/data/prepare.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "worker/data/preparer.h"

namespace espalier {
namespace {

absl::Status CheckOptions(const PrepareOptions& options) {
  if (options.inputs.empty()) return absl::InvalidArgumentError("no input: name files or folders");
  if (options.output.empty()) return absl::InvalidArgumentError("no output folder is given");
  if (!(options.validation_fraction > 0 && options.validation_fraction < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the validation fraction must be between 0 and 1, got ",
                     options.validation_fraction, "; for none, choose the split 'none'"));
  }
  if (options.shard_tokens < 1 || options.shard_tokens > (int64_t{1} << 30)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens per shard must be 1 to 2^30, got ", options.shard_tokens));
  }
  if ((options.split_by == SplitBy::kFiles) == options.validation_inputs.empty()) {
    return absl::InvalidArgumentError(
        "validation files go with the split 'files', and it needs at least one");
  }
  if (options.max_tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat("the most tokens of a row are ",
                                                   options.max_tokens,
                                                   "; allowed: 1 or more, 0: any number"));
  }
  if (options.rows && options.fields.prompt == options.fields.completion) {
    return absl::InvalidArgumentError(absl::StrCat("the field '", options.fields.prompt,
                                                   "' cannot be both prompt and completion"));
  }
  return absl::OkStatus();
}

absl::Status WriteText(FileSystem& files, const std::string& path, const std::string& text) {
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(path));
  RETURN_IF_ERROR(file->Append({reinterpret_cast<const std::byte*>(text.data()), text.size()}));
  RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

// The folder to be, while it is being written: "DATA" -> ".DATA.preparing-PID" beside it.
std::string TemporaryPrefix(const std::string& output) {
  return absl::StrCat(".", std::filesystem::path(output).filename().string(), ".preparing-");
}

// Removes the temporary folders of runs that are no more.
absl::Status RemoveLeftovers(FileSystem& files, const std::string& output) {
  const std::string prefix = TemporaryPrefix(output);
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(ParentPath(output)));
  for (absl::string_view name : names) {
    absl::string_view pid_text = name;
    int pid = 0;
    if (!absl::ConsumePrefix(&pid_text, prefix) || !absl::SimpleAtoi(pid_text, &pid)) continue;
    const bool alive = pid != getpid() && (kill(pid, 0) == 0 || errno == EPERM);
    if (!alive) RETURN_IF_ERROR(files.Remove(JoinPath(ParentPath(output), name)));
  }
  return absl::OkStatus();
}

absl::Status CheckOutput(FileSystem& files, const std::string& output) {
  const auto names = files.List(output);
  if (absl::IsNotFound(names.status()) || (names.ok() && names->empty())) return absl::OkStatus();
  if (!names.ok()) return names.status();
  return absl::AlreadyExistsError(
      absl::StrCat("output folder ", output, " is not empty; remove it or choose another one"));
}

// The lists that the verifier of Wordle needs, where they lie beside the prompts.
absl::Status CopyWordLists(FileSystem& files, const std::string& input, const std::string& folder,
                           TokenManifest& manifest) {
  constexpr int64_t kBytesMax = 64 << 20;
  for (const char* name : {"words.txt", "secrets.txt"}) {
    const absl::StatusOr<std::string> text =
        PosixFileSystem().Read(JoinPath(ParentPath(input), name), kBytesMax);
    if (absl::IsNotFound(text.status())) continue;
    if (!text.ok()) return text.status();
    RETURN_IF_ERROR(WriteText(files, JoinPath(folder, name), *text));
    manifest.files.push_back({name, Sha256Hex(*text)});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PrepareResult> PrepareData(FileSystem& files, const Tokenizer& tokenizer,
                                          const PrepareOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  const std::string output(absl::StripSuffix(options.output, "/"));
  RETURN_IF_ERROR(CheckOutput(files, output));
  const InputKind input = options.rows ? InputKind::kRows : InputKind::kText;
  ASSIGN_OR_RETURN(const InputFiles validation,
                   FindInputFiles(options.validation_inputs, {}, input));
  ASSIGN_OR_RETURN(const InputFiles train, FindInputFiles(options.inputs, validation, input));
  ASSIGN_OR_RETURN(const RowPlan plan, PlanRows(options, train));
  RETURN_IF_ERROR(MakeDurableDirectory(files, ParentPath(output)));
  RETURN_IF_ERROR(RemoveLeftovers(files, output));
  const std::string temporary =
      JoinPath(ParentPath(output), absl::StrCat(TemporaryPrefix(output), getpid()));
  std::optional<RowRenderer> renderer;
  if (plan.format) {
    ASSIGN_OR_RETURN(RowRenderer created, RowRenderer::Create(tokenizer, plan.render));
    renderer.emplace(std::move(created));
  }
  Preparer preparer(files, {tokenizer, options, plan, renderer ? &*renderer : nullptr}, temporary);
  PrepareResult result{.files = static_cast<int64_t>(train.files.size() + validation.files.size()),
                       .skipped_files = train.skipped + validation.skipped};
  const absl::Status written = [&]() -> absl::Status {
    RETURN_IF_ERROR(files.MakeDirectory(temporary));
    RETURN_IF_ERROR(preparer.Run(train, validation));
    result.manifest = preparer.Manifest();
    result.format = plan.format;
    if (plan.kind == DataKind::kPrompts) {
      RETURN_IF_ERROR(CopyWordLists(files, train.files.front().path, temporary, result.manifest));
    }
    RETURN_IF_ERROR(WriteText(files, JoinPath(temporary, "tokenizer.json"), tokenizer.Json()));
    RETURN_IF_ERROR(
        WriteText(files, JoinPath(temporary, "tokenizer_config.json"), tokenizer.ConfigJson()));
    RETURN_IF_ERROR(WriteText(files, JoinPath(temporary, kTokenManifestName),
                              TokenManifestToJson(result.manifest)));
    RETURN_IF_ERROR(files.SyncDirectory(temporary));
    return files.Rename(temporary, output);
  }();
  if (written.ok()) RETURN_IF_ERROR(files.SyncDirectory(ParentPath(output)));
  if (written.ok()) return result;
  files.Remove(temporary).IgnoreError();
  if (!absl::IsResourceExhausted(written)) return written;
  return absl::ResourceExhaustedError(absl::StrCat(
      written.message(), "; nothing was left behind: free some space or choose another output"));
}

}  // namespace espalier
