#include "worker/data/shard_writer.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

template <typename T>
void Narrow(absl::Span<const int32_t> ids, std::byte* out) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<T>(ids[i]);
    std::memcpy(out + i * sizeof(T), &id, sizeof(T));
  }
}

template <typename T>
ShardHeader HeaderOf(ShardHolds holds, const std::vector<T>& items) {
  return {holds, sizeof(T), static_cast<int64_t>(items.size())};
}

template <typename T>
absl::Span<const std::byte> BytesOf(const std::vector<T>& items) {
  return {reinterpret_cast<const std::byte*>(items.data()), items.size() * sizeof(T)};
}

}  // namespace

absl::Status SplitWriter::Append(absl::Span<const int32_t> ids) {
  const size_t width = static_cast<size_t>(options_.token_bytes);
  const size_t full = static_cast<size_t>(options_.shard_tokens) * width;
  while (!ids.empty()) {
    const size_t count = std::min(ids.size(), (full - buffer_.size()) / width);
    const size_t at = buffer_.size();
    buffer_.resize(at + count * width);
    switch (options_.token_bytes) {
      case 1:
        Narrow<uint8_t>(ids.first(count), buffer_.data() + at);
        break;
      case 2:
        Narrow<uint16_t>(ids.first(count), buffer_.data() + at);
        break;
      default:
        Narrow<uint32_t>(ids.first(count), buffer_.data() + at);
        break;
    }
    ids.remove_prefix(count);
    if (buffer_.size() == full) RETURN_IF_ERROR(WriteTokens());
  }
  return absl::OkStatus();
}

absl::Status SplitWriter::AppendExample(absl::Span<const int32_t> ids, int64_t prompt_tokens) {
  const int64_t begin = tokens();
  RETURN_IF_ERROR(Append(ids));
  EndDocument();
  examples_.push_back({begin + prompt_tokens, begin + static_cast<int64_t>(ids.size())});
  const bool full = static_cast<int64_t>(examples_.size()) == options_.shard_examples;
  return full ? WriteExamples() : absl::OkStatus();
}

absl::Status SplitWriter::AppendMasked(absl::Span<const int32_t> ids,
                                       absl::Span<const TokenRun> counted) {
  const int64_t begin = tokens();
  RETURN_IF_ERROR(Append(ids));
  EndDocument();
  for (const TokenRun& run : counted) {
    runs_.push_back({begin + run.begin, begin + run.end});
    ++split_.loss_runs;
    if (static_cast<int64_t>(runs_.size()) == options_.shard_examples) RETURN_IF_ERROR(WriteRuns());
  }
  masked_.push_back({split_.loss_runs, tokens()});
  const bool full = static_cast<int64_t>(masked_.size()) == options_.shard_examples;
  return full ? WriteMasked() : absl::OkStatus();
}

absl::Status SplitWriter::AppendPrompt(absl::Span<const int32_t> ids, absl::string_view record) {
  RETURN_IF_ERROR(Append(ids));
  EndDocument();
  records_.append(record.data(), record.size());
  split_.record_bytes += static_cast<int64_t>(record.size());
  prompts_.push_back({split_.record_bytes, tokens()});
  if (static_cast<int64_t>(records_.size()) >= options_.shard_tokens) {
    RETURN_IF_ERROR(WriteRecords());
  }
  const bool full = static_cast<int64_t>(prompts_.size()) == options_.shard_examples;
  return full ? WritePrompts() : absl::OkStatus();
}

// Of the split so far.
int64_t SplitWriter::tokens() const {
  return split_.tokens + static_cast<int64_t>(buffer_.size()) / options_.token_bytes;
}

absl::Status SplitWriter::Finish() {
  if (!buffer_.empty()) RETURN_IF_ERROR(WriteTokens());
  if (!examples_.empty()) RETURN_IF_ERROR(WriteExamples());
  if (!masked_.empty()) RETURN_IF_ERROR(WriteMasked());
  if (!prompts_.empty()) RETURN_IF_ERROR(WritePrompts());
  if (!records_.empty()) RETURN_IF_ERROR(WriteRecords());
  return runs_.empty() ? absl::OkStatus() : WriteRuns();
}

absl::Status SplitWriter::WriteTokens() {
  const auto count = static_cast<int64_t>(buffer_.size()) / options_.token_bytes;
  ASSIGN_OR_RETURN(DataShard shard,
                   WriteShard("tokens", split_.shards.size(),
                              {ShardHolds::kTokens, options_.token_bytes, count}, buffer_));
  buffer_.clear();
  split_.tokens += count;
  split_.shards.push_back(std::move(shard));
  return absl::OkStatus();
}

absl::Status SplitWriter::WriteExamples() {
  ASSIGN_OR_RETURN(DataShard shard,
                   WriteShard("examples", split_.examples.size(),
                              HeaderOf(ShardHolds::kExamples, examples_), BytesOf(examples_)));
  examples_.clear();
  split_.examples.push_back(std::move(shard));
  return absl::OkStatus();
}

absl::Status SplitWriter::WriteMasked() {
  ASSIGN_OR_RETURN(DataShard shard,
                   WriteShard("examples", split_.examples.size(),
                              HeaderOf(ShardHolds::kMasked, masked_), BytesOf(masked_)));
  masked_.clear();
  split_.examples.push_back(std::move(shard));
  return absl::OkStatus();
}

absl::Status SplitWriter::WriteRuns() {
  ASSIGN_OR_RETURN(DataShard shard, WriteShard("runs", split_.runs.size(),
                                               HeaderOf(ShardHolds::kRuns, runs_), BytesOf(runs_)));
  runs_.clear();
  split_.runs.push_back(std::move(shard));
  return absl::OkStatus();
}

absl::Status SplitWriter::WritePrompts() {
  ASSIGN_OR_RETURN(DataShard shard,
                   WriteShard("examples", split_.examples.size(),
                              HeaderOf(ShardHolds::kPrompts, prompts_), BytesOf(prompts_)));
  prompts_.clear();
  split_.examples.push_back(std::move(shard));
  return absl::OkStatus();
}

absl::Status SplitWriter::WriteRecords() {
  const std::vector<char> bytes(records_.begin(), records_.end());
  ASSIGN_OR_RETURN(DataShard shard,
                   WriteShard("records", split_.records.size(),
                              HeaderOf(ShardHolds::kRecords, bytes), BytesOf(bytes)));
  records_.clear();
  split_.records.push_back(std::move(shard));
  return absl::OkStatus();
}

absl::StatusOr<DataShard> SplitWriter::WriteShard(const char* extension, size_t number,
                                                  ShardHeader header,
                                                  absl::Span<const std::byte> items) {
  DataShard shard{.file = absl::StrFormat("%s-%05d.%s", options_.name, number, extension),
                  .count = header.count};
  const auto encoded = EncodeShardHeader(header);
  Sha256 hash;
  hash.Update(encoded);
  hash.Update(items);
  shard.sha256 = hash.Finish();
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file,
                   files_.Create(JoinPath(options_.folder, shard.file)));
  RETURN_IF_ERROR(file->Append(encoded));
  RETURN_IF_ERROR(file->Append(items));
  RETURN_IF_ERROR(file->Sync());
  RETURN_IF_ERROR(file->Close());
  return shard;
}

}  // namespace espalier
