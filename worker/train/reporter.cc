#include "worker/train/reporter.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/observe/log.h"

namespace espalier {
namespace {

void TakeSeconds(TimeAccounts& accounts, v1::StepReport& report) {
  report.set_compute_seconds(accounts.Seconds(TimeAccount::kCompute));
  report.set_exchange_wait_seconds(accounts.Seconds(TimeAccount::kExchangeWait));
  report.set_data_wait_seconds(accounts.Seconds(TimeAccount::kDataWait));
  report.set_update_seconds(accounts.Seconds(TimeAccount::kUpdate));
  report.set_step_seconds(accounts.StepSeconds());
  report.set_checkpoint_seconds(accounts.Seconds(TimeAccount::kCheckpoint));
  report.set_evaluate_seconds(accounts.Seconds(TimeAccount::kEvaluate));
  report.set_paused_seconds(accounts.Seconds(TimeAccount::kPaused));
  report.set_rollout_seconds(accounts.Seconds(TimeAccount::kRollout));
  report.set_reward_seconds(accounts.Seconds(TimeAccount::kReward));
  accounts.Clear();
}

// "  accuracy 0.9375  steps 3.5", or nothing.
std::string Text(const google::protobuf::RepeatedPtrField<v1::TaskFigure>& figures) {
  std::string text;
  for (const v1::TaskFigure& figure : figures) {
    absl::StrAppendFormat(&text, "  %s %.4g", figure.name(), figure.value());
  }
  return text;
}

}  // namespace

google::protobuf::RepeatedPtrField<v1::TaskFigure> ToProto(const std::vector<TaskFigure>& figures) {
  google::protobuf::RepeatedPtrField<v1::TaskFigure> made;
  for (const TaskFigure& figure : figures) {
    v1::TaskFigure& one = *made.Add();
    one.set_name(std::string(figure.name));
    one.set_value(figure.value);
  }
  return made;
}

void ConsoleReporter::OnStep(const v1::StepReport& report) {
  tokens_ += report.tokens();
  ++steps_;
  seconds_ += report.step_seconds() + report.checkpoint_seconds() + report.evaluate_seconds() +
              report.rollout_seconds() + report.reward_seconds();
  const bool last = report.step() + 1 == total_steps_;
  const absl::Duration now = clock_.Monotonic();
  if (!last && now - last_line_ < interval_) return;
  const double seconds = seconds_ > 0 ? seconds_ : 1e-9;
  const int64_t left = total_steps_ - report.step() - 1;
  const absl::Duration eta =
      absl::Seconds(static_cast<int64_t>(static_cast<double>(left) * seconds / steps_ + 0.5));
  LogInfo(absl::StrCat(
      absl::StrFormat("step %d/%d  loss %.4f  norm %.3f  lr %.3g  %.0f %s/s  %.0f MB  %s left",
                      report.step() + 1, total_steps_, report.loss(), report.gradient_norm(),
                      report.learning_rate(), static_cast<double>(tokens_) / seconds,
                      units_.of_steps, static_cast<double>(report.pass_peak_bytes()) / 1e6,
                      absl::FormatDuration(eta)),
      Text(report.figures()),
      !report.skipped()      ? ""
      : report.tokens() == 0 ? "  (no update: there is nothing to learn)"
                             : "  (update skipped: not finite)"));
  last_line_ = now;
  tokens_ = steps_ = 0;
  seconds_ = 0;
}

void ConsoleReporter::OnEvaluation(const v1::EvaluationReport& report) {
  LogInfo(absl::StrCat(
      absl::StrFormat("validation after step %d: loss %.4f", report.step(), report.loss()),
      Text(report.figures()),
      absl::StrFormat(" (%d %s, %.1f s)", report.tokens(), units_.of_evaluations,
                      report.seconds())));
}

StepReporter::StepReporter(const RankContext& context, ControlClient& client,
                           StepObserver* observer)
    : context_(context), client_(client), observer_(observer) {}

void StepReporter::Step(v1::StepReport report, TimeAccounts& accounts) {
  TakeSeconds(accounts, report);
  AddExchange(report);
  if (observer_ != nullptr) observer_->OnStep(report);
  v1::AttachRequest message;
  *message.mutable_step() = std::move(report);
  client_.Report(std::move(message));
}

void StepReporter::Practised(int64_t step, int64_t kept, const std::string& error,
                             TimeAccounts& accounts) {
  v1::AttachRequest message;
  v1::Practised& told = *message.mutable_practised();
  told.set_step(step);
  told.set_kept(kept);
  told.set_error(error);
  TakeSeconds(accounts, *told.mutable_accounts());
  client_.Report(std::move(message));
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

void StepReporter::Evaluated(v1::EvaluationReport report) {
  if (context_.collective.rank() != Rank(0)) return;
  if (observer_ != nullptr) observer_->OnEvaluation(report);
  v1::AttachRequest message;
  *message.mutable_evaluation() = std::move(report);
  client_.Report(std::move(message));
}

void StepReporter::Acknowledge(int64_t directive, v1::RunState state, int64_t next_step) {
  v1::AttachRequest message;
  message.mutable_ack()->set_number(directive);
  message.mutable_ack()->set_run_state(state);
  message.mutable_ack()->set_next_step(next_step);
  client_.Report(std::move(message));
}

void StepReporter::Enter(v1::Phase phase) {
  context_.progress.collective = context_.collective.stats().completed;
  context_.progress.Enter(phase);
}

}  // namespace espalier
