// The task `dpo`, direct preference optimisation (Rafailov et al. 2023): of two answers to a prompt
// the chosen one becomes likelier than the rejected one, measured against a reference, which is the
// model without its adapters. A sample is a pair, whose answers share a row
// (worker/data/packed_table.h). Used by worker/task/open_task.cc and tests. Compute thread.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "worker/model/decoder.h"
#include "worker/task/preference_loss.h"
#include "worker/task/task.h"

namespace espalier {

class Dpo final : public Task {
 public:
  Dpo(const v1::DpoSpec& spec, std::shared_ptr<const SampleTable> training,
      std::shared_ptr<const SampleTable> validation)
      : beta_(spec.beta()),
        label_smoothing_(spec.label_smoothing()),
        training_(std::move(training)),
        validation_(std::move(validation)) {}

  std::shared_ptr<const SampleTable> training() const override { return training_; }
  std::shared_ptr<const SampleTable> validation() const override { return validation_; }
  TokenBatch Batch(const Samples& samples, SlotRange rows, Transfers& transfers) const override;
  TokenBatch MadeUpBatch(int64_t rows, int64_t sequence_length,
                         torch::Device device) const override;
  // Pairs, whatever their lengths.
  int64_t LossTokens(const Samples&, SlotRange rows) const override { return rows.size(); }
  // Three passes forward: what each target is worth to the reference and to the model follows
  // before the pass whose gradient it weighs.
  torch::Tensor LossSum(const Model& model, const TokenBatch& batch,
                        const PassInputs& inputs) const override;

  SlotStates::Size Keeps(const v1::JobSpec& spec, const DecoderConfig& config) const override;
  absl::StatusOr<Samples> Continue(Step step, SlotRange shard, const Samples& fresh,
                                   SlotStates& slots) const override;
  void Keep(const Model& model, Step step, const Samples& samples, SlotRange rows,
            const std::vector<torch::Tensor>& results, SlotStates& slots) const override;
  // Means of kPreferenceFigures over pairs, as evaluations have them.
  std::vector<TaskFigure> StepFigures(Step step, const SlotStates& slots) const override;
  std::vector<absl::string_view> EvaluationFigures() const override;
  std::vector<double> EvaluationSums(const Model& model, const TokenBatch& batch,
                                     const PassInputs& inputs) const override;

 private:
  // Of the batch's pairs, without gradients.
  PairRewards Rewards(const Decoder& decoder, const TokenBatch& batch,
                      const PassInputs& inputs) const;

  const double beta_, label_smoothing_;
  const std::shared_ptr<const SampleTable> training_, validation_;
};

// On pairs, as `data prepare --format preferences` leaves them.
absl::StatusOr<std::unique_ptr<Task>> OpenDpo(const v1::JobSpec& spec, const Dataset& dataset);

}  // namespace espalier
