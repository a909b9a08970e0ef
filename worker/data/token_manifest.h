// TokenManifest: manifest.json of a prepared data folder, and the header of its shard files (the
// README of this folder describes both formats byte by byte). Used by worker/data. Plain data: any
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace espalier {

inline constexpr char kTokenManifestName[] = "manifest.json";
inline constexpr char kTrainSplit[] = "train";
inline constexpr char kValidationSplit[] = "validation";

// What a prepared folder holds.
enum class DataKind {
  kText,              // documents one after the other
  kPromptCompletion,  // examples of a prompt and its completion
  kMasked,            // examples any of whose tokens may count in the loss: conversations and texts
  kPrompts,           // prompts, to be completed, with what the verifier of completions is told
  kPreferences,       // as kPromptCompletion, two by two: the chosen completion, then the rejected
};
// As in the manifest: "text", "prompt-completion", "masked-examples", "prompts", "preferences".
absl::string_view DataKindName(DataKind kind);
absl::StatusOr<DataKind> DataKindFromName(absl::string_view name);
// What a split of so many `documents` holds, for people: "4 pairs", "8 prompts".
std::string DescribeCount(DataKind kind, int64_t documents);

struct DataShard {
  std::string file;    // plain name inside the folder: "train-00000.tokens", "train-00000.examples"
  int64_t count = 0;   // of tokens or examples
  std::string sha256;  // of the whole file, lower-case hex
};

struct TokenSplit {
  int64_t tokens = 0;     // end-of-text tokens included
  int64_t documents = 0;  // or examples, of kPreferences two a pair
  std::vector<DataShard> shards;
  std::vector<DataShard> examples;  // of examples: where each of them lies in the tokens
  int64_t loss_runs = 0;            // kMasked: stretches of tokens that count in the loss
  std::vector<DataShard> runs;      // and where they lie
  int64_t record_bytes = 0;         // kPrompts: of all records, as JSON
  std::vector<DataShard> records = {};
};

// What became of the rows that were read. Rows of examples; of text only those left out.
struct RowCounts {
  int64_t read = 0;
  int64_t empty = 0;  // left out, as the two that follow
  int64_t malformed = 0;
  int64_t too_long = 0;
  int64_t cut = 0;  // kept without their end

  int64_t left_out() const { return empty + malformed + too_long; }
  friend bool operator==(const RowCounts&, const RowCounts&) = default;
};

// "989 read; left out: 2 empty, 1 malformed; 3 cut"; empty when none was read.
std::string DescribeRows(const RowCounts& rows);

// A further file of a folder, as it was given.
struct DataFile {
  std::string file;
  std::string sha256;
};

struct TokenManifest {
  DataKind holds = DataKind::kText;
  std::string tokenizer;         // kind: "byte"
  std::string tokenizer_sha256;  // of tokenizer.json; empty when there is none
  int64_t vocab_size = 0;
  int64_t eos_id = 0;
  int token_bytes = 0;               // 1, 2 or 4: unsigned, little endian
  int64_t source_bytes = 0;          // of text, end-of-document tokens not counted
  RowCounts rows;                    // of kText not kept in the manifest
  std::vector<DataFile> files = {};  // kPrompts: lists that their verifier needs
  std::map<std::string, TokenSplit> splits;
};

// Depends on content alone (no path, host or time), so that two nodes that prepare the same text
// get the same manifest.
std::string TokenManifestToJson(const TokenManifest& manifest);
// INVALID_ARGUMENT names the field that is missing, has a wrong type or contradicts another one;
// shard names that would leave the folder are refused.
absl::StatusOr<TokenManifest> TokenManifestFromJson(absl::string_view json);

// Smallest of 1, 2, 4 that holds every id below `vocab_size`.
int TokenBytesFor(int64_t vocab_size);

// One example in a table of examples. Positions are of tokens of the split; the example begins
// where the one before it ends, the first at 0.
struct ExampleEntry {
  int64_t completion = 0;  // first token of the completion
  int64_t end = 0;         // behind its end-of-text token
};
inline constexpr int kExampleEntryBytes = sizeof(ExampleEntry);

// The same of kMasked: behind its tokens, and behind its stretches, of those of the split.
struct MaskedEntry {
  int64_t runs_end = 0;
  int64_t end = 0;
};
// The same of kPrompts: behind its record, of the records' bytes, and behind its tokens.
struct PromptEntry {
  int64_t record_end = 0;
  int64_t end = 0;
};
// A stretch of tokens: [begin, end).
struct TokenRun {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const TokenRun&, const TokenRun&) = default;
};
static_assert(sizeof(MaskedEntry) == kExampleEntryBytes && sizeof(TokenRun) == kExampleEntryBytes &&
              sizeof(PromptEntry) == kExampleEntryBytes);

enum class ShardHolds { kTokens, kExamples, kMasked, kRuns, kPrompts, kRecords };
// What the tables of examples of a folder hold.
ShardHolds ExampleShardsOf(DataKind kind);
// Bytes of an item; of tokens as the manifest says.
int ItemBytesOf(ShardHolds holds, int token_bytes);
inline constexpr size_t kShardHeaderBytes = 64;
struct ShardHeader {
  ShardHolds holds = ShardHolds::kTokens;
  int item_bytes = 0;
  int64_t count = 0;
  friend bool operator==(const ShardHeader&, const ShardHeader&) = default;
};
// "1000 tokens of 2 bytes".
std::string Describe(const ShardHeader& header);
std::array<std::byte, kShardHeaderBytes> EncodeShardHeader(const ShardHeader& header);
// INVALID_ARGUMENT when it is not a shard of this format and version, DATA_LOSS when the header is
// damaged or cut. `path` is for the message.
absl::StatusOr<ShardHeader> DecodeShardHeader(absl::Span<const std::byte> bytes,
                                              absl::string_view path);

}  // namespace espalier
