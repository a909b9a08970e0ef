#include "worker/task/dpo.h"

#include <string>

#include "common/base/status_macros.h"
#include "common/observe/log.h"

namespace espalier {
namespace {

using torch::Tensor;

// Places of TokenBatch::kept, [rows, columns] as RewardsOf takes it, and of TokenBatch::results,
// [rows, kOutcomes].
enum Kept : size_t { kSides };
enum Result : size_t { kOfPairs };
enum Outcome : int64_t { kLoss, kChosen, kRejected, kOutcomes };

Tensor SidesOf(const Samples& samples, SlotRange rows, int64_t columns) {
  Tensor made = torch::zeros({rows.size(), columns}, torch::kFloat);
  const int64_t length = samples.sequence_length();
  auto* to = made.data_ptr<float>();
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t border = samples.parts[static_cast<size_t>(row)].front().end;
    for (int64_t column = 0; column < columns; ++column, ++to) {
      if (samples.counted[row * length + column] != 0) *to = column < border ? 1 : -1;
    }
  }
  return made;
}

Tensor Outcomes(const PairTerms& terms, const PairRewards& rewards) {
  return torch::stack({terms.loss, rewards.chosen, rewards.rejected}, 1).to(torch::kFloat);
}

Tensor NoOutcomes(int64_t rows, torch::Device device) {
  return torch::zeros({rows, kOutcomes}, torch::TensorOptions(device).dtype(torch::kFloat));
}

PreferenceSlot SlotOf(const float* outcomes) {
  return {.pairs = 1,
          .loss = outcomes[kLoss],
          .chosen = outcomes[kChosen],
          .rejected = outcomes[kRejected]};
}

}  // namespace

TokenBatch Dpo::Batch(const Samples& samples, SlotRange rows, Transfers& transfers) const {
  TokenBatch batch = MakeTokenBatch(samples, rows, transfers);
  batch.kept = {transfers.ToDevice(SidesOf(samples, rows, batch.inputs.size(1)))};
  batch.results = {NoOutcomes(rows.size(), batch.inputs.device())};
  return batch;
}

TokenBatch Dpo::MadeUpBatch(int64_t rows, int64_t sequence_length, torch::Device device) const {
  TokenBatch batch = MadeUpTokenBatch({rows, sequence_length, /*packed=*/true}, device);
  batch.kept = {
      torch::ones({rows, sequence_length}, torch::TensorOptions(device).dtype(torch::kFloat))};
  batch.results = {NoOutcomes(rows, device)};
  return batch;
}

PairRewards Dpo::Rewards(const Decoder& decoder, const TokenBatch& batch,
                         const PassInputs& inputs) const {
  PassInputs as_it_is = inputs;
  as_it_is.shared = batch.shared;
  as_it_is.gradients_final = nullptr;
  const PassInputs as_it_was{.shared = batch.shared, .adapters = false, .worked = inputs.worked};
  torch::NoGradGuard no_grad;
  const auto of_targets = [&](const PassInputs& with) {
    return decoder.TargetLogProbabilities(batch.inputs, batch.targets, /*temperature=*/1, with);
  };
  const Tensor reference = of_targets(as_it_was);
  return RewardsOf(of_targets(as_it_is), reference, batch.kept[kSides], beta_);
}

Tensor Dpo::LossSum(const Model& model, const TokenBatch& batch, const PassInputs& inputs) const {
  const Decoder& decoder = DecoderOf(model);
  const PairRewards rewards = Rewards(decoder, batch, inputs);
  const PairTerms terms = PreferenceTerms(rewards.Margin(), label_smoothing_);
  Tensor(batch.results[kOfPairs]).copy_(Outcomes(terms, rewards));
  const auto function = [targets = OfTargets(terms, batch.kept[kSides], beta_)](const Tensor& log_p,
                                                                                int64_t first) {
    const auto part = [&](const Tensor& of) {
      return of.narrow(0, first, log_p.numel()).to(log_p.scalar_type());
    };
    return RowLoss::Terms{part(targets.loss), part(targets.derivative)};
  };
  PassInputs with = inputs;
  with.shared = batch.shared;
  return decoder.LossSum(batch.inputs, batch.targets, {.weights = {}, .function = function}, with);
}

SlotStates::Size Dpo::Keeps(const v1::JobSpec& spec, const DecoderConfig&) const {
  return {.slots = spec.train().global_batch(), .record_bytes = sizeof(PreferenceSlot)};
}

// Nothing but what is told of the step: every sample is learnt from once.
absl::StatusOr<Samples> Dpo::Continue(Step step, SlotRange shard, const Samples& fresh,
                                      SlotStates& slots) const {
  Samples samples = fresh;
  for (int64_t slot = shard.begin; slot < shard.end; ++slot) {
    slots.NextRecords<PreferenceSlot>(step)[slot] = {};
    const bool has_pair = slot - shard.begin < fresh.rows();  // not at the end of an epoch
    if (has_pair) samples.slots.push_back(slot);
  }
  return samples;
}

void Dpo::Keep(const Model&, Step step, const Samples& samples, SlotRange rows,
               const std::vector<Tensor>& results, SlotStates& slots) const {
  const Tensor outcomes = results[kOfPairs].cpu();
  for (int64_t i = 0; i < rows.size(); ++i) {
    slots.NextRecords<PreferenceSlot>(step)[samples.slots[rows.begin + i]] =
        SlotOf(outcomes.data_ptr<float>() + i * kOutcomes);
  }
}

std::vector<TaskFigure> Dpo::StepFigures(Step step, const SlotStates& slots) const {
  const auto all = slots.Records<PreferenceSlot>(step.next());
  double pairs = 0;
  for (const PreferenceSlot& slot : all) pairs += static_cast<double>(slot.pairs);
  std::vector<TaskFigure> figures;
  if (pairs == 0) return figures;
  const auto sums = PreferenceSums(all);
  for (size_t i = 0; i < kPreferenceFigures.size(); ++i) {
    figures.push_back({kPreferenceFigures[i], sums[i] / pairs});
  }
  return figures;
}

std::vector<absl::string_view> Dpo::EvaluationFigures() const {
  return {kPreferenceFigures.begin(), kPreferenceFigures.end()};
}

std::vector<double> Dpo::EvaluationSums(const Model& model, const TokenBatch& batch,
                                        const PassInputs& inputs) const {
  const PairRewards rewards = Rewards(DecoderOf(model), batch, inputs);
  const PairTerms terms = PreferenceTerms(rewards.Margin(), label_smoothing_);
  const Tensor outcomes = Outcomes(terms, rewards).cpu();
  std::vector<PreferenceSlot> pairs;
  double loss = 0;
  for (int64_t row = 0; row < outcomes.size(0); ++row) {
    pairs.push_back(SlotOf(outcomes.data_ptr<float>() + row * kOutcomes));
    loss += pairs.back().loss;
  }
  const auto sums = PreferenceSums(pairs);
  std::vector<double> found = {loss};
  found.insert(found.end(), sums.begin(), sums.end());
  return found;
}

absl::StatusOr<std::unique_ptr<Task>> OpenDpo(const v1::JobSpec& spec, const Dataset& dataset) {
  const int64_t length = spec.data().sequence_length();
  ASSIGN_OR_RETURN(std::shared_ptr<const PreferenceTable> training,
                   dataset.Preferences(kTrainSplit, length));
  const std::string warning = training->summary().Warning(length);
  if (!warning.empty()) LogWarning(warning);
  absl::StatusOr<std::shared_ptr<const PreferenceTable>> validation =
      dataset.Preferences(kValidationSplit, length);
  const bool none =
      absl::IsNotFound(validation.status()) || absl::IsFailedPrecondition(validation.status());
  if (!validation.ok() && !none) return validation.status();
  return std::make_unique<Dpo>(spec.train().dpo(), std::move(training),
                               none ? nullptr : *std::move(validation));
}

}  // namespace espalier
