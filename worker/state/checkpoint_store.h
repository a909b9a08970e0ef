// CheckpointStore: the folder that receives step-00000500/ and so on: publishes by one atomic
// rename, finds the newest that verifies, prunes. Old or new, never neither. Every rank finds and
// reads, one alone writes; of several runs that share a folder, only the one that began last: the
// others are fenced. Used by worker/state and worker/. One thread at a time, but for a Write that
// hangs and is left behind: the next one does not meet it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "common/base/ids.h"
#include "worker/state/checkpoint.h"

namespace espalier {

// A folder that looks like a checkpoint and is not a good one. It is passed over, never deleted.
struct RejectedCheckpoint {
  std::string folder;
  absl::Status reason;
};

struct FoundCheckpoint {
  std::optional<Checkpoint> newest;          // none: there is no good one
  std::vector<RejectedCheckpoint> rejected;  // newer ones that did not verify
};

struct PublishedCheckpoint {
  std::string folder;
  int64_t bytes = 0;    // of all files
  absl::Status pruned;  // why old ones are there still; OK: those that were to go are gone
};

class CheckpointStore {
 public:
  struct Options {
    std::string directory;
    int keep = 2;       // newest kept, at least 1
    int keep_best = 0;  // best by validation loss kept besides
    // Who writes, for people ("generation 3 of job nano-1, process 812 on studio").
    std::string writer = "";
    // Asked before the folder is claimed and before anything is published or removed; null: always
    // permitted.
    std::function<absl::Status()> permit = nullptr;
  };
  // Whether nobody waits any more.
  using Cancelled = std::function<bool()>;
  CheckpointStore(FileSystem& files, Options options)
      : files_(files), options_(std::move(options)) {}

  // Whoever writes, before its first Write: makes the directory, takes it for this writer, and
  // removes what earlier ones left.
  absl::Status Prepare();

  // Empty files by which ranks learn whether their folders are one; what a crash leaves of them
  // goes with the next Prepare.
  absl::Status LeaveMark(absl::string_view mark);
  bool HasMark(absl::string_view mark) const;
  void RemoveMark(absl::string_view mark);

  // ABORTED when another writer has taken the directory since Prepare: the successor of a
  // generation that was cut off and goes on, or a second run given the same folder. Then nothing
  // is written or removed any more. (Between this look and a rename there is an instant in which
  // the other may take it; what is then published is a whole checkpoint all the same.)
  absl::Status CheckWriter() const;

  // Writes, syncs, renames, syncs, prunes. A good checkpoint of the same step that is there already
  // is kept, and gets the content's loss where it has none, which is no error when it cannot be
  // written; a bad one is set aside under "step-00000500.bad-1". On an error the old ones
  // are untouched and nothing of the new one is visible (only when the very last sync fails, the
  // new one is there, complete). A failure to prune is not an error: see `pruned`. Errors of
  // CheckWriter. CANCELLED once `cancelled` (may be empty) says so, also while the new one,
  // complete then, is read back; the old ones stay.
  absl::StatusOr<PublishedCheckpoint> Write(const CheckpointContent& content,
                                            const Cancelled& cancelled = {});

  // The newest checkpoint whose every hash is right. A directory that does not exist holds none.
  absl::StatusOr<FoundCheckpoint> FindNewest() const;

  // The checkpoint of one step, verified.
  absl::StatusOr<Checkpoint> Open(Step step) const;

  // Folders of published checkpoints, by step, oldest first; not verified.
  struct Entry {
    Step step;
    std::string folder;
  };
  absl::StatusOr<std::vector<Entry>> List() const;
  // Where the checkpoint of a step is, or would be.
  std::string Folder(Step step) const;

  // Removes all but the newest `keep`, the best `keep_best` and the newest that verifies. `good`: a
  // step that has just been verified and need not be read again. CANCELLED as Write.
  absl::Status Prune(std::optional<Step> good = std::nullopt, const Cancelled& cancelled = {});

 private:
  std::string MarkPath(absl::string_view mark) const;
  absl::Status Publish(const CheckpointContent& content, const std::string& folder,
                       const Cancelled& cancelled);
  absl::Status AddLoss(const CheckpointContent& content, const std::string& folder,
                       CheckpointManifest manifest);
  absl::Status SetAside(const std::string& folder);

  FileSystem& files_;
  Options options_;
  std::string claim_;  // what Prepare wrote into the directory; empty before
};

}  // namespace espalier
