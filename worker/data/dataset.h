// Dataset: a folder written by `espalier data prepare`, opened, verified and memory-mapped. Used by
// inspect.h, preview.h, worker/run.cc, worker/job_inputs.h and worker/task/task.h. Immutable after
// Open: any thread.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/example_table.h"
#include "worker/data/masked_table.h"
#include "worker/data/packed_table.h"
#include "worker/data/prompt_table.h"
#include "worker/data/samples.h"
#include "worker/data/shard_reader.h"
#include "worker/data/token_manifest.h"

namespace espalier {

struct SampleShape {
  int64_t sequence_length = 0;
  bool packing = false;  // examples share rows
};
// Training samples of a prepared folder: windows of `sequence_length` tokens, or examples, by its
// manifest alone; or the rows that examples share. Errors as those of Dataset::Open.
absl::StatusOr<int64_t> CountTrainingSamples(const std::string& folder, const SampleShape& shape);

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

  // The samples of a split, of a folder of text, of prompts and completions, and of masked
  // examples. FAILED_PRECONDITION when the folder holds the other kind (the message says which task
  // uses it), or not even one sample; NOT_FOUND as Tokens.
  absl::StatusOr<std::shared_ptr<const WindowTable>> Windows(absl::string_view split,
                                                             int64_t sequence_length) const;
  absl::StatusOr<std::shared_ptr<const ExampleTable>> Examples(absl::string_view split,
                                                               int64_t sequence_length) const;
  absl::StatusOr<std::shared_ptr<const MaskedTable>> Masked(absl::string_view split,
                                                            int64_t sequence_length) const;
  // The same of a folder of preferences; INVALID_ARGUMENT when a pair's answers are longer than a
  // row.
  absl::StatusOr<std::shared_ptr<const PreferenceTable>> Preferences(absl::string_view split,
                                                                     int64_t sequence_length) const;
  // The same of a folder of prompts.
  absl::StatusOr<std::shared_ptr<const PromptTable>> Prompts(absl::string_view split) const;

 private:
  absl::StatusOr<SplitRows> Split(absl::string_view name) const;
  absl::Status CheckHolds(DataKind wanted) const;
  template <typename Table>
  absl::StatusOr<std::shared_ptr<const Table>> Checked(absl::string_view split,
                                                       absl::StatusOr<Table> table) const;

  std::string folder_;
  std::string manifest_hash_;
  TokenManifest manifest_;
  std::map<std::string, SplitRows, std::less<>> splits_;
};

}  // namespace espalier
