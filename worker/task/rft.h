// The task `rft`, rejection-sampling fine-tuning (Yuan et al. 2023), in phases: the validation
// prompts are answered; completions of the training prompts are sampled until one of each is
// accepted; these are learnt as in sft; the validation prompts are answered again. This file is
// what a pass learns; rft_practice.h does the rest. Used by worker/task/open_task.cc and tests.
// Compute thread.
//
// A sample is a place among as many as there are prompts: it is the accepted row of that number,
// counted round and round, so that steps of an epoch are known before anything is sampled, and
// every step is full.
#pragma once

#include <memory>

#include "worker/task/next_token.h"
#include "worker/task/rft_table.h"
#include "worker/task/task.h"

namespace espalier {

class Rft final : public Task {
 public:
  explicit Rft(RftInputs inputs);

  std::shared_ptr<const SampleTable> training() const override { return table_; }
  // Prompts that are counted, not read; null where there are none.
  std::shared_ptr<const SampleTable> validation() const override { return validation_; }
  TokenBatch Batch(const Samples& samples, SlotRange rows, Transfers& transfers) const override {
    return learns_.Batch(samples, rows, transfers);
  }
  TokenBatch MadeUpBatch(int64_t rows, int64_t sequence_length,
                         torch::Device device) const override {
    return learns_.MadeUpBatch(rows, sequence_length, device);
  }
  int64_t LossTokens(const Samples& samples, SlotRange rows) const override {
    return learns_.LossTokens(samples, rows);
  }
  torch::Tensor LossSum(const Model& model, const TokenBatch& batch,
                        const PassInputs& inputs) const override {
    return learns_.LossSum(model, batch, inputs);
  }
  absl::StatusOr<std::unique_ptr<Practice>> MakePractice(const PracticePlace& place) const override;

 private:
  const RftInputs inputs_;
  const std::shared_ptr<RftTable> table_;
  const std::shared_ptr<const SampleTable> validation_;
  const NextToken learns_;
};

// The data hold prompts (DataKind::kPrompts). INVALID_ARGUMENT: what is learnt from one of them
// would be cut (CheckRoom).
absl::StatusOr<std::unique_ptr<Task>> OpenRft(const v1::JobSpec& spec, const Dataset& dataset);

}  // namespace espalier
