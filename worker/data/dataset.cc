#include "worker/data/dataset.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "worker/data/shard_verify.h"

namespace espalier {
namespace {

constexpr int64_t kManifestBytesMax = 64 << 20;

// One split: its shards mapped one after the other.
class ShardRow : public TokenRow {
 public:
  ShardRow(int token_bytes, int64_t vocab_size)
      : token_bytes_(token_bytes), vocab_size_(vocab_size) {}

  absl::Status Add(const std::string& folder, const TokenShard& shard) {
    Piece piece{.begin = size_, .path = JoinPath(folder, shard.file)};
    ASSIGN_OR_RETURN(piece.file, MappedFile::Open(piece.path));
    const size_t wanted = kShardHeaderBytes + static_cast<size_t>(shard.tokens * token_bytes_);
    if (piece.file.bytes().size() != wanted) {
      return absl::DataLossError(
          absl::StrCat("shard ", piece.path, " changed its size while it was being opened"));
    }
    size_ += shard.tokens;
    pieces_.push_back(std::move(piece));
    return absl::OkStatus();
  }

  int64_t size() const override { return size_; }

  absl::Status Copy(int64_t begin, absl::Span<int64_t> out) const override {
    if (begin < 0 || begin > size_ - static_cast<int64_t>(out.size())) {
      return absl::OutOfRangeError(absl::StrCat("tokens from ", begin, " on: ", out.size(),
                                                " wanted, the split has ", size_));
    }
    if (out.empty()) return absl::OkStatus();
    auto piece =
        std::prev(std::upper_bound(pieces_.begin(), pieces_.end(), begin,
                                   [](int64_t at, const Piece& p) { return at < p.begin; }));
    for (; !out.empty(); ++piece) {
      const int64_t end = std::next(piece) == pieces_.end() ? size_ : std::next(piece)->begin;
      const size_t count = std::min(out.size(), static_cast<size_t>(end - begin));
      RETURN_IF_ERROR(CopyFrom(*piece, begin - piece->begin, out.subspan(0, count)));
      begin += static_cast<int64_t>(count);
      out.remove_prefix(count);
    }
    return absl::OkStatus();
  }

 private:
  struct Piece {
    int64_t begin = 0;  // position of its first token in the split
    std::string path;
    MappedFile file;
  };

  absl::Status CopyFrom(const Piece& piece, int64_t offset, absl::Span<int64_t> out) const {
    const std::byte* from =
        piece.file.bytes().data() + kShardHeaderBytes + static_cast<size_t>(offset * token_bytes_);
    switch (token_bytes_) {
      case 1:
        Widen<uint8_t>(from, out);
        break;
      case 2:
        Widen<uint16_t>(from, out);
        break;
      default:
        Widen<uint32_t>(from, out);
        break;
    }
    for (int64_t id : out) {
      if (id < vocab_size_) continue;
      return absl::DataLossError(absl::StrCat("shard ", piece.path, " holds token ", id,
                                              ", the vocabulary ends at ", vocab_size_ - 1));
    }
    return absl::OkStatus();
  }

  template <typename T>
  static void Widen(const std::byte* from, absl::Span<int64_t> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      T value;
      std::memcpy(&value, from + i * sizeof(T), sizeof(T));
      out[i] = static_cast<int64_t>(value);
    }
  }

  int token_bytes_;
  int64_t vocab_size_;
  int64_t size_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace

absl::StatusOr<Dataset> Dataset::Open(const std::string& folder, Options options) {
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
  RETURN_IF_ERROR(VerifyShards(folder, *manifest, options));
  Dataset dataset;
  dataset.folder_ = folder;
  dataset.manifest_hash_ = Sha256Hex(*text);
  for (const auto& [name, split] : manifest->splits) {
    auto row = std::make_shared<ShardRow>(manifest->token_bytes, manifest->vocab_size);
    for (const TokenShard& shard : split.shards) RETURN_IF_ERROR(row->Add(folder, shard));
    dataset.rows_[name] = std::move(row);
  }
  dataset.manifest_ = *std::move(manifest);
  return dataset;
}

absl::StatusOr<std::shared_ptr<const TokenRow>> Dataset::Split(absl::string_view name) const {
  const auto it = rows_.find(name);
  if (it != rows_.end()) return it->second;
  const std::string names =
      absl::StrJoin(rows_, ", ", [](std::string* out, const auto& row) { *out += row.first; });
  return absl::NotFoundError(absl::StrCat(folder_, " has no split '", name, "'; it has: ", names));
}

absl::StatusOr<int64_t> Dataset::Samples(absl::string_view split, int64_t sequence_length) const {
  ASSIGN_OR_RETURN(const std::shared_ptr<const TokenRow> row, Split(split));
  const int64_t samples = SampleCount(row->size(), sequence_length);
  if (samples > 0) return samples;
  return absl::FailedPreconditionError(
      absl::StrCat("split '", split, "' of ", folder_, " has ", row->size(),
                   " tokens, too few for one sequence of ", sequence_length,
                   " (+ 1 for the last target); lower data.sequence_length or prepare more text"));
}

}  // namespace espalier
