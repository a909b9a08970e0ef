#include "worker/data/learn_tokenizer.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/data/document_reader.h"
#include "worker/data/input_files.h"
#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {
namespace {

constexpr int64_t kReportEveryBytes = 16 << 20;
constexpr size_t kMeasuredBytes = 4 << 20;

class Learner {
 public:
  Learner(const LearnTokenizerOptions& options, BpeTrainer trainer)
      : options_(options), trainer_(std::move(trainer)) {}

  absl::Status Read(const InputFiles& input) {
    progress_.total_bytes = input.bytes();
    for (const InputFile& file : input.files) {
      ASSIGN_OR_RETURN(const std::unique_ptr<DocumentReader> reader,
                       OpenDocuments(file, options_.jsonl_field));
      RETURN_IF_ERROR(Read(*reader));
      begin_ += file.bytes;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<BpeTrainer::Trained> Train() {
    return trainer_.Train([this](int64_t tokens) {
      progress_.tokens = tokens;
      if (options_.progress) options_.progress(progress_);
    });
  }

  int64_t read_bytes() const { return read_bytes_; }
  const std::string& last_text() const { return last_text_; }

 private:
  absl::Status Read(DocumentReader& reader) {
    DocumentPiece piece;
    for (;;) {
      const absl::StatusOr<bool> found = reader.Next(piece);
      if (absl::IsFailedPrecondition(found.status())) continue;  // an empty document
      if (!found.ok()) return found.status();
      if (!*found) return absl::OkStatus();
      if (TakesNext(piece)) {
        RETURN_IF_ERROR(trainer_.Add(piece.text));
        read_bytes_ += static_cast<int64_t>(piece.text.size());
        last_text_ = std::string(piece.text.substr(0, kMeasuredBytes));
      }
      Report(begin_ + piece.position);
    }
  }

  // Whether as much was read so far as is due at this place of the input.
  bool TakesNext(const DocumentPiece& piece) const {
    const auto sample = static_cast<double>(options_.sample_bytes);
    const auto total = static_cast<double>(progress_.total_bytes);
    const auto place = static_cast<double>(begin_ + piece.position);
    return total <= sample || static_cast<double>(read_bytes_) <= place * sample / total;
  }

  void Report(int64_t position) {
    if (!options_.progress || position - progress_.done_bytes < kReportEveryBytes) return;
    progress_.done_bytes = position;
    options_.progress(progress_);
  }

  const LearnTokenizerOptions& options_;
  BpeTrainer trainer_;
  int64_t begin_ = 0;  // bytes of the input before this file
  int64_t read_bytes_ = 0;
  std::string last_text_;
  LearnProgress progress_;
};

absl::Status WriteText(FileSystem& files, const std::string& path, const std::string& text) {
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(path));
  RETURN_IF_ERROR(file->Append({reinterpret_cast<const std::byte*>(text.data()), text.size()}));
  RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::Status CheckOptions(FileSystem& files, const LearnTokenizerOptions& options) {
  if (options.sample_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the bytes to learn from must be 1 or more, got ", options.sample_bytes));
  }
  const auto names = files.List(options.output);
  if (absl::IsNotFound(names.status()) || (names.ok() && names->empty())) return absl::OkStatus();
  if (!names.ok()) return names.status();
  return absl::AlreadyExistsError(absl::StrCat("output folder ", options.output,
                                               " is not empty; remove it or choose another one"));
}

}  // namespace

absl::StatusOr<LearntTokenizer> LearnTokenizer(FileSystem& files,
                                               const LearnTokenizerOptions& options) {
  RETURN_IF_ERROR(CheckOptions(files, options));
  ASSIGN_OR_RETURN(BpeTrainer trainer, BpeTrainer::Create(options.trainer));
  ASSIGN_OR_RETURN(const InputFiles input, FindInputFiles(options.inputs, {}));
  Learner learner(options, std::move(trainer));
  RETURN_IF_ERROR(learner.Read(input));
  ASSIGN_OR_RETURN(const BpeTrainer::Trained trained, learner.Train());
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, TokenizerFromJson(trained.json));
  std::vector<int32_t> ids;
  RETURN_IF_ERROR(tokenizer->Encode(learner.last_text(), ids));
  RETURN_IF_ERROR(MakeDurableDirectory(files, options.output));
  RETURN_IF_ERROR(
      WriteText(files, JoinPath(options.output, "tokenizer_config.json"), trained.config_json));
  RETURN_IF_ERROR(WriteText(files, JoinPath(options.output, "tokenizer.json"), trained.json));
  RETURN_IF_ERROR(files.SyncDirectory(options.output));
  return LearntTokenizer{trained.vocab_size, static_cast<int64_t>(input.files.size()),
                         learner.read_bytes(),
                         static_cast<double>(learner.last_text().size()) /
                             static_cast<double>(std::max<size_t>(ids.size(), 1))};
}

}  // namespace espalier
