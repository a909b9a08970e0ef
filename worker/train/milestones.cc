#include "worker/train/milestones.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"

namespace espalier {
namespace {

// Steps after which the ranks compare what they hold, besides at every checkpoint.
constexpr int64_t kCompareEvery = 100;

// How long a stop waits for a checkpoint that is written beside it.
constexpr absl::Duration kStopPatience = absl::Seconds(5);

bool Due(int64_t step, int64_t every_steps) { return every_steps > 0 && step % every_steps == 0; }

}  // namespace

bool Milestones::MissesEvaluation() const {
  const TrainingCounters& counters = parts_.replica.counters();
  const bool due = counters.step > 0 && Due(counters.step, parts_.spec.evaluate().every_steps());
  return due && counters.validation.step < counters.step && !IsEvaluated();
}

absl::Status Milestones::AfterStep() {
  const int64_t step = parts_.replica.step().value();
  stepped_ = true;
  if (step == parts_.spec.train().steps()) return absl::OkStatus();
  if (Due(step, parts_.spec.evaluate().every_steps())) {
    ASSIGN_OR_RETURN(const bool evaluated, Evaluate(/*in_one_go=*/true));
    if (!evaluated && RanksCheckpoints()) return absl::OkStatus();
  }
  if (Due(step, parts_.spec.checkpoint().every_steps())) return Save(Manner::kBeside);
  const bool compares = Due(step, kCompareEvery) && parts_.context.collective.world_size() > 1;
  return compares && !parts_.saver.busy() ? parts_.saver.StartToCompare(parts_.replica)
                                          : absl::OkStatus();
}

absl::Status Milestones::MakeUp() {
  ASSIGN_OR_RETURN(const bool evaluated, Evaluate());
  const Step step = parts_.replica.step();
  const bool begun = parts_.saver.last_step() == step || parts_.saver.step_under_way() == step;
  const bool due = Due(step.value(), parts_.spec.checkpoint().every_steps());
  // One that was asked for meanwhile has no loss yet.
  const bool wanted = begun ? RanksCheckpoints() : due;
  return evaluated && wanted ? Save(Manner::kBeside) : absl::OkStatus();
}

bool Milestones::IsEvaluated() const {
  return parts_.evaluator == nullptr || evaluated_step_ == parts_.replica.step();
}

absl::StatusOr<bool> Milestones::Evaluate(bool in_one_go) {
  if (IsEvaluated()) return true;
  parts_.reporter.Enter(v1::PHASE_EVALUATE);
  std::unique_ptr<Replica::Averaged> averaged;
  if (parts_.replica.optimizer().average().defined()) {
    RETURN_IF_ERROR(RunTogether(parts_.context, [&]() -> absl::Status {
      ASSIGN_OR_RETURN(averaged, parts_.replica.MakeAveraged());
      return absl::OkStatus();
    }));
  }
  ASSIGN_OR_RETURN(
      const std::optional<Evaluation> found,
      parts_.evaluator->Run({.model = averaged == nullptr ? nullptr : averaged->model.get(),
                             .micro_batch = parts_.memory.EvaluationRows(),
                             .sequences = parts_.boundary.sequences(),
                             .limit = [this] { return parts_.boundary.limit(); },
                             .free_memory = [this] { parts_.memory.Free(); },
                             .called_away = [this] { return parts_.boundary.CallsAway(); },
                             .step = parts_.replica.step().value(),
                             .in_one_go = in_one_go,
                             .got_on =
                                 [this] {
                                   parts_.accounts.Book(TimeAccount::kEvaluate);
                                   parts_.report_practised();
                                 }}));
  parts_.accounts.Book(TimeAccount::kEvaluate);
  if (!found) return false;
  evaluation_ = found;
  evaluated_step_ = parts_.replica.step();
  NoteProgress();
  return true;
}

// All ranks have the same loss, and so the same progress.
void Milestones::NoteProgress() {
  ValidationProgress& progress = parts_.replica.counters().validation;
  const int64_t step = evaluated_step_->value();
  // Others come of checkpoints that somebody asked for, or of the end: patience counts what every
  // run of the job does at the same steps.
  const bool counts =
      Due(step, parts_.spec.evaluate().every_steps()) && step < parts_.spec.train().steps();
  const int64_t before = progress.reductions;
  if (counts) {
    BeforeUpdate();
    progress.Note(parts_.spec, *evaluated_step_, evaluation_->loss);
    if (parts_.warm != nullptr) parts_.warm->Commit(parts_.replica.counters());
  }
  v1::EvaluationReport report;
  report.set_step(step);
  report.set_loss(evaluation_->loss);
  report.set_tokens(evaluation_->tokens);
  report.set_seconds(evaluation_->seconds);
  report.set_best_loss(progress.best());
  report.set_best_step(progress.best_step);
  report.set_without_gain(progress.without_gain);
  report.set_reductions(progress.reductions);
  report.set_rate_factor(progress.RateFactor(parts_.spec));
  report.set_lowers_rate(progress.reductions > before);
  *report.mutable_figures() = ToProto(evaluation_->figures);
  parts_.reporter.Evaluated(std::move(report));
}

absl::Status Milestones::Checked(absl::Status status) {
  if (parts_.warm != nullptr && parts_.saver.differ()) parts_.warm->Clear();
  return status;
}

absl::Status Milestones::AtBoundary(const Boundary& boundary, bool asked) {
  CheckpointSaver& saver = parts_.saver;
  if (saver.busy()) {
    RETURN_IF_ERROR(
        Checked(boundary.state() == v1::RUN_STATE_STOP ? EndAtStop(boundary) : saver.Advance()));
    parts_.memory.SetBeside(saver.bytes_beside());
    parts_.accounts.Book(TimeAccount::kCheckpoint);
  }
  if (!asked) return absl::OkStatus();
  // What is asked of a pause is wanted now, and what comes after a stop is nothing.
  return Save(boundary.state() == v1::RUN_STATE_RUN ? Manner::kBeside : Manner::kWaiting);
}

// A machine that is about to sleep has seconds: what a newer checkpoint follows, or memory that the
// run goes on from, is not waited for. What is of this very step is the one that the stop wants:
// SaveForGood finishes it.
absl::Status Milestones::EndAtStop(const Boundary& boundary) {
  parts_.reporter.Enter(v1::PHASE_CHECKPOINT);
  if (boundary.checkpoint_before_stop && parts_.saver.step_under_way() == parts_.replica.step()) {
    return absl::OkStatus();
  }
  const bool newer = boundary.checkpoint_before_stop || parts_.warm != nullptr;
  return parts_.saver.FinishWithin(newer ? absl::ZeroDuration() : kStopPatience);
}

void Milestones::BeforeUpdate() {
  if (!parts_.saver.busy()) return;
  parts_.saver.AwaitCopied();
  parts_.accounts.Book(TimeAccount::kCheckpoint);
}

absl::StatusOr<bool> Milestones::HasRoomBeside() {
  const int64_t needed = parts_.saver.BytesFor(parts_.replica);
  const int64_t room = parts_.memory.Room();
  const int32_t lacks = needed > 0 && needed > room ? 1 : 0;
  ASSIGN_OR_RETURN(const std::vector<int32_t> all, GatherValues(parts_.context.collective, lacks));
  if (lacks != 0 && !std::exchange(told_of_room_, true)) {
    LogWarning(absl::StrFormat(
        "checkpoints stop the steps while they are written: beside them a copy would take %.2f GB "
        "of memory, and there are %.2f",
        static_cast<double>(needed) / 1e9, static_cast<double>(std::max<int64_t>(0, room)) / 1e9));
  }
  return std::none_of(all.begin(), all.end(), [](int32_t one) { return one != 0; });
}

absl::Status Milestones::Save(Manner manner) {
  if (RanksCheckpoints() && manner == Manner::kBeside) {
    RETURN_IF_ERROR(Evaluate(/*in_one_go=*/true).status());
  }
  parts_.reporter.Enter(v1::PHASE_CHECKPOINT);
  RETURN_IF_ERROR(Checked(parts_.saver.Finish()));
  parts_.memory.SetBeside(0);
  RETURN_IF_ERROR(Checked(SaveInManner(manner)));
  parts_.memory.SetBeside(parts_.saver.bytes_beside());
  parts_.accounts.Book(TimeAccount::kCheckpoint);
  return absl::OkStatus();
}

// A checkpoint that could not be written is reported by the saver.
absl::Status Milestones::SaveInManner(Manner manner) {
  std::optional<double> loss;
  if (evaluation_ && evaluated_step_ == parts_.replica.step()) loss = evaluation_->loss;
  if (manner == Manner::kBeside && stepped_) {
    ASSIGN_OR_RETURN(const bool fits, HasRoomBeside());
    if (fits) return parts_.saver.Start(parts_.replica, loss);
  }
  return parts_.saver.Save(parts_.replica, loss).status();
}

absl::StatusOr<bool> Milestones::SaveForGood() {
  RETURN_IF_ERROR(Checked(parts_.saver.Finish()));
  while (parts_.saver.last_step() != parts_.replica.step()) {
    RETURN_IF_ERROR(Save(Manner::kWaiting));
    if (parts_.saver.last_step() == parts_.replica.step()) break;
    ASSIGN_OR_RETURN(const bool retry, parts_.boundary.WaitToRetry(parts_.replica.step()));
    if (!retry) return false;
  }
  return true;
}

}  // namespace espalier
