#include "worker/data/token_manifest.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "worker/formats/json_fields.h"

namespace espalier {
namespace {

constexpr char kFormat[] = "espalier-tokens";
// Manifests of text stay as they were before there was anything else, so that the same text has the
// same hash for ever; those of other kinds say what they hold.
constexpr int64_t kTextVersion = 1;
constexpr int64_t kVersion = 2;
constexpr uint32_t kShardVersion = 1;
constexpr absl::string_view kMagics[] = {"ESPTOKEN", "ESPEXMPL", "ESPMASKD",
                                         "ESPLRUNS", "ESPPRMPT", "ESPRECRD"};
constexpr int64_t kVocabularyMax = int64_t{1} << 32;

// Offsets of the shard header.
constexpr size_t kVersionAt = 8;
constexpr size_t kItemBytesAt = 12;
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

absl::string_view NameOf(ShardHolds holds) {
  switch (holds) {
    case ShardHolds::kTokens:
      return "tokens";
    case ShardHolds::kExamples:
      return "examples";
    case ShardHolds::kMasked:
      return "masked examples";
    case ShardHolds::kRuns:
      return "loss runs";
    case ShardHolds::kPrompts:
      return "prompts";
    case ShardHolds::kRecords:
      return "bytes of records";
  }
  return "?";
}

// `counted` is what the shards count: "tokens", "examples".
nlohmann::ordered_json ShardsToJson(const std::vector<DataShard>& shards, const char* counted) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const DataShard& shard : shards) {
    json.push_back({{"file", shard.file}, {counted, shard.count}, {"sha256", shard.sha256}});
  }
  return json;
}

// The list `name` of a split, which adds up to `sum`.
absl::StatusOr<std::vector<DataShard>> ShardsFromJson(const nlohmann::json& json, const char* name,
                                                      const char* counted, int64_t sum) {
  ASSIGN_OR_RETURN(const nlohmann::json* entries, ArrayField(json, name));
  std::vector<DataShard> shards;
  int64_t left = sum;
  for (const nlohmann::json& entry : *entries) {
    if (!entry.is_object()) return absl::InvalidArgumentError("a shard is not an object");
    DataShard shard;
    ASSIGN_OR_RETURN(shard.file, StringField(entry, "file"));
    RETURN_IF_ERROR(CheckPlainFileName(shard.file));
    ASSIGN_OR_RETURN(shard.count, IntegerField(entry, counted));
    ASSIGN_OR_RETURN(shard.sha256, StringField(entry, "sha256"));
    RETURN_IF_ERROR(CheckSha256Text(shard.sha256));
    if (shard.count == 0 || shard.count > left) break;
    left -= shard.count;
    shards.push_back(std::move(shard));
  }
  if (left == 0 && shards.size() == entries->size()) return shards;
  return absl::InvalidArgumentError(absl::StrCat("a split has ", sum, " ", counted, ", but its '",
                                                 name, "' do not add up to that"));
}

nlohmann::ordered_json SplitToJson(const TokenSplit& split, DataKind holds) {
  nlohmann::ordered_json json;
  json["tokens"] = split.tokens;
  json["documents"] = split.documents;
  json["shards"] = ShardsToJson(split.shards, "tokens");
  if (holds != DataKind::kText) json["examples"] = ShardsToJson(split.examples, "examples");
  if (holds == DataKind::kMasked) {
    json["loss_runs"] = split.loss_runs;
    json["runs"] = ShardsToJson(split.runs, "runs");
  }
  if (holds == DataKind::kPrompts) {
    json["record_bytes"] = split.record_bytes;
    json["records"] = ShardsToJson(split.records, "bytes");
  }
  return json;
}

// Of pairs that were all used nothing is said, as it was before rows were counted.
nlohmann::ordered_json RowsToJson(const RowCounts& rows) {
  return {{"read", rows.read},
          {"empty", rows.empty},
          {"malformed", rows.malformed},
          {"too_long", rows.too_long},
          {"cut", rows.cut}};
}

absl::StatusOr<RowCounts> RowsFromJson(const nlohmann::json& json) {
  RowCounts rows;
  if (!json.contains("rows")) return rows;
  ASSIGN_OR_RETURN(const nlohmann::json* counts, ObjectField(json, "rows"));
  ASSIGN_OR_RETURN(rows.read, IntegerField(*counts, "read"));
  ASSIGN_OR_RETURN(rows.empty, IntegerField(*counts, "empty"));
  ASSIGN_OR_RETURN(rows.malformed, IntegerField(*counts, "malformed"));
  ASSIGN_OR_RETURN(rows.too_long, IntegerField(*counts, "too_long"));
  ASSIGN_OR_RETURN(rows.cut, IntegerField(*counts, "cut"));
  return rows;
}

absl::StatusOr<TokenSplit> SplitFromJson(const nlohmann::json& json, DataKind holds) {
  if (!json.is_object()) return absl::InvalidArgumentError("a split is not an object");
  TokenSplit split;
  ASSIGN_OR_RETURN(split.tokens, IntegerField(json, "tokens"));
  ASSIGN_OR_RETURN(split.documents, IntegerField(json, "documents"));
  ASSIGN_OR_RETURN(split.shards, ShardsFromJson(json, "shards", "tokens", split.tokens));
  if (holds == DataKind::kText) return split;
  ASSIGN_OR_RETURN(split.examples, ShardsFromJson(json, "examples", "examples", split.documents));
  if (holds == DataKind::kPrompts) {
    ASSIGN_OR_RETURN(split.record_bytes, IntegerField(json, "record_bytes"));
    ASSIGN_OR_RETURN(split.records, ShardsFromJson(json, "records", "bytes", split.record_bytes));
  }
  if (holds != DataKind::kMasked) return split;
  ASSIGN_OR_RETURN(split.loss_runs, IntegerField(json, "loss_runs"));
  ASSIGN_OR_RETURN(split.runs, ShardsFromJson(json, "runs", "runs", split.loss_runs));
  return split;
}

absl::StatusOr<std::vector<DataFile>> FilesFromJson(const nlohmann::json& json) {
  std::vector<DataFile> files;
  if (!json.contains("files")) return files;
  ASSIGN_OR_RETURN(const nlohmann::json* entries, ArrayField(json, "files"));
  for (const nlohmann::json& entry : *entries) {
    if (!entry.is_object()) return absl::InvalidArgumentError("a file is not an object");
    DataFile file;
    ASSIGN_OR_RETURN(file.file, StringField(entry, "file"));
    RETURN_IF_ERROR(CheckPlainFileName(file.file));
    ASSIGN_OR_RETURN(file.sha256, StringField(entry, "sha256"));
    RETURN_IF_ERROR(CheckSha256Text(file.sha256));
    files.push_back(std::move(file));
  }
  return files;
}

// What the manifest holds, by its version.
absl::StatusOr<DataKind> KindFromJson(const nlohmann::json& json) {
  ASSIGN_OR_RETURN(const std::string format, StringField(json, "format"));
  ASSIGN_OR_RETURN(const int64_t version, IntegerField(json, "version"));
  if (format != kFormat || (version != kTextVersion && version != kVersion)) {
    return absl::InvalidArgumentError(absl::StrCat("it is '", format.substr(0, 40), "' version ",
                                                   version, "; this program reads '", kFormat,
                                                   "' versions ", kTextVersion, " and ", kVersion));
  }
  if (version == kTextVersion) return DataKind::kText;
  ASSIGN_OR_RETURN(const std::string holds, StringField(json, "holds"));
  return DataKindFromName(holds);
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
    for (const auto* shards : {&split.shards, &split.examples, &split.runs, &split.records}) {
      for (const DataShard& shard : *shards) {
        if (names.insert(shard.file).second) continue;
        return absl::InvalidArgumentError(absl::StrCat("shard ", shard.file, " is listed twice"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view DataKindName(DataKind kind) {
  switch (kind) {
    case DataKind::kText:
      return "text";
    case DataKind::kPromptCompletion:
      return "prompt-completion";
    case DataKind::kMasked:
      return "masked-examples";
    case DataKind::kPrompts:
      return "prompts";
    case DataKind::kPreferences:
      return "preferences";
  }
  return "?";
}

absl::StatusOr<DataKind> DataKindFromName(absl::string_view name) {
  for (DataKind kind : {DataKind::kText, DataKind::kPromptCompletion, DataKind::kMasked,
                        DataKind::kPrompts, DataKind::kPreferences}) {
    if (DataKindName(kind) == name) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat("data of the kind '", name.substr(0, 40),
                                                 "' are not known; allowed: text, "
                                                 "prompt-completion, masked-examples, prompts, "
                                                 "preferences"));
}

std::string TokenManifestToJson(const TokenManifest& manifest) {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["version"] = manifest.holds == DataKind::kText ? kTextVersion : kVersion;
  if (manifest.holds != DataKind::kText) json["holds"] = std::string(DataKindName(manifest.holds));
  json["tokenizer"] = {{"kind", manifest.tokenizer}, {"sha256", manifest.tokenizer_sha256}};
  json["vocab_size"] = manifest.vocab_size;
  json["eos_id"] = manifest.eos_id;
  json["token_bytes"] = manifest.token_bytes;
  json["source_bytes"] = manifest.source_bytes;
  const bool all_used = manifest.rows.left_out() == 0 && manifest.rows.cut == 0;
  if (manifest.holds != DataKind::kText &&
      (manifest.holds != DataKind::kPromptCompletion || !all_used)) {
    json["rows"] = RowsToJson(manifest.rows);
  }
  if (manifest.holds == DataKind::kPrompts) {
    json["files"] = nlohmann::ordered_json::array();
    for (const DataFile& file : manifest.files) {
      json["files"].push_back({{"file", file.file}, {"sha256", file.sha256}});
    }
  }
  json["splits"] = nlohmann::ordered_json::object();
  for (const auto& [name, split] : manifest.splits) {
    json["splits"][name] = SplitToJson(split, manifest.holds);
  }
  return json.dump(2) + "\n";
}

absl::StatusOr<TokenManifest> TokenManifestFromJson(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonObject(text));
  TokenManifest manifest;
  ASSIGN_OR_RETURN(manifest.holds, KindFromJson(json));
  ASSIGN_OR_RETURN(const nlohmann::json* tokenizer, ObjectField(json, "tokenizer"));
  ASSIGN_OR_RETURN(manifest.tokenizer, StringField(*tokenizer, "kind"));
  ASSIGN_OR_RETURN(manifest.tokenizer_sha256, StringField(*tokenizer, "sha256"));
  ASSIGN_OR_RETURN(manifest.vocab_size, IntegerField(json, "vocab_size"));
  ASSIGN_OR_RETURN(manifest.eos_id, IntegerField(json, "eos_id"));
  ASSIGN_OR_RETURN(const int64_t token_bytes, IntegerField(json, "token_bytes"));
  manifest.token_bytes = static_cast<int>(std::min<int64_t>(token_bytes, 1000));
  ASSIGN_OR_RETURN(manifest.source_bytes, IntegerField(json, "source_bytes"));
  ASSIGN_OR_RETURN(manifest.rows, RowsFromJson(json));
  ASSIGN_OR_RETURN(manifest.files, FilesFromJson(json));
  ASSIGN_OR_RETURN(const nlohmann::json* splits, ObjectField(json, "splits"));
  for (const auto& [name, split] : splits->items()) {
    ASSIGN_OR_RETURN(manifest.splits[name], SplitFromJson(split, manifest.holds));
  }
  RETURN_IF_ERROR(CheckManifest(manifest));
  return manifest;
}

std::string DescribeCount(DataKind kind, int64_t documents) {
  switch (kind) {
    case DataKind::kText:
      return absl::StrCat(documents, " documents");
    case DataKind::kPromptCompletion:
    case DataKind::kMasked:
      return absl::StrCat(documents, " examples");
    case DataKind::kPrompts:
      return absl::StrCat(documents, " prompts");
    case DataKind::kPreferences:  // an example for each of the two
      return absl::StrCat(documents / 2, " pairs");
  }
  return "";
}

std::string DescribeRows(const RowCounts& rows) {
  if (rows.read == 0) return "";
  std::string text = absl::StrCat(rows.read, " read");
  std::vector<std::string> left_out;
  if (rows.empty > 0) left_out.push_back(absl::StrCat(rows.empty, " empty"));
  if (rows.malformed > 0) left_out.push_back(absl::StrCat(rows.malformed, " malformed"));
  if (rows.too_long > 0) left_out.push_back(absl::StrCat(rows.too_long, " too long"));
  if (!left_out.empty()) absl::StrAppend(&text, "; left out: ", absl::StrJoin(left_out, ", "));
  if (rows.cut > 0) absl::StrAppend(&text, "; ", rows.cut, " cut at their end");
  return text;
}

int TokenBytesFor(int64_t vocab_size) {
  return vocab_size <= 0x100 ? 1 : vocab_size <= 0x10000 ? 2 : 4;
}

ShardHolds ExampleShardsOf(DataKind kind) {
  if (kind == DataKind::kPrompts) return ShardHolds::kPrompts;
  return kind == DataKind::kMasked ? ShardHolds::kMasked : ShardHolds::kExamples;
}

int ItemBytesOf(ShardHolds holds, int token_bytes) {
  if (holds == ShardHolds::kRecords) return 1;
  return holds == ShardHolds::kTokens ? token_bytes : kExampleEntryBytes;
}

std::string Describe(const ShardHeader& header) {
  return absl::StrCat(header.count, " ", NameOf(header.holds), " of ", header.item_bytes, " bytes");
}

std::array<std::byte, kShardHeaderBytes> EncodeShardHeader(const ShardHeader& header) {
  std::array<std::byte, kShardHeaderBytes> bytes{};
  const absl::string_view magic = kMagics[static_cast<size_t>(header.holds)];
  const auto item_bytes = static_cast<uint32_t>(header.item_bytes);
  const auto count = static_cast<uint64_t>(header.count);
  std::memcpy(bytes.data(), magic.data(), magic.size());
  std::memcpy(bytes.data() + kVersionAt, &kShardVersion, sizeof(kShardVersion));
  std::memcpy(bytes.data() + kItemBytesAt, &item_bytes, sizeof(item_bytes));
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
  const absl::string_view magic(reinterpret_cast<const char*>(bytes.data()), kMagics[0].size());
  const auto* const known = std::find(std::begin(kMagics), std::end(kMagics), magic);
  if (known == std::end(kMagics)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is not a shard (its first bytes are none of ", absl::StrJoin(kMagics, ", "), ")"));
  }
  const auto holds = static_cast<ShardHolds>(known - std::begin(kMagics));
  if (HeaderChecksum(bytes) != LoadAt<uint64_t>(bytes, kChecksumAt)) {
    return absl::DataLossError(absl::StrCat(path, " has a damaged header (checksum differs)"));
  }
  const auto version = LoadAt<uint32_t>(bytes, kVersionAt);
  if (version != kShardVersion) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has version ", version,
                                                   "; this program reads version ", kShardVersion));
  }
  const bool tokens = holds == ShardHolds::kTokens;
  const auto item_bytes = LoadAt<uint32_t>(bytes, kItemBytesAt);
  const auto count = LoadAt<uint64_t>(bytes, kCountAt);
  const auto of_items = static_cast<uint32_t>(ItemBytesOf(holds, 0));
  const bool right = tokens ? IsTokenBytes(item_bytes) : item_bytes == of_items;
  if (!right || count > (uint64_t{1} << 48)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " says ", count, " ", NameOf(holds), " of ", item_bytes,
                     " bytes; allowed: ", tokens ? "1, 2 or 4" : absl::StrCat(of_items)));
  }
  return ShardHeader{holds, static_cast<int>(item_bytes), static_cast<int64_t>(count)};
}

}  // namespace espalier
