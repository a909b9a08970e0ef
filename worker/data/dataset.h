// Dataset: a folder written by `espalier data prepare`, opened, verified and memory-mapped; and
// what it holds as text for a person. Used by worker/verbs.h, worker/job_inputs.h and
// worker/task/task.h. Immutable after Open: any thread.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/example_table.h"
#include "worker/data/samples.h"
#include "worker/data/shard_reader.h"
#include "worker/data/token_manifest.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

class Dataset {
 public:
  // NOT_FOUND when there is no prepared data; INVALID_ARGUMENT for a foreign or contradictory
  // folder; DATA_LOSS for a shard that is missing, cut or altered. Each names the file and what to
  // do.
  static absl::StatusOr<Dataset> Open(const std::string& folder, VerifyOptions options);

  const TokenManifest& manifest() const { return manifest_; }
  // SHA-256 (hex) of manifest.json: equal on two nodes only if their data are the same.
  const std::string& manifest_hash() const { return manifest_hash_; }
  const std::string& folder() const { return folder_; }

  // The tokens of "train" or "validation"; NOT_FOUND names the splits that exist.
  absl::StatusOr<std::shared_ptr<const TokenRow>> Tokens(absl::string_view split) const;

  // The samples of a split, of a folder of text and of one of prompts and completions.
  // FAILED_PRECONDITION when the folder holds the other kind (the message says which task uses it),
  // or not even one sample; NOT_FOUND as Tokens.
  absl::StatusOr<std::shared_ptr<const WindowTable>> Windows(absl::string_view split,
                                                             int64_t sequence_length) const;
  absl::StatusOr<std::shared_ptr<const ExampleTable>> Examples(absl::string_view split,
                                                               int64_t sequence_length) const;

 private:
  absl::StatusOr<SplitRows> Split(absl::string_view name) const;
  absl::Status CheckHolds(DataKind wanted) const;

  std::string folder_;
  std::string manifest_hash_;
  TokenManifest manifest_;
  std::map<std::string, SplitRows, std::less<>> splits_;
};

struct InspectOptions {
  int64_t sequence_length = 256;
  int64_t shown_samples = 1;  // of each split, decoded
};
// `espalier data inspect`: splits, shards, sizes, tokens, hash, what the sequence length cuts, and
// the text of the first samples.
absl::StatusOr<std::string> InspectData(const Dataset& dataset, const Tokenizer& tokenizer,
                                        InspectOptions options);

}  // namespace espalier
