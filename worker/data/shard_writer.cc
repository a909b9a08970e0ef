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
    if (buffer_.size() == full) RETURN_IF_ERROR(WriteShard());
  }
  return absl::OkStatus();
}

absl::Status SplitWriter::Finish() { return buffer_.empty() ? absl::OkStatus() : WriteShard(); }

absl::Status SplitWriter::WriteShard() {
  DataShard shard;
  shard.file = absl::StrFormat("%s-%05d.tokens", options_.name, split_.shards.size());
  shard.count = static_cast<int64_t>(buffer_.size()) / options_.token_bytes;
  const auto header = EncodeShardHeader({ShardHolds::kTokens, options_.token_bytes, shard.count});
  Sha256 hash;
  hash.Update(header);
  hash.Update(buffer_);
  shard.sha256 = hash.Finish();
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file,
                   files_.Create(JoinPath(options_.folder, shard.file)));
  RETURN_IF_ERROR(file->Append(header));
  RETURN_IF_ERROR(file->Append(buffer_));
  RETURN_IF_ERROR(file->Sync());
  RETURN_IF_ERROR(file->Close());
  buffer_.clear();
  split_.tokens += shard.count;
  split_.shards.push_back(std::move(shard));
  return absl::OkStatus();
}

}  // namespace espalier
