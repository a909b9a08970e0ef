// StepBoundary: what a rank does between two steps to stay in agreement with the others: takes rank
// 0's message (boundary.h), writes a checkpoint that was asked for, stays while paused, and keeps
// the shard plan. Used by trainer.h. Compute thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/platform/platform.h"
#include "espalier/v1/job.pb.h"
#include "worker/control/control_client.h"
#include "worker/data/order.h"
#include "worker/optimizer/validation_progress.h"
#include "worker/rollout/rollout.h"
#include "worker/sync/together.h"
#include "worker/train/boundary.h"
#include "worker/train/reporter.h"
#include "worker/train/time_accounts.h"

namespace espalier {

class StepBoundary {
 public:
  struct Options {
    // While paused, rank 0 tells the others so often that nothing has changed.
    absl::Duration pause_interval = absl::Seconds(1);
    // After a checkpoint that must not be lost could not be written, the next attempt.
    absl::Duration save_retry_interval = absl::Seconds(5);
    // Asks the system not to fall asleep of itself: held from Create on, but not in a pause that
    // somebody asked for. Null: nobody asks.
    std::function<absl::StatusOr<std::unique_ptr<KeepAwake>>()> keep_awake;
  };
  // All outlive this.
  struct Parts {
    const v1::JobSpec& spec;
    RankContext context;
    ControlClient& client;
    // Of what is trained.
    const ValidationProgress& validation;
    StepReporter& reporter;
    TimeAccounts& accounts;
  };
  // INVALID_ARGUMENT when spec and world do not fit (see plan.h).
  static absl::StatusOr<StepBoundary> Create(const Parts& parts, Options options);

  // Returns at the first message that does not say pause, having obeyed it but for a stop. So it
  // also holds while rank 0 has no lease, since another generation may have been started. A paused
  // world stays in touch, so that it notices a lost rank, and uses no processor besides.
  // `at_boundary` is called on all ranks after each message, with it, and whether a checkpoint is
  // newly asked for.
  using AtBoundary = std::function<absl::Status(const Boundary& boundary, bool asked)>;
  absl::StatusOr<Boundary> Obey(Step step, const AtBoundary& at_boundary);
  // This rank's part of the step that the message begins: a plan holds from its first step on.
  absl::StatusOr<SlotRange> Shard(const Boundary& boundary);
  // By rank, of the plan in force; before the first step of this generation, of the job itself.
  const std::vector<int64_t>& sequences() const { return sequences_; }
  // What this rank samples at most: as the newest directive says, and by parallel.shares.
  RolloutLimit limit() const;
  // Waits before a checkpoint is tried again. False: a directive says to leave without it, or not
  // to leave at all.
  absl::StatusOr<bool> WaitToRetry(Step step);
  // Rank 0: a directive that is not obeyed yet says to pause or to stop. False on the others, which
  // learn of it from rank 0.
  bool CallsAway() const;
  // The newest message but one was to stop, and the newest is to go on.
  bool called_off() const { return called_off_; }

 private:
  StepBoundary(const Parts& parts, Options options, const v1::ShardPlan& plan);
  absl::StatusOr<Boundary> Meet(Step step);
  void Acknowledge(const Boundary& boundary);
  void NotePause(const Boundary& boundary);
  void StayAwake(bool wanted);
  void Hold(Boundary& mine) const;
  void NoteHold(bool holds);
  // Rank 0 waits for a directive after this one; while it holds, for its lease.
  absl::Status WaitForNews(const Boundary& boundary, absl::Duration timeout);

  Parts parts_;
  Options options_;
  const std::vector<int64_t> default_sequences_;
  std::optional<int64_t> plan_;  // number of the plan in force
  std::vector<int64_t> sequences_;
  SlotRange shard_;
  bool holds_ = false;   // rank 0: its lease has run out
  bool paused_ = false;  // by a directive, which a hold for the lease is not
  bool stops_ = false;   // as the newest message that Obey returned says, and not called off
  bool called_off_ = false;
  bool stays_awake_ = false;  // as far as the system lets it
  std::unique_ptr<KeepAwake> awake_;
  int64_t acknowledged_ = 0;        // newest directive; 0: there is none yet
  int64_t checkpoints_obeyed_ = 0;  // newest checkpoint_request
};

}  // namespace espalier
