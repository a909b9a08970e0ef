#include "worker/train/reporter.h"

#include <utility>

namespace espalier {

StepReporter::StepReporter(const RankContext& context, ControlLink& link, StepObserver* observer)
    : context_(context), link_(link), observer_(observer) {}

void StepReporter::Step(v1::StepReport report, TimeAccounts& accounts) {
  report.set_compute_seconds(accounts.Seconds(TimeAccount::kCompute));
  report.set_exchange_wait_seconds(accounts.Seconds(TimeAccount::kExchangeWait));
  report.set_data_wait_seconds(accounts.Seconds(TimeAccount::kDataWait));
  report.set_update_seconds(accounts.Seconds(TimeAccount::kUpdate));
  report.set_step_seconds(accounts.StepSeconds());
  report.set_checkpoint_seconds(accounts.Seconds(TimeAccount::kCheckpoint));
  report.set_evaluate_seconds(accounts.Seconds(TimeAccount::kEvaluate));
  report.set_paused_seconds(accounts.Seconds(TimeAccount::kPaused));
  accounts.Clear();
  AddExchange(report);
  if (observer_ != nullptr) observer_->OnStep(report);
  v1::AttachRequest message;
  *message.mutable_step() = std::move(report);
  link_.Report(std::move(message));
}

void StepReporter::AddExchange(v1::StepReport& report) {
  CollectiveStats stats = context_.collective.stats();
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

void StepReporter::Evaluated(int64_t step, const Evaluation& evaluation) {
  if (context_.collective.rank() != Rank(0)) return;
  v1::AttachRequest message;
  v1::EvaluationReport& report = *message.mutable_evaluation();
  report.set_step(step);
  report.set_loss(evaluation.loss);
  report.set_tokens(evaluation.tokens);
  report.set_seconds(evaluation.seconds);
  if (observer_ != nullptr) observer_->OnEvaluation(report);
  link_.Report(std::move(message));
}

void StepReporter::Acknowledge(int64_t directive, v1::RunState state, int64_t next_step) {
  v1::AttachRequest message;
  message.mutable_ack()->set_number(directive);
  message.mutable_ack()->set_run_state(state);
  message.mutable_ack()->set_next_step(next_step);
  link_.Report(std::move(message));
}

void StepReporter::Enter(v1::Phase phase) {
  context_.progress.collective = context_.collective.stats().completed;
  context_.progress.Enter(phase);
}

}  // namespace espalier
