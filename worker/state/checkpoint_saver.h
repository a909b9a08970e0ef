// CheckpointSaver: publishes the replica as it is at a step boundary. The ranks whose part it is
// write, each on a thread of its own. Either all wait for them, in touch, so that a slow disk is
// not taken for a lost rank; or steps go on, and the ranks meet at boundaries until it is done
// (checkpoint_beside.h). Nothing is published unless all ranks hold the same bits.
// Used by worker/session.h, worker/train/milestones.h and worker/train/trainer.h. Compute thread.
// Every rank calls the same methods at the same steps, but for AwaitCopied and what is const.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "worker/control/control_client.h"
#include "worker/state/checkpoint_beside.h"
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
  // Gives up one that is under way.
  ~CheckpointSaver();

  // Errors of all of these are the collective's; those of CheckReplicasEqual: the ranks hold
  // different bits (differ), or a device could not be read; or ABORTED: a folder has another
  // writer; the run must end. A checkpoint that could not be written is no error: each rank reports
  // and logs its own.

  // Not while busy. The outcome is OK when one copy was published, else why the lowest rank's was
  // not.
  absl::StatusOr<SharedOutcome> Save(Replica& replica, std::optional<double> validation_loss);

  // Begins one beside the steps that follow; not while busy. What is on a device, or changes within
  // a step, is copied before this returns.
  absl::Status Start(Replica& replica, std::optional<double> validation_loss);
  // The same without a checkpoint: finds out whether all ranks hold the same bits. Does nothing
  // where a rank would have to wait for its device.
  absl::Status StartToCompare(Replica& replica);
  // Before an update changes the replica: waits until nothing reads it any more.
  void AwaitCopied();
  // At every boundary while busy: goes on with what is done on all ranks.
  absl::Status Advance();
  // Waits until it is published, or cannot be.
  absl::Status Finish();
  // The same, but gives up what takes longer than that on some rank, without a report. What hangs
  // then is left behind with all that this refers to, and the process must end soon after.
  absl::Status FinishWithin(absl::Duration limit);
  bool busy() const { return beside_ != nullptr; }
  // Of the checkpoint under way; none: the ranks do no more than compare.
  std::optional<Step> step_under_way() const {
    return busy() && !compares_only_ ? std::optional<Step>(beside_->step()) : std::nullopt;
  }
  // Bytes of memory that this rank has for the one under way, and would take for one.
  int64_t bytes_beside() const { return beside_ == nullptr ? 0 : beside_->bytes(); }
  int64_t BytesFor(Replica& replica) const;

  // The ranks were found to hold different bits.
  bool differ() const { return differ_; }
  // Of the last one that was published, on whichever ranks.
  std::optional<Step> last_step() const { return last_step_; }
  // It is in this rank's folder.
  bool holds_last() const { return last_step_ && last_folder_step_ == last_step_; }
  // Of the last one in this rank's folder.
  const std::string& last_folder() const { return last_folder_; }

 private:
  absl::Status CheckEqual(absl::Status equal);
  absl::StatusOr<bool> Waits(Replica& replica);
  // After the work of all ranks: shares `mine`, what became of this rank's copy.
  absl::StatusOr<SharedOutcome> Conclude(Step step, absl::Duration begun,
                                         const absl::StatusOr<PublishedCheckpoint>& mine);
  absl::Status GoOn();
  void GiveUp();
  void Report(const absl::Status& status, Step step, absl::Duration spent);

  RankContext context_;
  ControlClient& client_;
  CheckpointStore& store_;
  const RunIdentity& identity_;
  const CopyRole role_;
  std::unique_ptr<CheckpointBeside> beside_;
  bool compares_only_ = false;  // what it is for
  bool differ_ = false;
  std::optional<Step> last_step_;
  std::string last_folder_;
  std::optional<Step> last_folder_step_;
  int64_t last_bytes_ = 0;
};

}  // namespace espalier
