// Task: what a job trains its model to do. It turns the samples of a rank's shard into the losses
// of passes, and says what their sum is divided by: which samples there are, which tensors a pass
// over some of them takes, and which loss over which tokens, with which weights. Boundaries,
// passes, memory, exchange, update, reports and checkpoints know no task, and no task knows
// another. Implementations: next_token.h, deep_supervision.h, grpo.h, rft.h, dpo.h. Used
// by worker/train, worker/job_inputs.h and worker/session.h. Compute thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/observe/task_figures.h"
#include "espalier/v1/job.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/samples.h"
#include "worker/model/model.h"
#include "worker/state/slot_states.h"
#include "worker/task/practice.h"
#include "worker/task/token_batch.h"
#include "worker/tensor/torch.h"

namespace espalier {

class Task {
 public:
  virtual ~Task() = default;

  // The samples; of validation null where there are none.
  virtual std::shared_ptr<const SampleTable> training() const = 0;
  virtual std::shared_ptr<const SampleTable> validation() const = 0;

  // The rows `rows` of `samples` as the tensors of one pass: a function of these rows. No larger
  // than MadeUpBatch of as many.
  virtual TokenBatch Batch(const Samples& samples, SlotRange rows, Transfers& transfers) const = 0;
  // Such tensors of `rows` samples of no split: to measure what a pass takes, or to be filled in
  // later. Every token counts.
  virtual TokenBatch MadeUpBatch(int64_t rows, int64_t sequence_length,
                                 torch::Device device) const = 0;
  // How many tokens of the rows `rows` count: over all samples of a step, what divides the sum of
  // its losses and gradients.
  virtual int64_t LossTokens(const Samples& samples, SlotRange rows) const = 0;
  // The sum over the batch's tokens that count of their losses: a scalar on the device, to be
  // differentiated. Reads nothing but the batch and the model, so that it can be recorded. Throws
  // what LibTorch throws.
  virtual torch::Tensor LossSum(const Model& model, const TokenBatch& batch,
                                const PassInputs& inputs) const = 0;

  // Of a task whose samples take several steps: what a slot of the global batch keeps of one for
  // the next. By default nothing, and the two below are not called.
  virtual SlotStates::Size Keeps(const v1::JobSpec&, const DecoderConfig&) const { return {}; }
  // The samples with which the slots `shard` go on at `step`: those that they keep, or those of
  // `fresh`, which the order has for them. Reads those that are kept.
  virtual absl::StatusOr<Samples> Continue(Step, SlotRange /*shard*/, const Samples& fresh,
                                           SlotStates&) const {
    return fresh;
  }
  // The passes of a step are done, of which one with `model` over the rows `rows` has left
  // `results` (of its batch): writes what their slots keep. Throws what LibTorch throws.
  virtual void Keep(const Model&, Step, const Samples&, SlotRange /*rows*/,
                    const std::vector<torch::Tensor>& /*results*/, SlotStates&) const {}
  // Called before that, when the pass was asked for and may still be computing: sends what need not
  // be looked at, to be there when `transfers` are joined, and lets go of it.
  virtual void Send(Step, const Samples&, SlotRange /*rows*/,
                    std::vector<torch::Tensor>& /*results*/, SlotStates&,
                    Transfers& /*transfers*/) const {}

  // Of a task that learns from what the model itself makes: what does so, for a rank. A step is
  // prepared by it (Practice::Prepare); where slots are kept, Continue is then called with no
  // `fresh` samples, those of training() being counted and not read; evaluations are its own. By
  // default null.
  virtual absl::StatusOr<std::unique_ptr<Practice>> MakePractice(const PracticePlace&) const {
    return nullptr;
  }

  // What it tells of a step beside the loss, when every rank has what all slots keep after it: the
  // same on all ranks.
  virtual std::vector<TaskFigure> StepFigures(Step, const SlotStates&) const { return {}; }
  // Names of what it tells of an evaluation: at most kEvaluationFigures.
  virtual std::vector<absl::string_view> EvaluationFigures() const { return {}; }
  // Of a pass of an evaluation, without gradients: the sum of its losses, and then of each of these
  // figures. Throws what LibTorch throws.
  virtual std::vector<double> EvaluationSums(const Model& model, const TokenBatch& batch,
                                             const PassInputs& inputs) const {
    return {LossSum(model, batch, inputs).item<double>()};
  }
  // What divides the sums of figures: of the rows, as LossTokens.
  virtual int64_t FigureTokens(const Samples& samples, SlotRange rows) const {
    return LossTokens(samples, rows);
  }
};

inline constexpr size_t kEvaluationFigures = 4;

// The order in which a job uses its samples.
inline SampleOrder::Options OrderOptions(const v1::JobSpec& spec,
                                         const std::shared_ptr<const SampleTable>& samples) {
  SampleOrder::Options options{.samples = samples->size(),
                               .global_batch = spec.train().global_batch(),
                               .seed = spec.data().seed(),
                               .whole_epochs = spec.train().has_epochs()};
  if (spec.data().group_by_length()) {
    options.length = [samples](int64_t sample) { return samples->Length(sample); };
  }
  return options;
}

}  // namespace espalier
