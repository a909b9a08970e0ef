// Milestones: what happens every so many steps, and at the end: evaluation and checkpoints. All
// ranks call the same methods at the same steps. Used by trainer.h. Compute thread.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "espalier/v1/job.pb.h"
#include "worker/state/checkpoint_saver.h"
#include "worker/state/replica.h"
#include "worker/state/warm_state.h"
#include "worker/train/boundary.h"
#include "worker/train/evaluate.h"
#include "worker/train/pass_memory.h"
#include "worker/train/reporter.h"
#include "worker/train/step_boundary.h"
#include "worker/train/time_accounts.h"

namespace espalier {

class Milestones {
 public:
  // All outlive this; `evaluator` may be null: there is no validation split.
  struct Parts {
    const v1::JobSpec& spec;
    const RankContext& context;
    StepBoundary& boundary;
    Replica& replica;
    WarmState* warm;  // null: the replica lies in private memory
    CheckpointSaver& saver;
    Evaluator* evaluator;
    PassMemory& memory;
    StepReporter& reporter;
    TimeAccounts& accounts;
    std::function<void()> report_practised;  // how far what a task practises is
  };
  explicit Milestones(const Parts& parts) : parts_(parts) {}

  // The evaluation that was due after the last step was not made, or not to its end: there was a
  // death in between, or the ranks were called away.
  bool MissesEvaluation() const;
  // What is due after the step that has just been committed; at the end of the run nothing, since
  // Evaluate and SaveForGood follow. Under keep_best no checkpoint without the evaluation that is
  // due with it: MakeUp makes both.
  absl::Status AfterStep();
  // Before the next step: the evaluation that this step misses, and its checkpoint where that is
  // due too and was not begun, or was and has no loss to be ranked by.
  absl::Status MakeUp();
  // Nothing when this step's evaluation is known, or there is nothing to evaluate. False: it is not
  // known, since the ranks were called away, or there is more of it after a boundary, unless it is
  // to be made in one go.
  absl::StatusOr<bool> Evaluate(bool in_one_go = false);
  // At every boundary, with its message: goes on with the checkpoint that is made beside the steps,
  // and makes one that was `asked` for. A stop waits for the former where nothing newer is kept,
  // but not for long, and leaves it to SaveForGood where it is the one that is wanted first.
  absl::Status AtBoundary(const Boundary& boundary, bool asked);
  // Before anything changes the replica.
  void BeforeUpdate();
  // Before leaving for good: tries until the checkpoint is there, or a directive says to stop
  // without. Whether it is there.
  absl::StatusOr<bool> SaveForGood();

  // Of the newest evaluation, at step evaluated_step().
  std::optional<Evaluation> last_evaluation() const { return evaluation_; }

 private:
  // How a checkpoint is made: while all ranks wait for it, or beside the steps that follow.
  enum class Manner { kWaiting, kBeside };
  bool IsEvaluated() const;
  bool RanksCheckpoints() const { return parts_.spec.checkpoint().keep_best() > 0; }
  void NoteProgress();
  // Of the checkpoint that is made beside the steps.
  absl::Status EndAtStop(const Boundary& boundary);
  // Goes on when the checkpoint could not be written: the older ones are there still. What is
  // waited for is wanted soon, and has the loss only if it is known.
  absl::Status Save(Manner manner);
  absl::Status SaveInManner(Manner manner);
  // Whether every rank that writes has memory for a copy.
  absl::StatusOr<bool> HasRoomBeside();
  // The same status. What differs between ranks is not gone on from.
  absl::Status Checked(absl::Status status);

  const Parts parts_;
  std::optional<Step> evaluated_step_;
  std::optional<Evaluation> evaluation_;
  bool stepped_ = false;  // in this generation: what passes take is known
  bool told_of_room_ = false;
};

}  // namespace espalier
