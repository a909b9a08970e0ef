#include "worker/data/prepare.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/random.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "worker/data/shard_writer.h"

namespace espalier {
namespace {

constexpr int64_t kReportEveryBytes = 16 << 20;
constexpr size_t kHashedBytesMax = size_t{1} << 20;
constexpr size_t kAutoDocuments = 10;

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
  if (options.kind == DataKind::kPromptCompletion &&
      options.fields.prompt == options.fields.completion) {
    return absl::InvalidArgumentError(absl::StrCat("the field '", options.fields.prompt,
                                                   "' cannot be both prompt and completion"));
  }
  return absl::OkStatus();
}

uint64_t HashText(uint64_t hash, absl::string_view text) {
  for (text = text.substr(0, kHashedBytesMax); !text.empty();) {
    uint64_t word = 0;
    const size_t size = std::min<size_t>(8, text.size());
    std::memcpy(&word, text.data(), size);
    hash = MixBits(hash ^ MixBits(word + size));
    text.remove_prefix(size);
  }
  return hash;
}

// Uniform in [0, 1), the same for the same texts and seed.
double HashFraction(std::initializer_list<absl::string_view> texts, uint64_t seed) {
  uint64_t hash = MixBits(seed + 0x9e3779b97f4a7c15ULL);
  for (absl::string_view text : texts) hash = HashText(hash, text);
  return SplitMix64(hash).Uniform();
}

// Sends documents or examples to the splits.
class Preparer {
 public:
  Preparer(FileSystem& files, const Tokenizer& tokenizer, const PrepareOptions& options,
           std::string folder)
      : tokenizer_(tokenizer),
        options_(options),
        train_(files, Writer(kTrainSplit, folder)),
        validation_(files, Writer(kValidationSplit, folder)) {}

  absl::Status Run(const InputFiles& train, const InputFiles& validation) {
    split_by_ = options_.split_by;
    if (split_by_ == SplitBy::kAuto) {
      const bool jsonl = std::any_of(train.files.begin(), train.files.end(),
                                     [](const InputFile& file) { return file.jsonl; });
      const bool many = train.files.size() >= kAutoDocuments;
      split_by_ = jsonl || many ? SplitBy::kDocument : SplitBy::kTail;
    }
    progress_.total_bytes = train.bytes() + validation.bytes();
    tail_begin_ = static_cast<int64_t>(static_cast<double>(train.bytes()) *
                                       (1 - options_.validation_fraction));
    writer_ = &train_;
    for (const InputFile& file : train.files) RETURN_IF_ERROR(AddFile(file));
    if (split_by_ == SplitBy::kFiles) writer_ = &validation_;
    for (const InputFile& file : validation.files) RETURN_IF_ERROR(AddFile(file));
    RETURN_IF_ERROR(train_.Finish());
    RETURN_IF_ERROR(validation_.Finish());
    Report();
    return CheckSplits();
  }

  TokenManifest Manifest() const {
    TokenManifest manifest{.holds = options_.kind,
                           .tokenizer = std::string(tokenizer_.kind()),
                           .tokenizer_sha256 = Sha256Hex(tokenizer_.Json()),
                           .vocab_size = tokenizer_.vocab_size(),
                           .eos_id = tokenizer_.end_of_text(),
                           .token_bytes = TokenBytesFor(tokenizer_.vocab_size()),
                           .source_bytes = source_bytes_};
    manifest.splits[kTrainSplit] = train_.split();
    if (split_by_ != SplitBy::kNone) manifest.splits[kValidationSplit] = validation_.split();
    return manifest;
  }

 private:
  SplitWriter::Options Writer(const char* name, const std::string& folder) const {
    return {.folder = folder,
            .name = name,
            .token_bytes = TokenBytesFor(tokenizer_.vocab_size()),
            .shard_tokens = options_.shard_tokens};
  }

  absl::Status AddFile(const InputFile& file) {
    switch (options_.kind) {
      case DataKind::kText:
        RETURN_IF_ERROR(AddDocuments(file));
        break;
      case DataKind::kPromptCompletion:
        RETURN_IF_ERROR(AddExamples(file));
        break;
    }
    file_begin_ += file.bytes;
    progress_.done_bytes = file_begin_;
    return absl::OkStatus();
  }

  absl::Status AddDocuments(const InputFile& file) {
    ASSIGN_OR_RETURN(const std::unique_ptr<DocumentReader> reader,
                     OpenDocuments(file, options_.jsonl_field));
    DocumentPiece piece;
    for (;;) {
      ASSIGN_OR_RETURN(const bool found, reader->Next(piece));
      if (!found) return absl::OkStatus();
      RETURN_IF_ERROR(AddPiece(piece, file_begin_ + piece.position, file.jsonl));
      ReportNowAndThen(file_begin_ + piece.position);
    }
  }

  absl::Status AddExamples(const InputFile& file) {
    ASSIGN_OR_RETURN(const std::unique_ptr<ExampleReader> reader,
                     OpenExamples(file, options_.fields));
    PromptCompletion example;
    for (;;) {
      ASSIGN_OR_RETURN(const bool found, reader->Next(example));
      if (!found) return absl::OkStatus();
      RETURN_IF_ERROR(AddExample(example, file_begin_ + example.position));
      ReportNowAndThen(file_begin_ + example.position);
    }
  }

  // Prompt and completion are encoded apart, so that no token lies across their border.
  absl::Status AddExample(const PromptCompletion& example, int64_t position) {
    if (split_by_ == SplitBy::kDocument) HoldOutByHash({example.prompt, example.completion});
    if (split_by_ == SplitBy::kTail && position >= tail_begin_) writer_ = &validation_;
    ids_.clear();
    RETURN_IF_ERROR(tokenizer_.Encode(example.prompt, ids_));
    const auto prompt_tokens = static_cast<int64_t>(ids_.size());
    RETURN_IF_ERROR(tokenizer_.Encode(example.completion, ids_));
    ids_.push_back(tokenizer_.end_of_text());
    source_bytes_ += static_cast<int64_t>(example.prompt.size() + example.completion.size());
    progress_.tokens += static_cast<int64_t>(ids_.size());
    ++progress_.documents;
    return writer_->AppendExample(ids_, prompt_tokens);
  }

  void HoldOutByHash(std::initializer_list<absl::string_view> texts) {
    const bool held_out = HashFraction(texts, options_.split_seed) < options_.validation_fraction;
    writer_ = held_out ? &validation_ : &train_;
  }

  // `position`: bytes of the whole input before the piece.
  absl::Status AddPiece(const DocumentPiece& piece, int64_t position, bool whole_document) {
    absl::string_view text = piece.text;
    if (piece.first && split_by_ == SplitBy::kDocument) HoldOutByHash({text});
    if (split_by_ == SplitBy::kTail && writer_ == &train_) {
      const int64_t left = tail_begin_ - position;
      const auto size = static_cast<int64_t>(text.size());
      if (left <= 0) {
        RETURN_IF_ERROR(piece.first ? absl::OkStatus() : EndDocument());
        writer_ = &validation_;
      } else if (left < size && !whole_document) {
        const size_t cut = CutAtOrAfter(text, static_cast<size_t>(left));
        RETURN_IF_ERROR(Encode(text.substr(0, cut)));
        RETURN_IF_ERROR(EndDocument());
        text.remove_prefix(cut);
        writer_ = &validation_;
        if (text.empty() && piece.last) return absl::OkStatus();
      }
    }
    RETURN_IF_ERROR(Encode(text));
    return piece.last ? EndDocument() : absl::OkStatus();
  }

  absl::Status Encode(absl::string_view text) {
    ids_.clear();
    RETURN_IF_ERROR(tokenizer_.Encode(text, ids_));
    source_bytes_ += static_cast<int64_t>(text.size());
    progress_.tokens += static_cast<int64_t>(ids_.size());
    return writer_->Append(ids_);
  }

  absl::Status EndDocument() {
    const int32_t end = tokenizer_.end_of_text();
    ++progress_.documents;
    ++progress_.tokens;
    writer_->EndDocument();
    return writer_->Append(absl::MakeConstSpan(&end, 1));
  }

  // `position`: bytes of the whole input that were read.
  void ReportNowAndThen(int64_t position) {
    if (position - progress_.done_bytes < kReportEveryBytes) return;
    progress_.done_bytes = position;
    Report();
  }

  void Report() const {
    if (options_.progress) options_.progress(progress_);
  }

  absl::Status CheckSplits() const {
    const int64_t train = train_.split().documents;
    const int64_t validation = validation_.split().documents;
    if (train + validation == 0) {
      return absl::InvalidArgumentError("the input is empty: no document has any text");
    }
    if (train > 0 && (validation > 0 || split_by_ == SplitBy::kNone)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "all of the ", train + validation,
        options_.kind == DataKind::kText ? " documents" : " examples", " fell into the ",
        train == 0 ? "validation" : "training", " split, the other one is empty; give more text, ",
        "another fraction or seed, or split by 'tail' (the end of the text is held out)"));
  }

  const Tokenizer& tokenizer_;
  const PrepareOptions& options_;
  SplitBy split_by_ = SplitBy::kAuto;
  SplitWriter train_;
  SplitWriter validation_;
  SplitWriter* writer_ = nullptr;  // the one that gets the current document
  std::vector<int32_t> ids_;
  int64_t tail_begin_ = 0;
  int64_t file_begin_ = 0;
  int64_t source_bytes_ = 0;
  PrepareProgress progress_;
};

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

}  // namespace

absl::StatusOr<PrepareResult> PrepareData(FileSystem& files, const Tokenizer& tokenizer,
                                          const PrepareOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  const std::string output(absl::StripSuffix(options.output, "/"));
  RETURN_IF_ERROR(CheckOutput(files, output));
  ASSIGN_OR_RETURN(const InputFiles validation, FindInputFiles(options.validation_inputs, {}));
  ASSIGN_OR_RETURN(const InputFiles train, FindInputFiles(options.inputs, validation));
  RETURN_IF_ERROR(MakeDurableDirectory(files, ParentPath(output)));
  RETURN_IF_ERROR(RemoveLeftovers(files, output));
  const std::string temporary =
      JoinPath(ParentPath(output), absl::StrCat(TemporaryPrefix(output), getpid()));
  Preparer preparer(files, tokenizer, options, temporary);
  PrepareResult result{.files = static_cast<int64_t>(train.files.size() + validation.files.size()),
                       .skipped_files = train.skipped + validation.skipped};
  const absl::Status written = [&]() -> absl::Status {
    RETURN_IF_ERROR(files.MakeDirectory(temporary));
    RETURN_IF_ERROR(preparer.Run(train, validation));
    result.manifest = preparer.Manifest();
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
