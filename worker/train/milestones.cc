#include "worker/train/milestones.h"

#include <utility>

#include "common/base/status_macros.h"

namespace espalier {
namespace {

bool Due(int64_t step, int64_t every_steps) { return every_steps > 0 && step % every_steps == 0; }

}  // namespace

absl::Status Milestones::BeforeSteps() {
  const TrainingCounters& counters = parts_.replica.counters();
  const bool missed = counters.step > 0 && counters.validation.step < counters.step &&
                      Due(counters.step, parts_.spec.evaluate().every_steps());
  return missed ? Evaluate() : absl::OkStatus();
}

absl::Status Milestones::AfterStep() {
  const int64_t step = parts_.replica.step().value();
  if (step == parts_.spec.train().steps()) return absl::OkStatus();
  if (Due(step, parts_.spec.evaluate().every_steps())) RETURN_IF_ERROR(Evaluate());
  if (Due(step, parts_.spec.checkpoint().every_steps())) RETURN_IF_ERROR(Save());
  return absl::OkStatus();
}

absl::Status Milestones::Evaluate() {
  if (parts_.evaluator == nullptr || evaluated_step_ == parts_.replica.step()) {
    return absl::OkStatus();
  }
  parts_.reporter.Enter(v1::PHASE_EVALUATE);
  ASSIGN_OR_RETURN(evaluation_,
                   parts_.evaluator->Run(parts_.replica.decoder(), parts_.memory.EvaluationRows(),
                                         [this] { parts_.memory.Free(); }));
  evaluated_step_ = parts_.replica.step();
  parts_.accounts.Book(TimeAccount::kEvaluate);
  NoteProgress();
  return absl::OkStatus();
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
  parts_.reporter.Evaluated(std::move(report));
}

absl::Status Milestones::Save() {
  if (parts_.spec.checkpoint().keep_best() > 0) RETURN_IF_ERROR(Evaluate());
  parts_.reporter.Enter(v1::PHASE_CHECKPOINT);
  if (absl::Status equal = CheckReplicasEqual(parts_.context, parts_.replica); !equal.ok()) {
    // Whoever started from it would go on with the same fault.
    if (parts_.warm != nullptr && absl::IsInternal(equal)) parts_.warm->Clear();
    return equal;
  }
  std::optional<double> loss;
  if (evaluation_ && evaluated_step_ == parts_.replica.step()) loss = evaluation_->loss;
  // A checkpoint that could not be written is reported by the saver.
  ASSIGN_OR_RETURN(const SharedOutcome outcome, parts_.saver.Save(parts_.replica, loss));
  (void)outcome;
  parts_.accounts.Book(TimeAccount::kCheckpoint);
  return absl::OkStatus();
}

absl::StatusOr<bool> Milestones::SaveForGood(StepBoundary& boundary) {
  while (parts_.saver.last_step() != parts_.replica.step()) {
    RETURN_IF_ERROR(Save());
    if (parts_.saver.last_step() == parts_.replica.step()) break;
    ASSIGN_OR_RETURN(const bool retry, boundary.WaitToRetry(parts_.replica.step()));
    if (!retry) return false;
  }
  return true;
}

}  // namespace espalier
