// What the trainer does between two steps: directives, plans, evaluation, checkpoints, reports.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/optimizer/schedule.h"
#include "worker/train/trainer.h"

namespace espalier {
namespace {

bool Due(int64_t step, int64_t every_steps) { return every_steps > 0 && step % every_steps == 0; }

}  // namespace

// Returns at the first message that does not say pause. A paused world stays in touch, so that it
// notices a lost rank, and uses no processor besides.
absl::StatusOr<Boundary> Trainer::ObeyBoundary() {
  v1::Phase phase = v1::PHASE_BOUNDARY;
  Account account = Account::kExchangeWait;
  for (;;) {
    Enter(phase);
    RETURN_IF_ERROR(parts_.link.status());
    ASSIGN_OR_RETURN(Boundary mine,
                     BoundaryFromDirective(parts_.link.directive(), replica_.step()));
    mine.learning_rate =
        LearningRate(spec_.train().schedule(), spec_.train().steps(), replica_.step());
    ASSIGN_OR_RETURN(const Boundary boundary, MeetAtBoundary(collective_, mine));
    accounts_.Book(account);
    if (boundary.checkpoint_request > checkpoints_obeyed_) {
      RETURN_IF_ERROR(Save());
      checkpoints_obeyed_ = boundary.checkpoint_request;
    }
    Acknowledge(boundary);
    if (boundary.state() != v1::RUN_STATE_PAUSE) return boundary;
    phase = v1::PHASE_PAUSED;
    account = Account::kPaused;
    Enter(phase);
    if (collective_.rank() == Rank(0)) {
      parts_.link.WaitForDirectiveAfter(boundary.directive, options_.pause_interval);
    }
  }
}

absl::Status Trainer::AdoptPlan(const Boundary& boundary) {
  const bool given = boundary.plan_ranks > 0;
  if (plan_ &&
      (!given || *plan_ >= boundary.plan || replica_.step().value() < boundary.plan_from_step)) {
    return absl::OkStatus();
  }
  std::vector<int64_t> sequences(default_plan_.sequences().begin(),
                                 default_plan_.sequences().end());
  if (given) {
    ASSIGN_OR_RETURN(sequences, SequencesOfPlan(boundary, collective_.world_size(),
                                                spec_.train().global_batch()));
  }
  ASSIGN_OR_RETURN(const std::vector<SlotRange> slots,
                   SlotsOfRanks(sequences, spec_.train().global_batch()));
  shard_ = slots[collective_.rank().value()];
  plan_ = given ? boundary.plan : -1;
  return absl::OkStatus();
}

void Trainer::Acknowledge(const Boundary& boundary) {
  if (boundary.directive <= acknowledged_) return;
  acknowledged_ = boundary.directive;
  v1::AttachRequest message;
  message.mutable_ack()->set_number(boundary.directive);
  message.mutable_ack()->set_run_state(boundary.state());
  message.mutable_ack()->set_next_step(boundary.step);
  parts_.link.Report(std::move(message));
}

absl::StatusOr<Trainer::StepEnd> Trainer::ReportStep(v1::StepReport report,
                                                     const Samples& samples) {
  if (parts_.sample_log != nullptr) {
    RETURN_IF_ERROR(parts_.sample_log->Append(Step(report.step()), samples.ids));
  }
  parts_.context.progress.step = replica_.step().value();
  report.set_shard(static_cast<int32_t>(samples.rows()));
  report.set_compute_seconds(accounts_.Seconds(Account::kCompute));
  report.set_exchange_wait_seconds(accounts_.Seconds(Account::kExchangeWait));
  report.set_data_wait_seconds(accounts_.Seconds(Account::kDataWait));
  report.set_update_seconds(accounts_.Seconds(Account::kUpdate));
  report.set_step_seconds(accounts_.StepSeconds());
  report.set_checkpoint_seconds(accounts_.Seconds(Account::kCheckpoint));
  report.set_evaluate_seconds(accounts_.Seconds(Account::kEvaluate));
  report.set_paused_seconds(accounts_.Seconds(Account::kPaused));
  accounts_.Clear();
  ReportExchange(report);
  ReportMemory(report);
  if (parts_.observer != nullptr) parts_.observer->OnStep(report);
  v1::AttachRequest message;
  *message.mutable_step() = std::move(report);
  parts_.link.Report(std::move(message));
  return StepEnd::kCommitted;
}

void Trainer::ReportExchange(v1::StepReport& report) {
  CollectiveStats stats = collective_.stats();
  report.set_exchange_bytes(stats.bytes_sent - reported_.bytes_sent);
  reported_.arrivals.resize(stats.arrivals.size());
  for (size_t rank = 0; rank < stats.arrivals.size(); ++rank) {
    const Arrivals &now = stats.arrivals[rank], &before = reported_.arrivals[rank];
    if (now.bytes == before.bytes) continue;
    v1::PeerArrivals& arrivals = *report.add_arrivals();
    arrivals.set_rank(static_cast<int32_t>(rank));
    arrivals.set_bytes(now.bytes - before.bytes);
    arrivals.set_seconds(now.seconds - before.seconds);
  }
  reported_ = std::move(stats);
}

absl::Status Trainer::AfterStep() {
  const int64_t step = replica_.step().value();
  if (step == spec_.train().steps()) return absl::OkStatus();  // the end of Run does both
  if (Due(step, spec_.evaluate().every_steps())) RETURN_IF_ERROR(Evaluate());
  if (Due(step, spec_.checkpoint().every_steps())) RETURN_IF_ERROR(Save());
  return absl::OkStatus();
}

absl::Status Trainer::Evaluate() {
  if (parts_.evaluator == nullptr || evaluated_step_ == replica_.step()) return absl::OkStatus();
  Enter(v1::PHASE_EVALUATE);
  absl::StatusOr<Evaluation> found =
      parts_.evaluator->Run(replica_.decoder(), governor_.micro_batch());
  if (absl::IsResourceExhausted(found.status()) && runner_.recorded_bytes() > 0) {
    FreeMemory();  // recorded passes, which a worker has only when it is alone
    found = parts_.evaluator->Run(replica_.decoder(), governor_.micro_batch());
  }
  ASSIGN_OR_RETURN(evaluation_, std::move(found));
  evaluated_step_ = replica_.step();
  accounts_.Book(Account::kEvaluate);
  if (collective_.rank() != Rank(0)) return absl::OkStatus();
  v1::AttachRequest message;
  v1::EvaluationReport& report = *message.mutable_evaluation();
  report.set_step(replica_.step().value());
  report.set_loss(evaluation_->loss);
  report.set_tokens(evaluation_->tokens);
  report.set_seconds(evaluation_->seconds);
  if (parts_.observer != nullptr) parts_.observer->OnEvaluation(report);
  parts_.link.Report(std::move(message));
  return absl::OkStatus();
}

// Goes on when the checkpoint could not be written: the older ones are there still.
absl::Status Trainer::Save() {
  if (spec_.checkpoint().keep_best() > 0) RETURN_IF_ERROR(Evaluate());
  Enter(v1::PHASE_CHECKPOINT);
  std::optional<double> loss;
  if (evaluation_ && evaluated_step_ == replica_.step()) loss = evaluation_->loss;
  ASSIGN_OR_RETURN(const SharedOutcome outcome, parts_.saver.Save(replica_, loss));
  accounts_.Book(Account::kCheckpoint);
  return absl::OkStatus();
}

// Before leaving for good: tries until the checkpoint is there or a directive says to stop without.
absl::StatusOr<v1::Outcome> Trainer::SaveForGood(v1::Outcome outcome) {
  while (parts_.saver.last_step() != replica_.step()) {
    RETURN_IF_ERROR(Save());
    if (parts_.saver.last_step() == replica_.step()) break;
    ASSIGN_OR_RETURN(const bool retry, WaitToRetry());
    if (!retry) return v1::OUTCOME_STOPPED;
  }
  return outcome;
}

absl::StatusOr<bool> Trainer::WaitToRetry() {
  const absl::Duration interval = std::min(options_.pause_interval, options_.save_retry_interval);
  const int64_t rounds = std::max<int64_t>(1, options_.save_retry_interval / interval);
  for (int64_t i = 0; i < rounds; ++i) {
    RETURN_IF_ERROR(parts_.link.status());
    ASSIGN_OR_RETURN(const Boundary mine,
                     BoundaryFromDirective(parts_.link.directive(), replica_.step()));
    ASSIGN_OR_RETURN(const Boundary boundary, MeetAtBoundary(collective_, mine));
    Acknowledge(boundary);
    const bool leave =
        boundary.state() == v1::RUN_STATE_STOP && boundary.checkpoint_before_stop == 0;
    if (leave) return false;
    if (collective_.rank() == Rank(0)) {
      parts_.link.WaitForDirectiveAfter(boundary.directive, interval);
    }
  }
  accounts_.Book(Account::kCheckpoint);
  return true;
}

}  // namespace espalier
