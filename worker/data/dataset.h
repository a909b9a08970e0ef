// Dataset: a folder written by `espalier data prepare`, opened, verified and memory-mapped.
// Used by the trainer, evaluation and `data inspect`. Immutable after Open: any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "worker/data/samples.h"
#include "worker/data/token_manifest.h"

namespace espalier {

class Dataset {
 public:
  enum class Verify {
    // Every shard's size and header, and its SHA-256 unless this very file (inode, size, time of
    // change) passed before: `.verified.json` in the folder remembers. A folder that cannot be
    // written is hashed each time.
    kOncePerFile,
    // Every SHA-256, now.
    kAll,
  };
  struct Options {
    Verify verify = Verify::kOncePerFile;
    // Told the bytes hashed so far and in all, about once per 64 MiB; may be empty.
    std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
  };
  // NOT_FOUND when there is no prepared data; INVALID_ARGUMENT for a foreign or contradictory
  // folder; DATA_LOSS for a shard that is missing, cut or altered. Each names the file and what to
  // do.
  static absl::StatusOr<Dataset> Open(const std::string& folder, Options options);

  const TokenManifest& manifest() const { return manifest_; }
  // SHA-256 (hex) of manifest.json: equal on two nodes only if their data are the same.
  const std::string& manifest_hash() const { return manifest_hash_; }
  const std::string& folder() const { return folder_; }

  // "train" or "validation"; NOT_FOUND names the splits that exist.
  absl::StatusOr<std::shared_ptr<const TokenRow>> Split(absl::string_view name) const;
  // Number of training (or other) samples; FAILED_PRECONDITION when the split holds not even one.
  absl::StatusOr<int64_t> Samples(absl::string_view split, int64_t sequence_length) const;

 private:
  std::string folder_;
  std::string manifest_hash_;
  TokenManifest manifest_;
  std::map<std::string, std::shared_ptr<const TokenRow>, std::less<>> rows_;
};

}  // namespace espalier
