#include "worker/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/tensor/torch_compat.h"
#include "worker/train/layer_progress.h"

namespace espalier {

Trainer::Trainer(const v1::JobSpec& spec, const Parts& parts)
    : spec_(spec),
      parts_(parts),
      replica_(parts.replica),
      accounts_(parts.context.clock),
      reporter_(parts.context, parts.client, parts.observer),
      runner_(parts.task, replica_.model(), replica_.parameters()),
      worked_(LayerProgress(parts.context, replica_.model().device())) {}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const v1::JobSpec& spec,
                                                         const Parts& parts, Options options) {
  auto trainer = std::unique_ptr<Trainer>(new Trainer(spec, parts));
  Trainer& t = *trainer;
  ASSIGN_OR_RETURN(
      StepBoundary boundary,
      StepBoundary::Create({t.spec_, parts.context, parts.client, t.replica_.counters().validation,
                            t.reporter_, t.accounts_},
                           options.boundary));
  t.boundary_.emplace(std::move(boundary));
  ASSIGN_OR_RETURN(t.memory_,
                   PassMemory::Create({t.spec_, parts.context, parts.task, t.replica_, t.runner_},
                                      options.memory));
  t.passes_.emplace(GradientPasses::Parts{t.spec_, parts.context, parts.task, t.replica_,
                                          parts.synchroniser, *t.memory_, t.runner_, options.pace});
  t.milestones_.emplace(Milestones::Parts{t.spec_, t.parts_.context, *t.boundary_, t.replica_,
                                          parts.warm, parts.saver, parts.evaluator, *t.memory_,
                                          t.reporter_, t.accounts_, [&t] { t.ReportPractised(); }});
  return trainer;
}

// The edge of the step: whatever LibTorch throws in it ends the run with a reason.
absl::StatusOr<v1::Outcome> Trainer::Run() {
  absl::StatusOr<v1::Outcome> outcome = absl::UnknownError("not run");
  const absl::Status status = CatchTorch("training", [&] { outcome = RunSteps(); });
  if (status.ok()) {
    ReportPractised();
    return outcome;
  }
  absl::Status named(status.code(),
                     absl::StrCat("step ", replica_.step().value(), ", ", status.message()));
  // Which ranks failed, or are silent.
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { named.SetPayload(type, payload); });
  return named;
}

absl::StatusOr<v1::Outcome> Trainer::RunSteps() {
  parts_.context.progress.step = replica_.step().value();
  for (;;) {
    ASSIGN_OR_RETURN(const StepEnd end, Ends() ? EndRun() : TrainStep());
    switch (end) {
      case StepEnd::kCommitted:
        RETURN_IF_ERROR(milestones_->AfterStep());
        break;
      case StepEnd::kNotBegun:
        ReportPractised();
        break;
      case StepEnd::kStopped:
        return v1::OUTCOME_STOPPED;
      case StepEnd::kStoppedToResume: {
        ASSIGN_OR_RETURN(saved_for_good_, milestones_->SaveForGood());
        if (!boundary_->called_off()) return v1::OUTCOME_STOPPED;
        break;
      }
      case StepEnd::kCompleted:
        return v1::OUTCOME_COMPLETED;
    }
  }
}

// What is not booked yet went into keeping it.
void Trainer::ReportPractised() {
  accounts_.Book(TimeAccount::kCheckpoint);
  const Practice* practice = parts_.practice;
  reporter_.Practised(replica_.step().value(), practice != nullptr ? practice->kept() : 0,
                      practice != nullptr ? practice->WhyItKeepsNothing() : "", accounts_);
}

absl::StatusOr<Trainer::StepEnd> Trainer::EndRun() {
  const ValidationProgress& progress = replica_.counters().validation;
  if (progress.Ends(spec_) && progress.best_step == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("in ", progress.without_gain,
                     " evaluations in a row (evaluate.patience) the validation "
                     "loss was not finite; try a lower learning rate"));
  }
  ASSIGN_OR_RETURN(const bool evaluated, milestones_->Evaluate());
  if (!evaluated) {
    ASSIGN_OR_RETURN(const Boundary boundary, MeetBoundary());
    return StopOf(boundary).value_or(StepEnd::kNotBegun);
  }
  ASSIGN_OR_RETURN(saved_for_good_, milestones_->SaveForGood());
  return saved_for_good_ ? StepEnd::kCompleted : StepEnd::kStopped;
}

absl::StatusOr<Boundary> Trainer::MeetBoundary() {
  return boundary_->Obey(replica_.step(), [this](const Boundary& message, bool asked) {
    return milestones_->AtBoundary(message, asked);
  });
}

std::optional<Trainer::StepEnd> Trainer::StopOf(const Boundary& boundary) {
  if (boundary.state() != v1::RUN_STATE_STOP) return std::nullopt;
  return boundary.checkpoint_before_stop ? StepEnd::kStoppedToResume : StepEnd::kStopped;
}

bool Trainer::Ends() const {
  return replica_.step().value() >= spec_.train().steps() ||
         replica_.counters().validation.Ends(spec_);
}

std::string Trainer::why_early() const {
  const ValidationProgress& progress = replica_.counters().validation;
  const bool early = replica_.step().value() < spec_.train().steps() && progress.Ends(spec_);
  return early ? progress.WhyItEnds(spec_) : "";
}

std::string Trainer::learnt_nothing() const {
  const std::string why =
      parts_.practice != nullptr ? parts_.practice->WhyItTaughtNothing() : std::string();
  const TrainingCounters& counters = replica_.counters();
  if (!why.empty() || counters.step == 0 || counters.updates > 0) return why;
  return absl::StrCat("none of the ", counters.step,
                      " steps made an update: there was nothing to learn from, or no gradient was "
                      "finite; the log says which of each step");
}

absl::StatusOr<Trainer::StepEnd> Trainer::TrainStep() {
  // 1. Boundary: all ranks take what rank 0 was told, and obey it here.
  // What a checkpoint found out there may change the message's learning rate, or be the end.
  const uint64_t progress = replica_.counters().validation.Fingerprint();
  ASSIGN_OR_RETURN(const Boundary boundary, MeetBoundary());
  if (const std::optional<StepEnd> stop = StopOf(boundary)) return *stop;
  if (replica_.counters().validation.Fingerprint() != progress) return StepEnd::kNotBegun;
  ASSIGN_OR_RETURN(const SlotRange shard, boundary_->Shard(boundary));

  // 2. The samples of my shard, which all ranks may have to make first.
  ASSIGN_OR_RETURN(const bool made, Practise());
  if (!made) return StepEnd::kNotBegun;
  reporter_.Enter(v1::PHASE_DATA_WAIT);
  ASSIGN_OR_RETURN(const std::shared_ptr<const Samples> samples, SamplesOf(shard));
  accounts_.Book(TimeAccount::kDataWait);

  // 3. How many of them a micro-batch holds, in the first step, and how passes are run.
  reporter_.Enter(v1::PHASE_COMPUTE);
  RETURN_IF_ERROR(memory_->Probe(parts_.synchroniser.LookupBytes(samples->tokens)));
  if (milestones_->MissesEvaluation()) {  // which may change the learning rate, or be the last
    accounts_.Book(TimeAccount::kCompute);
    RETURN_IF_ERROR(milestones_->MakeUp());
    return StepEnd::kNotBegun;
  }
  memory_->RecordPasses(shard.size(), passes_->largest());

  // 4. Gradient sums over my shard. The last pass hands gradients over as they become final.
  ASSIGN_OR_RETURN(StepTotals mine, passes_->Run(*samples));
  accounts_.Book(TimeAccount::kCompute);

  // 5. Sums over all ranks. Each has logged its samples before any commits the step.
  reporter_.Enter(v1::PHASE_EXCHANGE);
  memory_->TrimIfDue(replica_.step());
  RETURN_IF_ERROR(memory_->WithAdvice(parts_.synchroniser.FinishSums()));
  if (replica_.slots().kept()) {
    RETURN_IF_ERROR(replica_.slots().Share(parts_.context.collective, shard, replica_.step()));
  }
  accounts_.Book(TimeAccount::kExchangeWait);
  const absl::Status logged = LogSamples(*samples);
  mine.failed = !logged.ok();
  ASSIGN_OR_RETURN(const StepTotals total, parts_.synchroniser.Agree(mine));
  const bool leads = parts_.context.collective.rank() == Rank(0);  // and computes the norm for all
  accounts_.Book(leads ? TimeAccount::kUpdate : TimeAccount::kExchangeWait);
  if (total.failed > 0) {
    ASSIGN_OR_RETURN(const SharedOutcome outcome, ShareStatus(parts_.context.collective, logged));
    return outcome.status;
  }

  // 6. Mean gradient, clipped, into the update; or none, on all ranks. Every rank computes the same
  // bits.
  reporter_.Enter(v1::PHASE_UPDATE);
  v1::StepReport report;
  report.set_step(boundary.step);
  report.set_learning_rate(boundary.learning_rate);
  *report.mutable_figures() = ToProto(parts_.task.StepFigures(replica_.step(), replica_.slots()));
  milestones_->BeforeUpdate();
  RETURN_IF_ERROR(UpdateOrSkip(total, report));
  accounts_.Book(TimeAccount::kUpdate);

  // 7. Report.
  parts_.context.progress.step = replica_.step().value();
  report.set_shard(static_cast<int32_t>(samples->rows()));
  memory_->Report(passes_->largest(), report);
  reporter_.Step(std::move(report), accounts_);
  return StepEnd::kCommitted;
}

absl::StatusOr<bool> Trainer::Practise() {
  if (parts_.practice == nullptr) return true;
  if (milestones_->MissesEvaluation()) {
    RETURN_IF_ERROR(milestones_->MakeUp());
    return false;
  }
  RolloutAround around{.shares = boundary_->sequences(),
                       .limit = [this] { return boundary_->limit(); },
                       .called_away = [this] { return boundary_->CallsAway(); },
                       .begins = nullptr,
                       .done = nullptr,
                       .worked = worked_,
                       .free_memory = [this] { memory_->Free(); },
                       .step = replica_.step().value()};
  const auto judges = [](RolloutPart part) { return part == RolloutPart::kJudging; };
  around.begins = [&](RolloutPart part) {
    reporter_.Enter(judges(part) ? v1::PHASE_REWARD : v1::PHASE_ROLLOUT);
  };
  around.done = [&](RolloutPart part) {
    accounts_.Book(judges(part) ? TimeAccount::kReward : TimeAccount::kRollout);
  };
  return parts_.practice->Prepare(replica_.step(), replica_.model(), around, replica_.slots());
}

absl::StatusOr<std::shared_ptr<const Samples>> Trainer::SamplesOf(SlotRange shard) {
  auto fresh = std::make_shared<const Samples>();
  if (parts_.practice == nullptr || !replica_.slots().kept()) {
    ASSIGN_OR_RETURN(fresh, parts_.samples.Fetch(replica_.step(), shard));
  }
  if (!replica_.slots().kept()) return fresh;
  ASSIGN_OR_RETURN(Samples samples,
                   parts_.task.Continue(replica_.step(), shard, *fresh, replica_.slots()));
  return std::make_shared<const Samples>(std::move(samples));
}

// Commits the step. No update when a rank's loss or the sum of the gradients is not finite.
absl::Status Trainer::UpdateOrSkip(const StepTotals& total, v1::StepReport& report) {
  TrainingCounters after = replica_.counters();
  ++after.step;
  if (parts_.practice != nullptr) after.learns_from = parts_.practice->learns_from();
  const bool empty = total.tokens == 0;  // nothing of it counts: there is no gradient
  const double tokens = static_cast<double>(std::max<int64_t>(total.tokens, 1));
  const double before = after.loss_scale.value();
  const double scaled = tokens * before;
  const double norm = total.norm / scaled;
  const bool finite = total.finite && std::isfinite(norm);
  // The loss itself is not scaled.
  const bool expected = total.finite && after.loss_scale.Adjust(std::isfinite(norm));
  replica_.residual().Rescale(after.loss_scale.value() / before);
  if (empty) {
    RETURN_IF_ERROR(parts_.synchroniser.Skip());
    ++after.skipped;
  } else if (finite) {
    after.updates = replica_.optimizer().updates() + 1;
    after.skipped_in_a_row = 0;
    RETURN_IF_ERROR(Update({.learning_rate = report.learning_rate(),
                            .gradient_scale = ClipFactor(norm, spec_.train().clip_norm()) / scaled},
                           after));
  } else {
    RETURN_IF_ERROR(SkipUpdate(total, expected, after));
  }
  replica_.counters() = after;
  if (parts_.warm != nullptr) parts_.warm->Commit(after);
  report.set_loss(total.loss / tokens);
  report.set_tokens(total.tokens);
  report.set_gradient_norm(norm);
  report.set_skipped(!finite || empty);
  return absl::OkStatus();
}

// With a warm state it will be made from here on, if not by this process.
absl::Status Trainer::Update(const AdamW::Update& update, const TrainingCounters& after) {
  if (parts_.warm != nullptr) parts_.warm->Begin(after, update);
  return parts_.synchroniser.Update(update);
}

absl::Status Trainer::SkipUpdate(const StepTotals& total, bool expected, TrainingCounters& after) {
  RETURN_IF_ERROR(parts_.synchroniser.Skip());
  ++after.skipped;
  if (expected) return absl::OkStatus();
  ++after.skipped_in_a_row;
  const std::string what = absl::StrCat("step ", replica_.step().value(), ": the ",
                                        total.finite ? "gradient" : "loss", " is not finite");
  if (spec_.health().non_finite() == v1::NON_FINITE_POLICY_FAIL) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " and health.non_finite is 'fail'; try a lower learning rate"));
  }
  if (after.skipped_in_a_row > spec_.health().max_skipped_steps()) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, ", after ", after.skipped_in_a_row - 1,
        " skipped steps in a row (health.max_skipped_steps); try a lower learning rate"));
  }
  return absl::OkStatus();
}

absl::Status Trainer::LogSamples(const Samples& samples) {
  if (parts_.sample_log == nullptr) return absl::OkStatus();
  return parts_.sample_log->Append(replica_.step(), samples.UsedIds());
}

}  // namespace espalier
