#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/tokenizer/open_tokenizer.h"
#include "worker/verbs.h"

namespace espalier {
namespace {

constexpr int kToldRowsMax = 20;

template <typename T>
using Names = std::vector<std::pair<absl::string_view, T>>;

// What `text` names.
template <typename T>
absl::StatusOr<T> Parse(const char* option, absl::string_view text, const Names<T>& names) {
  std::vector<absl::string_view> allowed;
  for (const auto& [name, value] : names) {
    if (name == text) return value;
    allowed.push_back(name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(option, " is '", text, "'; allowed: ", absl::StrJoin(allowed, ", ")));
}

absl::StatusOr<SplitBy> ParseSplit(const std::string& text) {
  return Parse<SplitBy>("--split", text,
                        {{"auto", SplitBy::kAuto},
                         {"document", SplitBy::kDocument},
                         {"tail", SplitBy::kTail},
                         {"files", SplitBy::kFiles},
                         {"none", SplitBy::kNone}});
}

// Absent: the input is text.
absl::StatusOr<std::optional<RowOptions>> ParseRows(const PrepareCommand& command) {
  Names<std::optional<RowFormat>> formats{{"text", std::nullopt}, {"auto", std::nullopt}};
  for (const RowFormat format :
       {RowFormat::kText, RowFormat::kPromptCompletion, RowFormat::kMessages, RowFormat::kShareGpt,
        RowFormat::kAlpaca, RowFormat::kOpenAssistant, RowFormat::kPrompts,
        RowFormat::kPreferences}) {
    formats.emplace_back(RowFormatName(format), format);
  }
  RowOptions rows;
  ASSIGN_OR_RETURN(rows.format, Parse("--format", command.format, formats));
  if (!command.loss.empty()) {
    ASSIGN_OR_RETURN(rows.loss,
                     Parse<LossOn>("--loss", command.loss,
                                   {{"all", LossOn::kAll}, {"completions", LossOn::kCompletions}}));
  }
  if (command.format != "text") return rows;
  if (command.loss.empty() && command.options.max_tokens == 0) return std::nullopt;
  return absl::InvalidArgumentError(
      "--loss and --max-tokens are for rows, and --format is text, of which all counts, in "
      "sequences of data.sequence_length; for rows that are examples say --format auto");
}

// Tells the first rows that are left out; the summary has the number of all.
std::function<void(const std::string&)> TellBadRows() {
  return [told = 0](const std::string& message) mutable {
    if (++told > kToldRowsMax + 1) return;
    if (told > kToldRowsMax) {
      absl::FPrintF(stderr, "further rows are left out without a line here\n");
      return;
    }
    absl::FPrintF(stderr, "left out: %s\n", message);
  };
}

// One line that is redrawn, on a terminal only. `what`: documents, or rows.
void ShowProgress(const PrepareProgress& progress, const char* what) {
  if (isatty(STDERR_FILENO) == 0) return;
  absl::FPrintF(stderr, "\r%d of %d MB read, %d %s, %d tokens ", progress.done_bytes / 1000000,
                progress.total_bytes / 1000000, progress.documents, what, progress.tokens);
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
  ASSIGN_OR_RETURN(command.options.rows, ParseRows(command));
  ASSIGN_OR_RETURN(command.options.bad_rows, Parse<BadRowPolicy>("--bad-rows", command.bad_rows,
                                                                 {{"error", BadRowPolicy::kError},
                                                                  {"skip", BadRowPolicy::kSkip}}));
  ASSIGN_OR_RETURN(command.options.long_rows, Parse<LongRows>("--long-rows", command.long_rows,
                                                              {{"cut", LongRows::kCut},
                                                               {"error", LongRows::kError},
                                                               {"skip", LongRows::kSkip}}));
  command.options.bad_row = TellBadRows();
  command.options.fields.text = command.options.jsonl_field;
  ASSIGN_OR_RETURN(command.options.split_by, ParseSplit(command.split));
  if (!command.options.validation_inputs.empty() && command.split == "auto") {
    command.options.split_by = SplitBy::kFiles;
  }
  command.options.progress = [what = command.options.rows ? "rows" : "documents"](
                                 const PrepareProgress& progress) { ShowProgress(progress, what); };
  std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer();
  if (!command.tokenizer.empty()) {
    ASSIGN_OR_RETURN(tokenizer, OpenTokenizer(command.tokenizer));
  }
  ASSIGN_OR_RETURN(const PrepareResult result,
                   PrepareData(PosixFileSystem(), *tokenizer, command.options));
  absl::PrintF("%s: %d files, %s tokenizer of %d ids\n", command.options.output, result.files,
               result.manifest.tokenizer, result.manifest.vocab_size);
  for (const auto& [name, split] : result.manifest.splits) {
    absl::PrintF("  %-10s  %s, %d tokens\n", name,
                 DescribeCount(result.manifest.holds, split.documents), split.tokens);
  }
  if (result.format) {
    absl::PrintF("  rows        %s: %s\n", RowFormatName(*result.format),
                 DescribeRows(result.manifest.rows));
  } else if (result.manifest.rows.left_out() > 0) {
    absl::PrintF("  left out    %d empty documents, %d malformed lines\n",
                 result.manifest.rows.empty, result.manifest.rows.malformed);
  }
  if (result.skipped_files > 0) absl::PrintF("  %d binary files left out\n", result.skipped_files);
  return absl::OkStatus();
}

absl::Status RunPreview(PreviewCommand command) {
  ASSIGN_OR_RETURN(const Dataset dataset, Dataset::Open(command.folder, {}));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer(command.folder));
  command.options.colour = isatty(STDOUT_FILENO) != 0;
  ASSIGN_OR_RETURN(const std::string text, PreviewData(dataset, *tokenizer, command.options));
  std::fputs(text.c_str(), stdout);
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
