// Reads the shards of a prepared folder: verifies them against the manifest, remembering what has
// passed, and maps those of a split one after the other. Used by dataset.cc. What is mapped is
// immutable: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/example_table.h"
#include "worker/data/masked_table.h"
#include "worker/data/prompt_table.h"
#include "worker/data/samples.h"
#include "worker/data/token_manifest.h"

namespace espalier {

enum class VerifyShards {
  // Every shard's size and header, and its SHA-256 unless this very file (inode, size, time of
  // change) passed before: `.verified.json` in the folder remembers. A folder that cannot be
  // written is hashed each time.
  kOncePerFile,
  // Every SHA-256, now.
  kAll,
};

struct VerifyOptions {
  VerifyShards verify = VerifyShards::kOncePerFile;
  // Told the bytes hashed so far and in all, about once per 64 MiB; may be empty.
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
};

// DATA_LOSS for the first shard that is missing, cut, altered or of other data, with what to do.
absl::Status VerifyFolder(const std::string& folder, const TokenManifest& manifest,
                          const VerifyOptions& options);

// A split, mapped.
struct SplitRows {
  std::shared_ptr<const TokenRow> tokens;
  // Of what the folder holds, one or none.
  std::shared_ptr<const ExampleIndex> examples;
  std::shared_ptr<const MaskedIndex> masked;
  std::shared_ptr<const PromptTable> prompts;  // read, not mapped
};
absl::StatusOr<SplitRows> MapSplit(const std::string& folder, const TokenManifest& manifest,
                                   const TokenSplit& split);

}  // namespace espalier
