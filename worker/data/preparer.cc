#include "worker/data/preparer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "worker/data/json_lines.h"
#include "worker/data/message_tree.h"

namespace espalier {
namespace {

constexpr int64_t kReportEveryBytes = 16 << 20;
constexpr size_t kHashedBytesMax = size_t{1} << 20;
constexpr size_t kAutoDocuments = 10;

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
double HashFraction(const std::vector<absl::string_view>& texts, uint64_t seed) {
  uint64_t hash = MixBits(seed + 0x9e3779b97f4a7c15ULL);
  for (absl::string_view text : texts) hash = HashText(hash, text);
  return SplitMix64(hash).Uniform();
}

// By the first row that is an object.
absl::StatusOr<RowFormat> RecogniseFormat(const PrepareOptions& options, const InputFiles& input) {
  for (const InputFile& file : input.files) {
    ASSIGN_OR_RETURN(const std::unique_ptr<RowSource> source, OpenRows(file));
    for (;;) {
      nlohmann::ordered_json row;
      const absl::StatusOr<bool> found = source->Next(row);
      if (!found.ok() && IsBadRow(found.status())) continue;  // told when all are read
      if (!found.ok()) return found.status();
      if (!*found) break;
      absl::StatusOr<RowFormat> format = RecogniseRow(row, options.fields);
      return format.ok() ? format : source->Error(format.status());
    }
  }
  return absl::InvalidArgumentError("the input is empty: there is no row that is an object");
}

BadRows::Options BadRowOptions(const PrepareOptions& options) {
  // What cutting leaves nothing of is a row without content.
  const bool skip_long =
      options.long_rows == LongRows::kSkip ||
      (options.long_rows == LongRows::kCut && options.bad_rows == BadRowPolicy::kSkip);
  return {.bad = options.bad_rows,
          .long_ = skip_long ? BadRowPolicy::kSkip : BadRowPolicy::kError,
          .tell = options.bad_row};
}

}  // namespace

absl::StatusOr<RowPlan> PlanRows(const PrepareOptions& options, const InputFiles& input) {
  RowPlan plan;
  plan.render = {.max_tokens = options.max_tokens, .long_rows = options.long_rows};
  if (!options.rows) return plan;
  plan.format = options.rows->format;
  if (!plan.format) {
    ASSIGN_OR_RETURN(plan.format, RecogniseFormat(options, input));
  }
  if (*plan.format == RowFormat::kPrompts) {
    plan.kind = DataKind::kPrompts;
    if (!options.rows->loss) return plan;
    return absl::InvalidArgumentError(
        "prompts are completed by the model that learns, and nothing of them counts in a loss; "
        "leave --loss out");
  }
  if (*plan.format == RowFormat::kPreferences) {
    plan.kind = DataKind::kPreferences;
    plan.render.loss = LossOn::kCompletions;
    if (options.rows->loss.value_or(LossOn::kCompletions) == LossOn::kCompletions) return plan;
    return absl::InvalidArgumentError("of a pair of answers exactly these count; leave --loss out");
  }
  const bool pairs = *plan.format == RowFormat::kPromptCompletion;
  plan.render.loss = options.rows->loss.value_or(pairs ? LossOn::kCompletions : LossOn::kAll);
  const bool completions = plan.render.loss == LossOn::kCompletions;
  if (completions && *plan.format == RowFormat::kText) {
    return absl::InvalidArgumentError(
        "rows of one text have no completions that could be all that counts in the loss; let all "
        "tokens count (--loss all), or give conversations, or prompts with completions");
  }
  // Pairs lose the front of their prompt to the length of a sequence, not the end that counts.
  const bool cut = options.max_tokens > 0 && options.long_rows == LongRows::kCut;
  plan.kind = pairs && completions && !cut ? DataKind::kPromptCompletion : DataKind::kMasked;
  return plan;
}

Preparer::Preparer(FileSystem& files, const Parts& parts, const std::string& folder)
    : parts_(parts),
      bad_rows_(BadRowOptions(parts.options)),
      train_(files, Writer(kTrainSplit, folder)),
      validation_(files, Writer(kValidationSplit, folder)) {}

absl::Status Preparer::Run(const InputFiles& train, const InputFiles& validation) {
  split_by_ = parts_.options.split_by;
  if (split_by_ == SplitBy::kAuto) {
    const bool jsonl =
        std::any_of(train.files.begin(), train.files.end(),
                    [](const InputFile& file) { return file.jsonl || file.parquet; });
    const bool many = train.files.size() >= kAutoDocuments;
    split_by_ = jsonl || many ? SplitBy::kDocument : SplitBy::kTail;
  }
  progress_.total_bytes = train.bytes() + validation.bytes();
  tail_begin_ = static_cast<int64_t>(static_cast<double>(train.bytes()) *
                                     (1 - parts_.options.validation_fraction));
  writer_ = &train_;
  for (const InputFile& file : train.files) RETURN_IF_ERROR(AddFile(file));
  if (split_by_ == SplitBy::kFiles) writer_ = &validation_;
  for (const InputFile& file : validation.files) RETURN_IF_ERROR(AddFile(file));
  RETURN_IF_ERROR(train_.Finish());
  RETURN_IF_ERROR(validation_.Finish());
  Report();
  return CheckSplits();
}

TokenManifest Preparer::Manifest() const {
  TokenManifest manifest{.holds = parts_.plan.kind,
                         .tokenizer = std::string(parts_.tokenizer.kind()),
                         .tokenizer_sha256 = Sha256Hex(parts_.tokenizer.Json()),
                         .vocab_size = parts_.tokenizer.vocab_size(),
                         .eos_id = parts_.tokenizer.end_of_text(),
                         .token_bytes = TokenBytesFor(parts_.tokenizer.vocab_size()),
                         .source_bytes = source_bytes_,
                         .rows = rows_};
  manifest.splits[kTrainSplit] = train_.split();
  if (split_by_ != SplitBy::kNone) manifest.splits[kValidationSplit] = validation_.split();
  return manifest;
}

SplitWriter::Options Preparer::Writer(const char* name, const std::string& folder) const {
  return {.folder = folder,
          .name = name,
          .token_bytes = TokenBytesFor(parts_.tokenizer.vocab_size()),
          .shard_tokens = parts_.options.shard_tokens};
}

absl::Status Preparer::AddFile(const InputFile& file) {
  RETURN_IF_ERROR(parts_.plan.format ? AddRows(file) : AddDocuments(file));
  file_begin_ += file.bytes;
  progress_.done_bytes = file_begin_;
  return absl::OkStatus();
}

absl::Status Preparer::AddDocuments(const InputFile& file) {
  ASSIGN_OR_RETURN(const std::unique_ptr<DocumentReader> reader,
                   OpenDocuments(file, parts_.options.jsonl_field));
  DocumentPiece piece;
  for (;;) {
    const absl::StatusOr<bool> found = reader->Next(piece);
    if (absl::IsFailedPrecondition(found.status())) {
      ++rows_.empty;  // a document without text is none
      continue;
    }
    if (!found.ok()) {
      RETURN_IF_ERROR(bad_rows_.Take(found.status(), rows_));
      continue;
    }
    if (!*found) return absl::OkStatus();
    RETURN_IF_ERROR(AddPiece(piece, file_begin_ + piece.position, file.jsonl));
    ReportNowAndThen(file_begin_ + piece.position);
  }
}

absl::Status Preparer::AddRows(const InputFile& file) {
  ASSIGN_OR_RETURN(std::unique_ptr<RowSource> source, OpenRows(file));
  if (*parts_.plan.format == RowFormat::kOpenAssistant) source = JoinMessages(std::move(source));
  for (;;) {
    nlohmann::ordered_json object;
    const absl::StatusOr<bool> found = source->Next(object);
    if (found.ok() && !*found) return absl::OkStatus();
    ++rows_.read;
    const absl::StatusOr<RenderedRow> row =
        found.ok() ? Rendered(*source, std::move(object)) : found.status();
    if (row.ok()) {
      RETURN_IF_ERROR(AddRow(*row, file_begin_ + source->position()));
    } else {
      RETURN_IF_ERROR(bad_rows_.Take(row.status(), rows_));
    }
    ReportNowAndThen(file_begin_ + source->position());
  }
}

absl::StatusOr<RenderedRow> Preparer::Rendered(const RowSource& source,
                                               nlohmann::ordered_json object) const {
  const absl::StatusOr<FineTuneRow> row =
      ParseRow(std::move(object), *parts_.plan.format, parts_.options.fields);
  if (!row.ok()) return source.Error(row.status());
  absl::StatusOr<RenderedRow> rendered = parts_.renderer->Render(*row);
  return rendered.ok() ? std::move(rendered) : source.Error(rendered.status());
}

// `position`: bytes of the whole input before the row.
absl::Status Preparer::AddRow(const RenderedRow& row, int64_t position) {
  if (split_by_ == SplitBy::kDocument) HoldOutByHash({row.texts.begin(), row.texts.end()});
  if (split_by_ == SplitBy::kTail && position >= tail_begin_) writer_ = &validation_;
  for (const std::string& text : row.texts) source_bytes_ += static_cast<int64_t>(text.size());
  rows_.cut += row.cut;
  progress_.tokens += static_cast<int64_t>(row.ids.size());
  ++progress_.documents;
  if (parts_.plan.kind == DataKind::kPrompts) return writer_->AppendPrompt(row.ids, row.record);
  if (parts_.plan.kind == DataKind::kPreferences) {
    const TokenRun chosen = row.counted[0], rejected = row.counted[1];
    const auto ids = absl::MakeConstSpan(row.ids);
    RETURN_IF_ERROR(writer_->AppendExample(ids.first(chosen.end), chosen.begin));
    return writer_->AppendExample(ids.subspan(chosen.end), rejected.begin - chosen.end);
  }
  return parts_.plan.kind == DataKind::kPromptCompletion
             ? writer_->AppendExample(row.ids, row.counted.front().begin)
             : writer_->AppendMasked(row.ids, row.counted);
}

void Preparer::HoldOutByHash(const std::vector<absl::string_view>& texts) {
  const PrepareOptions& options = parts_.options;
  const bool held_out = HashFraction(texts, options.split_seed) < options.validation_fraction;
  writer_ = held_out ? &validation_ : &train_;
}

// `position`: bytes of the whole input before the piece.
absl::Status Preparer::AddPiece(const DocumentPiece& piece, int64_t position, bool whole_document) {
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

absl::Status Preparer::Encode(absl::string_view text) {
  ids_.clear();
  RETURN_IF_ERROR(parts_.tokenizer.Encode(text, ids_));
  source_bytes_ += static_cast<int64_t>(text.size());
  progress_.tokens += static_cast<int64_t>(ids_.size());
  return writer_->Append(ids_);
}

absl::Status Preparer::EndDocument() {
  const int32_t end = parts_.tokenizer.end_of_text();
  ++progress_.documents;
  ++progress_.tokens;
  writer_->EndDocument();
  return writer_->Append(absl::MakeConstSpan(&end, 1));
}

// `position`: bytes of the whole input that were read.
void Preparer::ReportNowAndThen(int64_t position) {
  if (position - progress_.done_bytes < kReportEveryBytes) return;
  progress_.done_bytes = position;
  Report();
}

void Preparer::Report() const {
  if (parts_.options.progress) parts_.options.progress(progress_);
}

absl::Status Preparer::CheckSplits() const {
  const int64_t train = train_.split().documents;
  const int64_t validation = validation_.split().documents;
  if (train + validation == 0) {
    const std::string rows = DescribeRows(rows_);
    return absl::InvalidArgumentError(
        absl::StrCat("the input is empty: ",
                     rows.empty() ? "no document has any text" : absl::StrCat("of rows, ", rows)));
  }
  if (train > 0 && (validation > 0 || split_by_ == SplitBy::kNone)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "all of the ", DescribeCount(parts_.plan.kind, train + validation), " fell into the ",
      train == 0 ? "validation" : "training", " split, the other one is empty; give more text, ",
      "another fraction or seed, or split by 'tail' (the end of the text is held out) or 'none'"));
}

}  // namespace espalier
