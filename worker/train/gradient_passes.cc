#include "worker/train/gradient_passes.h"

#include <cmath>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/sync/exact_sums.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {

GradientPasses::GradientPasses(const Parts& parts)
    : parts_(parts),
      micro_batches_(parts.memory.governor(),
                     [this] {
                       transfers_.KeepNothing();
                       parts_.memory.Free();
                     }),
      pace_(parts.pace, parts.context.clock),
      count_(parts.replica.model().device()),
      worked_([this, worked = LayerProgress(parts.context, parts.replica.model().device())](
                  int64_t next) {
        count_.Add();
        worked(next);
        pace_.Hold();
      }),
      transfers_(parts.replica.model().device()) {}

absl::StatusOr<EmbeddingRows> GradientPasses::BeginStep(const Samples& samples) {
  absl::StatusOr<EmbeddingRows> lookup = parts_.synchroniser.Begin(samples.tokens);
  if (!absl::IsResourceExhausted(lookup.status())) return lookup;
  parts_.memory.Free();  // nothing has begun
  return parts_.synchroniser.Begin(samples.tokens);
}

void GradientPasses::Pass(const Samples& samples, SlotRange rows, const PassInputs& step_inputs,
                          bool last) {
  PassInputs inputs = step_inputs;
  if (last && parts_.context.collective.world_size() > 1) {
    inputs.gradients_final = [this](int64_t end) {
      parts_.synchroniser.GradientsFinal(end);
      count_.Add();
    };
  }
  torch::Tensor loss = Compute(samples, rows, inputs);
  if (!last) parts_.synchroniser.PassDone();
  losses_.push_back(std::move(loss));  // it counts when nothing can fail any more
  parts_.context.progress.Worked();
}

torch::Tensor GradientPasses::Compute(const Samples& samples, SlotRange rows, PassInputs& inputs) {
  Replica& replica = parts_.replica;
  if (pace_.pretends()) {
    pace_.Pretend(rows.size(), replica.parameters().elements_before_embedding(), inputs);
    return torch::zeros({});
  }
  pace_.Begin();
  TokenBatch batch = parts_.task.Batch(samples, rows, transfers_);
  batch.results_known = [this] { transfers_.Follow(); };
  inputs.dropout = MakeDropoutKeys(parts_.spec, replica.step().value(), samples, rows, transfers_);
  torch::Tensor loss = parts_.runner.Run(batch, inputs, replica.counters().loss_scale.value());
  if (!batch.results.empty()) {
    parts_.task.Send(replica.step(), samples, rows, batch.results, replica.slots(), transfers_);
    left_.push_back({rows, std::move(batch.results)});
  }
  return loss;
}

absl::StatusOr<StepTotals> GradientPasses::Run(const Samples& shard) {
  const bool alike = shard.counted.empty();
  const Samples sorted = alike ? Samples{} : LongestFirst(shard);
  const Samples& samples = alike ? shard : sorted;
  parts_.memory.Restart();
  losses_.clear();
  left_.clear();
  transfers_.KeepNewOnly();  // of the step before, or an attempt at this one, which is of no use
  absl::StatusOr<EmbeddingRows> lookup = BeginStep(samples);
  if (!lookup.ok()) return parts_.memory.WithAdvice(lookup.status());
  std::vector<torch::Tensor> leaves = parts_.replica.parameters().GradientLeaves();
  if (lookup->rows.defined()) leaves.push_back(lookup->rows);
  PassInputs inputs;
  inputs.lookup = *std::move(lookup);
  inputs.worked = worked_;
  RETURN_IF_ERROR(parts_.memory.WithAdvice(
      micro_batches_.Run(samples.rows(), std::move(leaves),
                         [&](SlotRange rows, bool last) { Pass(samples, rows, inputs, last); })));
  // A device may still be computing. Buckets follow it as they become final; then losses are known.
  RETURN_IF_ERROR(parts_.memory.WithAdvice(parts_.synchroniser.PassesDone()));
  RETURN_IF_ERROR(CatchTorch("counting", [this] { count_.Add(); }));
  StepTotals mine;
  RETURN_IF_ERROR(CatchTorch("reading losses", [&] {
    transfers_.Join();  // what was sent is there when the losses are
    const bool exact = parts_.spec.train().reproducible();
    for (const torch::Tensor& loss : losses_) {
      mine.loss += exact ? RoundedForSum(loss.item<double>()) : loss.item<double>();
    }
    Replica& replica = parts_.replica;
    for (const Left& left : left_) {
      parts_.task.Keep(replica.model(), replica.step(), samples, left.rows, left.results,
                       replica.slots());
    }
    left_.clear();
  }));
  RETURN_IF_ERROR(count_.Check());
  mine.tokens = parts_.task.LossTokens(samples, {0, samples.rows()});
  mine.finite = std::isfinite(mine.loss) ? 1 : 0;
  return mine;
}

}  // namespace espalier
