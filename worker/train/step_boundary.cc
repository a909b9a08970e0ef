#include "worker/train/step_boundary.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/optimizer/schedule.h"
#include "worker/train/plan.h"

namespace espalier {

StepBoundary::StepBoundary(const Parts& parts, Options options, const v1::ShardPlan& plan)
    : parts_(parts),
      options_(std::move(options)),
      default_sequences_(plan.sequences().begin(), plan.sequences().end()),
      sequences_(default_sequences_) {}

absl::StatusOr<StepBoundary> StepBoundary::Create(const Parts& parts, Options options) {
  ASSIGN_OR_RETURN(const v1::ShardPlan plan,
                   PlanFromShares(parts.spec, parts.context.collective.world_size()));
  StepBoundary boundary(parts, std::move(options), plan);
  boundary.StayAwake(true);
  return boundary;
}

absl::StatusOr<Boundary> StepBoundary::Meet(Step step) {
  RETURN_IF_ERROR(parts_.client.status());
  ASSIGN_OR_RETURN(Boundary mine, BoundaryFromDirective(parts_.client.directive(), step));
  const v1::TrainSpec& train = parts_.spec.train();
  mine.learning_rate = LearningRate(train.schedule(), train.steps(), step) *
                       parts_.validation.RateFactor(parts_.spec);
  if (parts_.context.collective.rank() == Rank(0)) {
    ASSIGN_OR_RETURN(const bool leased, parts_.client.WaitForLease(absl::ZeroDuration()));
    NoteHold(!leased);
    if (!leased) Hold(mine);
  }
  return MeetAtBoundary(parts_.context.collective, mine);
}

// A pause in which nothing new is obeyed.
void StepBoundary::Hold(Boundary& mine) const {
  mine.run_state = v1::RUN_STATE_PAUSE;
  mine.directive = acknowledged_;
  mine.checkpoint_request = checkpoints_obeyed_;
}

void StepBoundary::NoteHold(bool holds) {
  if (std::exchange(holds_, holds) == holds) return;
  if (holds) {
    LogWarning(
        "espalierd has not been heard of for longer than the lease of this run: it may have "
        "started another generation; holds at the step boundary until it is back");
  } else {
    LogInfo("espalierd is back and wants this generation; goes on");
  }
}

absl::Status StepBoundary::WaitForNews(const Boundary& boundary, absl::Duration timeout) {
  if (parts_.context.collective.rank() != Rank(0)) return absl::OkStatus();
  if (holds_) return parts_.client.WaitForLease(timeout).status();
  parts_.client.WaitForDirectiveAfter(boundary.directive, timeout);
  return absl::OkStatus();
}

absl::StatusOr<Boundary> StepBoundary::Obey(Step step, const AtBoundary& at_boundary) {
  v1::Phase phase = v1::PHASE_BOUNDARY;
  TimeAccount account = TimeAccount::kExchangeWait;
  called_off_ = false;
  for (;;) {
    parts_.reporter.Enter(phase);
    ASSIGN_OR_RETURN(const Boundary boundary, Meet(step));
    parts_.accounts.Book(account);
    const bool asked = boundary.checkpoint_request > checkpoints_obeyed_;
    RETURN_IF_ERROR(at_boundary(boundary, asked));
    checkpoints_obeyed_ = std::max<int64_t>(checkpoints_obeyed_, boundary.checkpoint_request);
    NotePause(boundary);
    StayAwake(!paused_);
    Acknowledge(boundary);
    stops_ = boundary.state() == v1::RUN_STATE_STOP;
    if (boundary.state() != v1::RUN_STATE_PAUSE) return boundary;
    phase = v1::PHASE_PAUSED;
    account = TimeAccount::kPaused;
    parts_.reporter.Enter(phase);
    RETURN_IF_ERROR(WaitForNews(boundary, options_.pause_interval));
  }
}

RolloutLimit StepBoundary::limit() const {
  return SamplingLimit(parts_.client.directive(), parts_.spec, parts_.context.collective.rank());
}

bool StepBoundary::CallsAway() const {
  if (parts_.context.collective.rank() != Rank(0)) return false;
  const v1::Directive directive = parts_.client.directive();
  const bool stays =
      directive.run_state() == v1::RUN_STATE_PAUSE || directive.run_state() == v1::RUN_STATE_STOP;
  return stays && directive.number() > acknowledged_;
}

// Rank 0 alone knows that it holds; to the others it says pause, and names no directive for it. The
// machine is wanted as soon as espalierd is back.
void StepBoundary::NotePause(const Boundary& boundary) {
  const bool pause = boundary.state() == v1::RUN_STATE_PAUSE;
  const bool held = pause && boundary.directive <= acknowledged_ && !paused_;
  paused_ = pause && !held;
}

// Where the system takes no such wish (Linux), nothing is said of it at every start.
void StepBoundary::StayAwake(bool wanted) {
  if (!options_.keep_awake || std::exchange(stays_awake_, wanted) == wanted) return;
  awake_.reset();
  if (!wanted) return;
  absl::StatusOr<std::unique_ptr<KeepAwake>> awake = options_.keep_awake();
  if (awake.ok()) {
    awake_ = *std::move(awake);
  } else if (!absl::IsUnimplemented(awake.status())) {
    LogWarning(absl::StrCat("the machine may fall asleep: ", awake.status().message()));
  }
}

absl::StatusOr<SlotRange> StepBoundary::Shard(const Boundary& boundary) {
  const bool given = boundary.plan_ranks > 0;
  if (plan_ && (!given || *plan_ >= boundary.plan || boundary.step < boundary.plan_from_step)) {
    return shard_;
  }
  const Collective& collective = parts_.context.collective;
  const int64_t global_batch = parts_.spec.train().global_batch();
  std::vector<int64_t> sequences = default_sequences_;
  if (given) {
    ASSIGN_OR_RETURN(sequences, SequencesOfPlan(boundary, collective.world_size(), global_batch));
  }
  ASSIGN_OR_RETURN(const std::vector<SlotRange> slots, SlotsOfRanks(sequences, global_batch));
  shard_ = slots[collective.rank().value()];
  sequences_ = std::move(sequences);
  plan_ = given ? boundary.plan : -1;
  return shard_;
}

void StepBoundary::Acknowledge(const Boundary& boundary) {
  if (boundary.directive <= acknowledged_) return;
  acknowledged_ = boundary.directive;
  parts_.reporter.Acknowledge(boundary.directive, boundary.state(), boundary.step);
}

absl::StatusOr<bool> StepBoundary::WaitToRetry(Step step) {
  const absl::Duration interval = std::min(options_.pause_interval, options_.save_retry_interval);
  const int64_t rounds = std::max<int64_t>(1, options_.save_retry_interval / interval);
  for (int64_t i = 0; i < rounds; ++i) {
    ASSIGN_OR_RETURN(const Boundary boundary, Meet(step));
    Acknowledge(boundary);
    const bool leave =
        boundary.state() == v1::RUN_STATE_STOP && boundary.checkpoint_before_stop == 0;
    called_off_ = stops_ && boundary.state() == v1::RUN_STATE_RUN;
    if (called_off_) stops_ = false;  // what else cannot be written is tried again
    if (leave || called_off_) return false;
    RETURN_IF_ERROR(WaitForNews(boundary, interval));
  }
  parts_.accounts.Book(TimeAccount::kCheckpoint);
  return true;
}

}  // namespace espalier
