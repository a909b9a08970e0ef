#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/tokenizer/open_tokenizer.h"
#include "worker/verbs.h"

namespace espalier {
namespace {

absl::StatusOr<SplitBy> ParseSplit(const std::string& text) {
  static const auto& names = *new std::map<std::string, SplitBy>{{"auto", SplitBy::kAuto},
                                                                 {"document", SplitBy::kDocument},
                                                                 {"tail", SplitBy::kTail},
                                                                 {"files", SplitBy::kFiles},
                                                                 {"none", SplitBy::kNone}};
  const auto found = names.find(text);
  if (found != names.end()) return found->second;
  return absl::InvalidArgumentError(
      absl::StrCat("--split is '", text, "'; allowed: auto, document, tail, files, none"));
}

// One line that is redrawn, on a terminal only.
void ShowProgress(const PrepareProgress& progress) {
  if (isatty(STDERR_FILENO) == 0) return;
  absl::FPrintF(stderr, "\r%d of %d MB read, %d documents, %d tokens ",
                progress.done_bytes / 1000000, progress.total_bytes / 1000000, progress.documents,
                progress.tokens);
  if (progress.done_bytes == progress.total_bytes) std::fputc('\n', stderr);
}

void ShowLearning(const LearnProgress& progress) {
  if (isatty(STDERR_FILENO) == 0) return;
  absl::FPrintF(stderr, "\r%d of %d MB read, %d tokens ", progress.done_bytes / 1000000,
                progress.total_bytes / 1000000, progress.tokens);
}

}  // namespace

absl::Status RunLearnTokenizer(LearnTokenizerOptions options) {
  options.progress = ShowLearning;
  ASSIGN_OR_RETURN(const LearntTokenizer learnt, LearnTokenizer(PosixFileSystem(), options));
  if (isatty(STDERR_FILENO) != 0) std::fputc('\n', stderr);
  absl::PrintF("%s: %d ids, from %.1f MB of %d files; %.2f bytes a token\n", options.output,
               learnt.vocab_size, static_cast<double>(learnt.read_bytes) / 1e6, learnt.files,
               learnt.bytes_per_token);
  return absl::OkStatus();
}

absl::Status RunPrepare(PrepareCommand command) {
  const absl::StatusOr<DataKind> kind = DataKindFromName(command.format);
  if (!kind.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--format is '", command.format, "'; allowed: text, prompt-completion"));
  }
  command.options.kind = *kind;
  ASSIGN_OR_RETURN(command.options.split_by, ParseSplit(command.split));
  if (!command.options.validation_inputs.empty() && command.split == "auto") {
    command.options.split_by = SplitBy::kFiles;
  }
  command.options.progress = ShowProgress;
  std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer();
  if (!command.tokenizer.empty()) {
    ASSIGN_OR_RETURN(tokenizer, OpenTokenizer(command.tokenizer));
  }
  ASSIGN_OR_RETURN(const PrepareResult result,
                   PrepareData(PosixFileSystem(), *tokenizer, command.options));
  absl::PrintF("%s: %d files, %s tokenizer of %d ids\n", command.options.output, result.files,
               result.manifest.tokenizer, result.manifest.vocab_size);
  for (const auto& [name, split] : result.manifest.splits) {
    absl::PrintF("  %-10s  %d %s, %d tokens\n", name, split.documents,
                 *kind == DataKind::kText ? "documents" : "examples", split.tokens);
  }
  if (result.skipped_files > 0) absl::PrintF("  %d binary files left out\n", result.skipped_files);
  return absl::OkStatus();
}

absl::Status RunInspect(const InspectCommand& command) {
  ASSIGN_OR_RETURN(const Dataset dataset,
                   Dataset::Open(command.folder, {.verify = command.verify}));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer(command.folder));
  ASSIGN_OR_RETURN(const std::string text, InspectData(dataset, *tokenizer, command.options));
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace espalier
