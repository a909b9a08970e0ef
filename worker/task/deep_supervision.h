// DeepSupervision: the task `trm`: a tiny recursive model is trained after each of its supervision
// steps, and a sample stays in its slot of the global batch, with what the model has come to, until
// the model halts or has had its steps. Used by worker/task/open_trm.cc. Compute thread.
//
//   empty --sample--> step 1 --not halted--> step 2 --...--> halted = empty
//
// A slot that is not empty keeps its sample: the one that the order has for it is left out. What a
// slot holds is a function of (data, seeds, steps before), and of no rank.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "worker/model/recursive_model.h"
#include "worker/task/task.h"

namespace espalier {

// A slot between two steps. Plain: it is a record of SlotStates. Zero: empty.
struct SupervisedSlot {
  int64_t sample = 0;
  int64_t steps = 0;    // that the sample has had
  int64_t running = 0;  // 1: the sample stays
  // Of the step before, over tokens that count.
  int64_t counted = 0;
  int64_t right = 0;
  double loss = 0;       // of its answer; of the samples of a pass together, divided evenly
  double halt_loss = 0;  // of saying whether it is right
  double halting = 0;    // logit

  bool exact() const { return right == counted; }
};

// Sums over slots that halted, and, of the losses, over all slots that had a sample.
struct SupervisionMetrics {
  double count = 0;
  double samples = 0;
  double accuracy = 0;
  double exact_accuracy = 0;
  double halt_accuracy = 0;
  double steps = 0;
  double loss = 0;
  double halt_loss = 0;
};
SupervisionMetrics MetricsOf(absl::Span<const SupervisedSlot> slots);

class DeepSupervision final : public Task {
 public:
  // What a sample is.
  enum class Kind {
    kText,    // its tokens, of which each is to give the next
    kPuzzle,  // as many tokens of a completion as of a prompt, each the answer to that of its place
  };
  // The tables of puzzles have samples of twice `positions` tokens, those of text of as many.
  // `carried_channels`: CarriedChannels of the model, for MadeUpBatch.
  DeepSupervision(Kind kind, int64_t positions, std::shared_ptr<const SampleTable> training,
                  std::shared_ptr<const SampleTable> validation, uint64_t seed,
                  int64_t carried_channels = 0)
      : kind_(kind),
        positions_(positions),
        training_(std::move(training)),
        validation_(std::move(validation)),
        seed_(seed),
        carried_channels_(carried_channels) {}
  // Of a position of each of the two states that a slot keeps; 0 where samples have one step.
  static int64_t CarriedChannels(const RecursionConfig& recursion, int64_t hidden_size) {
    return recursion.halt_max_steps == 1 ? 0 : hidden_size;
  }

  std::shared_ptr<const SampleTable> training() const override { return training_; }
  std::shared_ptr<const SampleTable> validation() const override { return validation_; }
  // Of samples without slots: all supervision steps, from the beginning, and the last one's loss.
  TokenBatch Batch(const Samples& samples, SlotRange rows, Transfers& transfers) const override;
  TokenBatch MadeUpBatch(int64_t rows, int64_t sequence_length,
                         torch::Device device) const override;
  // Samples, since a sample's loss is a mean over its tokens.
  int64_t LossTokens(const Samples&, SlotRange rows) const override { return rows.size(); }
  torch::Tensor LossSum(const Model& model, const TokenBatch& batch,
                        const PassInputs& inputs) const override;

  SlotStates::Size Keeps(const v1::JobSpec& spec, const DecoderConfig& config) const override;
  absl::StatusOr<Samples> Continue(Step step, SlotRange shard, const Samples& fresh,
                                   SlotStates& slots) const override;
  void Keep(const Model& model, Step step, const Samples& samples, SlotRange rows,
            const std::vector<torch::Tensor>& results, SlotStates& slots) const override;
  void Send(Step step, const Samples& samples, SlotRange rows, std::vector<torch::Tensor>& results,
            SlotStates& slots, Transfers& transfers) const override;
  // Means over the slots that halted in the step, where one has, and of the loss of halting over
  // all; evaluations, in which all samples halt, tell the same but for the steps, over the samples
  // of which a token counts.
  std::vector<TaskFigure> StepFigures(Step step, const SlotStates& slots) const override;
  std::vector<absl::string_view> EvaluationFigures() const override;
  std::vector<double> EvaluationSums(const Model& model, const TokenBatch& batch,
                                     const PassInputs& inputs) const override;
  int64_t FigureTokens(const Samples& samples, SlotRange rows) const override;

 private:
  // The ids of a row and what each place is to give, [positions_] each.
  void FillRow(const Samples& samples, int64_t row, int64_t* inputs, int64_t* targets) const;
  void FillPuzzle(const Samples& samples, int64_t row, int64_t* inputs, int64_t* targets) const;
  // Which of them a sample must have had to halt, by its slot.
  int64_t StepsAtLeast(const RecursionConfig& recursion, Step step, int64_t slot) const;

  const Kind kind_;
  const int64_t positions_;
  std::shared_ptr<const SampleTable> training_, validation_;
  const uint64_t seed_;  // of train.seed
  const int64_t carried_channels_;
};

}  // namespace espalier
