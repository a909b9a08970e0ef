#include "worker/reward/data_writer.h"

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr const char* kNames[] = {"train.jsonl", "validation.jsonl", "train-prompts.jsonl",
                                  "validation-prompts.jsonl"};
constexpr size_t kFirstPrompts = 2;

absl::Status Append(WritableFile& file, absl::string_view text) {
  return file.Append(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

// As `data prepare` reads it, which encodes special tokens in conversations alone.
std::string ExampleRow(const Prompt& prompt, absl::string_view completion) {
  using Json = nlohmann::ordered_json;
  if (prompt.turns.empty()) {
    return DumpJson({{"prompt", prompt.opening}, {"completion", std::string(completion)}}) + "\n";
  }
  Json messages = Json::array();
  const auto add = [&](const std::string& role, const std::string& content) {
    messages.push_back(Json{{"role", role}, {"content", content}});
  };
  for (const ChatTurn& turn : prompt.turns) add(turn.role, turn.content);
  add("assistant", absl::StrCat(prompt.opening, completion));
  return DumpJson(Json{{"messages", std::move(messages)}}) + "\n";
}

}  // namespace

absl::Status CheckAmount(const DataAmount& amount) {
  if (amount.train >= 1 && amount.validation >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("asked for ", amount.train, " to train on and ",
                                                 amount.validation,
                                                 " for validation; it takes at least 1 and 0"));
}

absl::StatusOr<DataWriter> DataWriter::Create(FileSystem& files, const std::string& output) {
  const absl::Status there = files.List(output).status();
  if (!absl::IsNotFound(there)) {
    return absl::AlreadyExistsError(
        absl::StrCat(output, " is there already; remove it, or name another folder"));
  }
  DataWriter writer(files, output);
  RETURN_IF_ERROR(files.Remove(writer.partial_));
  RETURN_IF_ERROR(files.MakeDirectory(writer.partial_));
  for (const char* name : kNames) {
    ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file,
                     files.Create(JoinPath(writer.partial_, name)));
    writer.rows_.push_back({.name = name, .file = std::move(file)});
  }
  return writer;
}

DataWriter::~DataWriter() {
  if (!partial_.empty() && !rows_.empty()) files_->Remove(partial_).IgnoreError();
}

absl::Status DataWriter::AddExample(DataSplit split, const Prompt& prompt,
                                    absl::string_view completion) {
  return AddRow(static_cast<size_t>(split), ExampleRow(prompt, completion));
}

absl::Status DataWriter::AddPrompt(DataSplit split, const RewardPrompt& prompt) {
  return AddRow(kFirstPrompts + static_cast<size_t>(split), RewardPromptRow(prompt));
}

absl::Status DataWriter::AddRow(size_t index, std::string row) {
  File& file = rows_[index];
  ++file.rows;
  file.buffer += row;
  if (file.buffer.size() < kBufferBytes) return absl::OkStatus();
  return Append(*file.file, std::exchange(file.buffer, {}));
}

absl::Status DataWriter::AddFile(absl::string_view name, absl::string_view text) {
  return WriteFileAtomically(*files_, JoinPath(partial_, name), text);
}

absl::Status DataWriter::Finish() {
  for (File& file : rows_) {
    RETURN_IF_ERROR(Append(*file.file, file.buffer));
    RETURN_IF_ERROR(file.file->Sync());
    RETURN_IF_ERROR(file.file->Close());
  }
  int64_t prompts = 0;
  for (size_t i = kFirstPrompts; i < rows_.size(); ++i) prompts += rows_[i].rows;
  while (prompts == 0 && rows_.size() > kFirstPrompts) {
    RETURN_IF_ERROR(files_->Remove(JoinPath(partial_, rows_.back().name)));
    rows_.pop_back();
  }
  RETURN_IF_ERROR(files_->SyncDirectory(partial_));
  RETURN_IF_ERROR(files_->Rename(partial_, output_));
  partial_.clear();
  return files_->SyncDirectory(ParentPath(output_));
}

std::vector<std::pair<std::string, int64_t>> DataWriter::Rows() const {
  std::vector<std::pair<std::string, int64_t>> rows;
  for (const File& file : rows_) rows.emplace_back(file.name, file.rows);
  return rows;
}

}  // namespace espalier
