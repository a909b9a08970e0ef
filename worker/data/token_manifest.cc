#include "worker/data/token_manifest.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "worker/formats/json_fields.h"

namespace espalier {
namespace {

constexpr char kFormat[] = "espalier-tokens";
constexpr int64_t kVersion = 1;
constexpr char kMagic[8] = {'E', 'S', 'P', 'T', 'O', 'K', 'E', 'N'};
constexpr int64_t kVocabularyMax = int64_t{1} << 32;

// Offsets of the shard header.
constexpr size_t kVersionAt = 8;
constexpr size_t kTokenBytesAt = 12;
constexpr size_t kCountAt = 16;
constexpr size_t kChecksumAt = 56;

bool IsTokenBytes(int64_t bytes) { return bytes == 1 || bytes == 2 || bytes == 4; }

template <typename T>
T LoadAt(absl::Span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

uint64_t HeaderChecksum(absl::Span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (size_t at = 0; at < kChecksumAt; at += 8) sum = MixBits(sum ^ LoadAt<uint64_t>(bytes, at));
  return sum;
}

nlohmann::ordered_json SplitToJson(const TokenSplit& split) {
  nlohmann::ordered_json json;
  json["tokens"] = split.tokens;
  json["documents"] = split.documents;
  json["shards"] = nlohmann::ordered_json::array();
  for (const TokenShard& shard : split.shards) {
    json["shards"].push_back(
        {{"file", shard.file}, {"tokens", shard.tokens}, {"sha256", shard.sha256}});
  }
  return json;
}

absl::StatusOr<TokenSplit> SplitFromJson(const nlohmann::json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("a split is not an object");
  TokenSplit split;
  ASSIGN_OR_RETURN(split.tokens, IntegerField(json, "tokens"));
  ASSIGN_OR_RETURN(split.documents, IntegerField(json, "documents"));
  ASSIGN_OR_RETURN(const nlohmann::json* shards, ArrayField(json, "shards"));
  int64_t sum = 0;
  for (const nlohmann::json& entry : *shards) {
    if (!entry.is_object()) return absl::InvalidArgumentError("a shard is not an object");
    TokenShard shard;
    ASSIGN_OR_RETURN(shard.file, StringField(entry, "file"));
    RETURN_IF_ERROR(CheckPlainFileName(shard.file));
    ASSIGN_OR_RETURN(shard.tokens, IntegerField(entry, "tokens"));
    ASSIGN_OR_RETURN(shard.sha256, StringField(entry, "sha256"));
    RETURN_IF_ERROR(CheckSha256Text(shard.sha256));
    if (shard.tokens == 0 || shard.tokens > split.tokens - sum) break;
    sum += shard.tokens;
    split.shards.push_back(std::move(shard));
  }
  if (sum == split.tokens && split.shards.size() == shards->size()) return split;
  return absl::InvalidArgumentError(absl::StrCat("'tokens' of a split is ", split.tokens,
                                                 ", but its shards do not add up to that"));
}

// Facts that no single field shows.
absl::Status CheckManifest(const TokenManifest& manifest) {
  if (manifest.vocab_size < 2 || manifest.vocab_size > kVocabularyMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("'vocab_size' must be 2 to 2^32, got ", manifest.vocab_size));
  }
  if (manifest.eos_id >= manifest.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'eos_id' ", manifest.eos_id, " is outside the vocabulary of ", manifest.vocab_size));
  }
  if (!IsTokenBytes(manifest.token_bytes) ||
      manifest.token_bytes < TokenBytesFor(manifest.vocab_size)) {
    return absl::InvalidArgumentError(absl::StrCat("'token_bytes' ", manifest.token_bytes,
                                                   " does not hold a vocabulary of ",
                                                   manifest.vocab_size));
  }
  std::set<absl::string_view> names;
  for (const auto& [name, split] : manifest.splits) {
    for (const TokenShard& shard : split.shards) {
      if (!names.insert(shard.file).second) {
        return absl::InvalidArgumentError(absl::StrCat("shard ", shard.file, " is listed twice"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string TokenManifestToJson(const TokenManifest& manifest) {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["tokenizer"] = {{"kind", manifest.tokenizer}, {"sha256", manifest.tokenizer_sha256}};
  json["vocab_size"] = manifest.vocab_size;
  json["eos_id"] = manifest.eos_id;
  json["token_bytes"] = manifest.token_bytes;
  json["source_bytes"] = manifest.source_bytes;
  json["splits"] = nlohmann::ordered_json::object();
  for (const auto& [name, split] : manifest.splits) json["splits"][name] = SplitToJson(split);
  return json.dump(2) + "\n";
}

absl::StatusOr<TokenManifest> TokenManifestFromJson(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonObject(text));
  ASSIGN_OR_RETURN(const std::string format, StringField(json, "format"));
  ASSIGN_OR_RETURN(const int64_t version, IntegerField(json, "version"));
  if (format != kFormat || version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("it is '", format.substr(0, 40), "' version ",
                                                   version, "; this program reads '", kFormat,
                                                   "' version ", kVersion));
  }
  TokenManifest manifest;
  ASSIGN_OR_RETURN(const nlohmann::json* tokenizer, ObjectField(json, "tokenizer"));
  ASSIGN_OR_RETURN(manifest.tokenizer, StringField(*tokenizer, "kind"));
  ASSIGN_OR_RETURN(manifest.tokenizer_sha256, StringField(*tokenizer, "sha256"));
  ASSIGN_OR_RETURN(manifest.vocab_size, IntegerField(json, "vocab_size"));
  ASSIGN_OR_RETURN(manifest.eos_id, IntegerField(json, "eos_id"));
  ASSIGN_OR_RETURN(const int64_t token_bytes, IntegerField(json, "token_bytes"));
  manifest.token_bytes = static_cast<int>(std::min<int64_t>(token_bytes, 1000));
  ASSIGN_OR_RETURN(manifest.source_bytes, IntegerField(json, "source_bytes"));
  ASSIGN_OR_RETURN(const nlohmann::json* splits, ObjectField(json, "splits"));
  for (const auto& [name, split] : splits->items()) {
    ASSIGN_OR_RETURN(manifest.splits[name], SplitFromJson(split));
  }
  RETURN_IF_ERROR(CheckManifest(manifest));
  return manifest;
}

int TokenBytesFor(int64_t vocab_size) {
  return vocab_size <= 0x100 ? 1 : vocab_size <= 0x10000 ? 2 : 4;
}

std::array<std::byte, kShardHeaderBytes> EncodeShardHeader(const ShardHeader& header) {
  std::array<std::byte, kShardHeaderBytes> bytes{};
  const auto version = static_cast<uint32_t>(kVersion);
  const auto token_bytes = static_cast<uint32_t>(header.token_bytes);
  const auto count = static_cast<uint64_t>(header.tokens);
  std::memcpy(bytes.data(), kMagic, sizeof(kMagic));
  std::memcpy(bytes.data() + kVersionAt, &version, sizeof(version));
  std::memcpy(bytes.data() + kTokenBytesAt, &token_bytes, sizeof(token_bytes));
  std::memcpy(bytes.data() + kCountAt, &count, sizeof(count));
  const uint64_t checksum = HeaderChecksum(bytes);
  std::memcpy(bytes.data() + kChecksumAt, &checksum, sizeof(checksum));
  return bytes;
}

absl::StatusOr<ShardHeader> DecodeShardHeader(absl::Span<const std::byte> bytes,
                                              absl::string_view path) {
  if (bytes.size() < kShardHeaderBytes) {
    return absl::DataLossError(absl::StrCat(path, " is cut: it has ", bytes.size(),
                                            " bytes, its header alone takes ", kShardHeaderBytes));
  }
  if (std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a token shard (its first bytes are not ESPTOKEN)"));
  }
  if (HeaderChecksum(bytes) != LoadAt<uint64_t>(bytes, kChecksumAt)) {
    return absl::DataLossError(absl::StrCat(path, " has a damaged header (checksum differs)"));
  }
  const auto version = LoadAt<uint32_t>(bytes, kVersionAt);
  if (version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has version ", version, "; this program reads version ", kVersion));
  }
  const auto token_bytes = LoadAt<uint32_t>(bytes, kTokenBytesAt);
  const auto count = LoadAt<uint64_t>(bytes, kCountAt);
  if (!IsTokenBytes(token_bytes) || count > (uint64_t{1} << 48)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " says ", count, " tokens of ",
                                                   token_bytes, " bytes; allowed: 1, 2 or 4"));
  }
  return ShardHeader{static_cast<int>(token_bytes), static_cast<int64_t>(count)};
}

}  // namespace espalier
