// The task `grpo`, group relative policy optimisation (Shao et al. 2024): each step samples several
// completions of some prompts, has them judged, and makes those likelier that are worth more than
// the others of their prompt. This file is what a pass learns; grpo_practice.h makes what it learns
// from. Used by worker/task/open_task.cc and tests. Compute thread.
//
// A sample is a completion, its number that of its prompt times rollout.samples plus its own; its
// row the prompt, the completion and what fills it up.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "worker/rollout/rollout.h"
#include "worker/sync/together.h"
#include "worker/task/grpo_practice.h"
#include "worker/task/grpo_slots.h"
#include "worker/task/policy_loss.h"
#include "worker/task/task.h"

namespace espalier {

class Grpo final : public Task {
 public:
  // Opens what samples and judges, for a rank.
  using OpenSource =
      std::function<absl::StatusOr<std::unique_ptr<RolloutSource>>(const RolloutPlace& place)>;

  // INVALID_ARGUMENT: a step has more prompts than there are, a prompt has no room for a completion
  // in data.sequence_length, or settings of train.grpo and train.rollout do not fit.
  static absl::StatusOr<std::unique_ptr<Task>> Create(const v1::JobSpec& spec, GrpoPrompts prompts,
                                                      OpenSource open_source);

  std::shared_ptr<const SampleTable> training() const override { return training_; }
  std::shared_ptr<const SampleTable> validation() const override { return validation_; }
  TokenBatch Batch(const Samples& samples, SlotRange rows, Transfers& transfers) const override;
  TokenBatch MadeUpBatch(int64_t rows, int64_t sequence_length,
                         torch::Device device) const override;
  // Of the aggregation dapo tokens of completions, else completions; none where no reward differs
  // from another of its group and nothing holds the policy to its reference: then no update is
  // made.
  int64_t LossTokens(const Samples& samples, SlotRange rows) const override;
  torch::Tensor LossSum(const Model& model, const TokenBatch& batch,
                        const PassInputs& inputs) const override;

  SlotStates::Size Keeps(const v1::JobSpec& spec, const DecoderConfig& config) const override;
  absl::StatusOr<Samples> Continue(Step step, SlotRange shard, const Samples& fresh,
                                   SlotStates& slots) const override;
  void Keep(const Model& model, Step step, const Samples& samples, SlotRange rows,
            const std::vector<torch::Tensor>& results, SlotStates& slots) const override;
  std::vector<TaskFigure> StepFigures(Step step, const SlotStates& slots) const override;
  absl::StatusOr<std::unique_ptr<Practice>> MakePractice(const PracticePlace& place) const override;

 private:
  Grpo(const v1::JobSpec& spec, GrpoPrompts prompts, OpenSource open_source);
  // Of the step in which the completions of `step` were sampled.
  double TemperatureOf(Step step) const;
  // What the token losses of the rows are weighted by.
  std::vector<double> WeightsOf(const Samples& samples, SlotRange rows) const;
  torch::Tensor OfColumns(const Samples& samples, SlotRange rows,
                          const std::vector<double>& weights, int64_t first, int64_t columns) const;
  void AppendRow(const GrpoSlot& slot, float* numbers, double temperature, Samples& samples) const;

  const v1::JobSpec spec_;
  const GrpoPrompts prompts_;
  const OpenSource open_source_;
  Aggregation aggregation_ = Aggregation::kDapo;
  PolicyLimits limits_;
  GrpoNumbers numbers_;
  std::shared_ptr<const SampleTable> training_, validation_;
};

// On prompts, as `data prepare --format prompts` leaves them.
absl::StatusOr<std::unique_ptr<Task>> OpenGrpo(const v1::JobSpec& spec, const Dataset& dataset);

}  // namespace espalier
