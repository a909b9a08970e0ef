// CheckpointSaver: publishes the replica at a step boundary. The ranks whose part it is write, each
// on a thread of its own; all wait for them, in touch, so that a slow disk is not taken for a lost
// rank. Used by worker/session.h, worker/train/milestones.h and worker/train/trainer.h. Compute
// thread.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "worker/control/control_client.h"
#include "worker/state/checkpoint_copies.h"
#include "worker/state/checkpoint_store.h"
#include "worker/state/replica.h"
#include "worker/state/replica_checkpoint.h"
#include "worker/sync/together.h"

namespace espalier {

class CheckpointSaver {
 public:
  // The references must outlive the saver.
  CheckpointSaver(const RankContext& context, ControlClient& client, CheckpointStore& store,
                  const RunIdentity& identity, const CopyRole& role)
      : context_(context), client_(client), store_(store), identity_(identity), role_(role) {}

  // Every rank calls this at the same step. An error is the collective's, or ABORTED: a folder has
  // another writer, so this run must end. The outcome is OK when one copy was published, else why
  // the lowest rank's was not; each rank reports and logs its own.
  absl::StatusOr<SharedOutcome> Save(Replica& replica, std::optional<double> validation_loss);

  // Of the last one that was published, on whichever ranks.
  std::optional<Step> last_step() const { return last_step_; }
  // Of the last one in this rank's folder.
  const std::string& last_folder() const { return last_folder_; }

 private:
  absl::Status Write(Replica& replica, std::optional<double> validation_loss);
  void Report(const absl::Status& status, Step step, absl::Duration spent);

  RankContext context_;
  ControlClient& client_;
  CheckpointStore& store_;
  const RunIdentity& identity_;
  const CopyRole role_;
  std::optional<Step> last_step_;
  std::string last_folder_;
  int64_t last_bytes_ = 0;
};

}  // namespace espalier
