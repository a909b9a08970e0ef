#include "worker/train/trainer.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/optimizer/schedule.h"
#include "worker/tensor/torch_compat.h"
#include "worker/train/plan.h"
#include "worker/train/token_batch.h"

namespace espalier {

Trainer::Trainer(const v1::JobSpec& spec, const Parts& parts, Options options)
    : spec_(spec),
      parts_(parts),
      options_(options),
      collective_(parts.context.collective),
      replica_(parts.replica),
      meter_(replica_.decoder().device(), parts.context.clock),
      runner_(replica_.decoder(), replica_.parameters()),
      passes_(governor_, [this] { FreeMemory(); }),
      transfers_(replica_.decoder().device()),
      exchange_(collective_, replica_.parameters().flat_gradient(),
                BucketEnds(replica_.parameters().all(), options.bucket_elements),
                {WireOf(spec.parallel().gradient_dtype()), &replica_.residual()}),
      accounts_(parts.context.clock) {}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const v1::JobSpec& spec,
                                                         const Parts& parts, Options options) {
  const int ranks = parts.context.collective.world_size();
  ASSIGN_OR_RETURN(v1::ShardPlan plan, PlanFromShares(spec, ranks));
  auto trainer = std::unique_ptr<Trainer>(new Trainer(spec, parts, options));
  trainer->default_plan_ = std::move(plan);
  RETURN_IF_ERROR(trainer->SetUpGovernor());
  return trainer;
}

absl::StatusOr<v1::Outcome> Trainer::Run() {
  parts_.context.progress.step = replica_.step().value();
  while (replica_.step().value() < spec_.train().steps()) {
    ASSIGN_OR_RETURN(const StepEnd end, TrainStep());
    if (end == StepEnd::kStopped) return v1::OUTCOME_STOPPED;
    if (end == StepEnd::kStoppedToResume) return SaveForGood(v1::OUTCOME_STOPPED);
    RETURN_IF_ERROR(AfterStep());
  }
  RETURN_IF_ERROR(Evaluate());
  return SaveForGood(v1::OUTCOME_COMPLETED);
}

absl::StatusOr<Trainer::StepEnd> Trainer::TrainStep() {
  // 1. Boundary: all ranks take what rank 0 was told, and obey it here.
  ASSIGN_OR_RETURN(const Boundary boundary, ObeyBoundary());
  if (boundary.state() == v1::RUN_STATE_STOP) {
    return boundary.checkpoint_before_stop ? StepEnd::kStoppedToResume : StepEnd::kStopped;
  }
  RETURN_IF_ERROR(AdoptPlan(boundary));

  // 2. The samples of my shard.
  Enter(v1::PHASE_DATA_WAIT);
  ASSIGN_OR_RETURN(const std::shared_ptr<const Samples> samples,
                   parts_.samples.Fetch(replica_.step(), shard_));
  accounts_.Book(Account::kDataWait);

  // 3. How many of them a pass holds, in the first step, and how passes are run.
  Enter(v1::PHASE_COMPUTE);
  RETURN_IF_ERROR(Probe(*samples));
  RecordPasses();

  // 4. Gradient sums over my shard. The last pass hands each bucket over as it becomes final.
  PartSums mine;
  RETURN_IF_ERROR(BackwardPasses(*samples, mine));
  accounts_.Book(Account::kCompute);

  // 5. Sums over all ranks.
  Enter(v1::PHASE_EXCHANGE);
  RETURN_IF_ERROR(parts_.lookups.Start());
  TrimIfDue();
  RETURN_IF_ERROR(exchange_.Finish());
  RETURN_IF_ERROR(parts_.lookups.Finish());
  accounts_.Book(Account::kExchangeWait);
  if (collective_.rank() == Rank(0)) mine.norm = replica_.optimizer().GradientNorm();
  accounts_.Book(Account::kUpdate);
  ASSIGN_OR_RETURN(const PartSums total, SumParts(mine));
  accounts_.Book(Account::kExchangeWait);

  // 6. Mean gradient, clipped, into the update; or none, on all ranks, when a rank's values or the
  // sums are not finite. Every rank computes the same bits.
  Enter(v1::PHASE_UPDATE);
  AdamW& optimizer = replica_.optimizer();
  LossScale& loss_scale = replica_.counters().loss_scale;
  const double tokens = static_cast<double>(total.tokens), scaled = tokens * loss_scale.value();
  const double norm = total.norm / scaled;
  const bool finite = total.finite && std::isfinite(norm);
  const bool expected = loss_scale.Adjust(finite);
  if (finite) {
    optimizer.Apply({.learning_rate = boundary.learning_rate,
                     .gradient_scale = ClipFactor(norm, spec_.train().clip_norm()) / scaled});
    replica_.counters().skipped_in_a_row = 0;
  } else {
    RETURN_IF_ERROR(SkipUpdate(total, expected));
  }
  replica_.counters().updates = optimizer.updates();
  ++replica_.counters().step;
  accounts_.Book(Account::kUpdate);

  // 7. Report.
  v1::StepReport report;
  report.set_step(boundary.step);
  report.set_loss(total.loss / tokens);
  report.set_tokens(total.tokens);
  report.set_gradient_norm(norm);
  report.set_learning_rate(boundary.learning_rate);
  report.set_skipped(!finite);
  return ReportStep(std::move(report), *samples);
}

// Leaves the gradient sums of the shard, times the loss scale, in the flat gradient, zero before.
// Those of lookups apart from it come with LookupExchange::Finish.
// An empty shard adds nothing; its rank's buckets start in GradientExchange::Begin.
absl::Status Trainer::BackwardPasses(const Samples& samples, PartSums& sums) {
  Decoder& decoder = replica_.decoder();
  const double scale = replica_.counters().loss_scale.value();
  meter_.Restart();
  losses_.clear();
  absl::StatusOr<Decoder::Lookup> lookup = parts_.lookups.Begin(samples.tokens);
  if (absl::IsResourceExhausted(lookup.status())) {  // before anything has begun
    FreeMemory();
    lookup = parts_.lookups.Begin(samples.tokens);
  }
  if (!lookup.ok()) return WithMemoryAdvice(lookup.status());
  std::vector<torch::Tensor> roles = replica_.parameters().Roles();
  if (lookup->rows.defined()) roles.push_back(lookup->rows);
  const bool involved = collective_.world_size() > 1 || lookup->rows.defined();
  const auto kind = involved ? PassRunner::Kind::kInvolved : PassRunner::Kind::kPlain;
  decoder.set_lookup(*lookup);
  absl::Status status =
      passes_.Run(samples.rows(), std::move(roles), [&](SlotRange rows, bool last) {
        decoder.set_gradients_final({});
        if (last) decoder.set_gradients_final([this](int64_t end) { exchange_.Final(end); });
        const TokenBatch batch = MakeTokenBatch(samples, rows, transfers_);
        const DropoutKeys dropout =
            MakeDropoutKeys(spec_, replica_.step().value(), samples, rows, transfers_);
        losses_.push_back(runner_.Run(batch, dropout, scale, kind));
        sums.tokens += batch.targets.numel();
        parts_.context.progress.Worked();
      });
  decoder.set_gradients_final({});
  decoder.set_lookup({});
  // A device may still be computing. Buckets follow it as they become final; then losses are known.
  if (status.ok()) status = exchange_.Begin();
  if (status.ok()) {
    status = CatchTorch("reading losses", [&] {
      for (const torch::Tensor& loss : losses_) sums.loss += loss.item<double>();
    });
  }
  sums.finite = std::isfinite(sums.loss) ? 1 : 0;
  return WithMemoryAdvice(status);
}

// The norm is rank 0's, so that devices that round differently clip and skip alike.
absl::StatusOr<Trainer::PartSums> Trainer::SumParts(const PartSums& mine) {
  ASSIGN_OR_RETURN(const std::vector<PartSums> parts, GatherValues(collective_, mine));
  PartSums total{.norm = parts[0].norm};
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    total.loss += parts[rank].loss;
    total.tokens += parts[rank].tokens;
    total.finite &= parts[rank].finite;
  }
  return total;
}

absl::Status Trainer::SkipUpdate(const PartSums& total, bool expected) {
  TrainingCounters& counters = replica_.counters();
  replica_.parameters().ZeroGradients();
  ++counters.skipped;
  if (expected) return absl::OkStatus();
  ++counters.skipped_in_a_row;
  const std::string what = absl::StrCat("step ", counters.step, ": the ",
                                        total.finite ? "gradient" : "loss", " is not finite");
  if (spec_.health().non_finite() == v1::NON_FINITE_POLICY_FAIL) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " and health.non_finite is 'fail'; try a lower learning rate"));
  }
  if (counters.skipped_in_a_row > spec_.health().max_skipped_steps()) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, ", after ", counters.skipped_in_a_row - 1,
        " skipped steps in a row (health.max_skipped_steps); try a lower learning rate"));
  }
  return absl::OkStatus();
}

void Trainer::Enter(v1::Phase phase) {
  ProgressBoard& progress = parts_.context.progress;
  progress.collective = collective_.stats().completed;
  progress.Enter(phase);
}

}  // namespace espalier
