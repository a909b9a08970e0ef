// NextToken: the loss of tasks that teach a model to give the next token of what it is shown: the
// cross-entropy of every target that counts; and the tasks that do so. Used by
// worker/task/open_task.cc, and by tests that need some task. Compute thread.
#pragma once

#include <memory>
#include <utility>

#include "worker/model/decoder.h"
#include "worker/task/task.h"

namespace espalier {

class NextToken final : public Task {
 public:
  // With the validation samples, unless their split holds not one.
  static absl::StatusOr<std::unique_ptr<Task>> Open(
      std::shared_ptr<const SampleTable> training,
      absl::StatusOr<std::shared_ptr<const SampleTable>> validation) {
    const absl::Status status = validation.status();
    const bool none = absl::IsNotFound(status) || absl::IsFailedPrecondition(status);
    if (!status.ok() && !none) return status;  // damaged, say
    return std::make_unique<NextToken>(std::move(training),
                                       none ? nullptr : *std::move(validation));
  }
  explicit NextToken(std::shared_ptr<const SampleTable> training,
                     std::shared_ptr<const SampleTable> validation = nullptr)
      : training_(std::move(training)), validation_(std::move(validation)) {}

  std::shared_ptr<const SampleTable> training() const override { return training_; }
  std::shared_ptr<const SampleTable> validation() const override { return validation_; }
  TokenBatch Batch(const Samples& samples, SlotRange rows, Transfers& transfers) const override {
    return MakeTokenBatch(samples, rows, transfers);
  }
  TokenBatch MadeUpBatch(int64_t rows, int64_t sequence_length,
                         torch::Device device) const override {
    const bool packed = training_ != nullptr && training_->packed();
    return MadeUpTokenBatch({rows, sequence_length, packed}, device);
  }
  int64_t LossTokens(const Samples& samples, SlotRange rows) const override {
    return samples.LossTokens(rows);
  }
  torch::Tensor LossSum(const Model& model, const TokenBatch& batch,
                        const PassInputs& inputs) const override {
    PassInputs with = inputs;
    with.shared = batch.shared;
    return DecoderOf(model).LossSum(batch.inputs, batch.targets,
                                    {.weights = batch.weights, .function = {}}, with);
  }

 private:
  std::shared_ptr<const SampleTable> training_, validation_;
};

// `pretrain`: windows of text, every token of which counts (open_task.cc).
absl::StatusOr<std::unique_ptr<Task>> OpenPretrain(const v1::JobSpec& spec, const Dataset& dataset);

// `sft`, supervised fine-tuning: a sample is an example; the tokens that the data say count, as
// those of completions and answers, the others are only read (sft.cc).
absl::StatusOr<std::unique_ptr<Task>> OpenSft(const v1::JobSpec& spec, const Dataset& dataset);

}  // namespace espalier
