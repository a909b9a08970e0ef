#include "worker/task/deep_supervision.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/random.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

using torch::Tensor;

// Columns of a pass's outcomes, [rows, kOutcomes] fp32.
enum Outcome : int64_t { kCounted, kRight, kHaltLoss, kHalting, kGoingOn, kLoss, kOutcomes };

// Places of TokenBatch::kept and ::results: steps of the samples in fp32 [rows] or outcomes, and
// numbers.
enum Place : size_t { kOfRows, kStates };

// The numbers of a slot: steps that its sample has had (0: it does not stay), then the high and the
// low state.
constexpr int64_t kSteps = 1;
int64_t NumbersOf(int64_t positions, int64_t channels) {
  return channels == 0 ? 0 : kSteps + 2 * positions * channels;
}

// Says that what a slot keeps is of no sample.
void ForgetSteps(const Tensor& numbers, int64_t slot) {
  numbers.data_ptr<float>()[slot * numbers.size(1)] = 0;
}

Tensor Outcomes(int64_t rows, torch::Device device) {
  return torch::zeros({rows, kOutcomes}, torch::TensorOptions(device).dtype(torch::kFloat));
}

// The states that the rows go on with: those that were kept, or new ones.
RecursiveModel::State StateOf(const RecursiveModel& model, const TokenBatch& batch) {
  const int64_t rows = batch.inputs.size(0), positions = batch.inputs.size(1);
  if (batch.kept.empty()) return model.Begin(rows, positions);  // samples have one step
  const RecursiveModel::State fresh = model.Begin(1, 1);
  const Tensor& kept = batch.kept[kStates];
  const Tensor stays = batch.kept[kOfRows].view({rows, 1, 1}).gt(0);
  const Tensor states =
      kept.narrow(1, kSteps, kept.size(1) - kSteps).to(fresh.high.scalar_type()).contiguous();
  const Tensor both = states.view({rows, 2, positions, -1});
  return {torch::where(stays, both.select(1, 0), fresh.high),
          torch::where(stays, both.select(1, 1), fresh.low)};
}

// By floating-point numbers, whose maxima every device has.
Tensor LastCounted(const Tensor& counted) {
  const auto options = torch::TensorOptions(counted.device()).dtype(torch::kFloat);
  const Tensor places = torch::arange(counted.size(1), options).unsqueeze(0);
  return places.mul(counted).amax(1).to(torch::kLong);
}

// Of a yes or no, in nats; by one operator that all of LibTorch has for all devices.
Tensor CrossEntropy(const Tensor& logits, const Tensor& wanted) {
  return at::softplus(logits) - logits * wanted;
}

// What a step after this one promises, as Q-learning takes it (Watkins and Dayan 1992): 1 step. A
// sample that has no further step can but halt.
Tensor PromiseOfNext(const RecursiveModel& model, const TokenBatch& batch,
                     const RecursiveModel::State& state, const Tensor& last,
                     const PassInputs& inputs) {
  torch::NoGradGuard no_grad;
  const PassInputs shown{.worked = inputs.worked};
  const Tensor next = model.Halting(model.Think(batch.inputs, state, shown).high, last);
  const auto steps_max = static_cast<double>(model.recursion().halt_max_steps);
  const Tensor ends = batch.kept[kOfRows].add(1).ge(steps_max);
  return torch::where(ends, next.select(1, 0), next.amax(1)).sigmoid();
}

// To `left` [rows, numbers]. Only CUDA is known to write to parts of rows; elsewhere they are
// joined.
void KeepStates(const Tensor& steps, const RecursiveModel::State& state, const Tensor& left) {
  Tensor all = left;
  const Tensor high = state.high.detach().flatten(1), low = state.low.detach().flatten(1);
  if (!left.is_cuda()) {
    at::cat_out(all, {steps, high.to(left.scalar_type()), low.to(left.scalar_type())}, 1);
    return;
  }
  const int64_t numbers = high.size(1);
  all.narrow(1, 0, kSteps).copy_(steps);
  all.narrow(1, kSteps, numbers).copy_(high);
  all.narrow(1, kSteps + numbers, numbers).copy_(low);
}

// The losses of a supervision step that begins with `from`, and in batch.results what it leaves.
// That of going on is only of samples that may: batch.kept has those.
Tensor StepLoss(const RecursiveModel& model, const TokenBatch& batch,
                const RecursiveModel::State& from, const PassInputs& inputs) {
  const RecursionConfig& recursion = model.recursion();
  const RecursiveModel::State state = model.Think(batch.inputs, from, inputs);
  const Tensor counted = batch.targets.ne(kIgnoredTarget), last = LastCounted(counted);
  const Tensor right = torch::zeros_like(counted.flatten());
  const RowLoss loss{
      .weights = batch.weights,
      .function = {},
      .probabilities = recursion.stablemax ? Probabilities::kStablemax : Probabilities::kSoftmax,
      .lift = static_cast<double>(batch.targets.size(1)),  // weights are 1 / tokens of a sample
      .right = right};
  const Tensor of_answers = model.LossSum(state.high, batch.targets, loss, inputs);
  const Tensor counts = counted.sum(1);
  const Tensor rights = right.view_as(counted).bitwise_and(counted).sum(1);
  const Tensor halting = model.Halting(state.high, last);
  const Tensor exact = rights.eq(counts).to(halting.scalar_type());
  const Tensor of_halting = CrossEntropy(halting.select(1, 0), exact);
  Tensor all = of_answers + 0.5 * of_halting.sum();
  if (recursion.halt_continue && !batch.kept.empty()) {
    const Tensor promise =
        PromiseOfNext(model, batch, {state.high.detach(), state.low.detach()}, last, inputs);
    all = all + 0.5 * CrossEntropy(halting.select(1, 1), promise).sum();
  }
  torch::NoGradGuard no_grad;
  const Tensor of_row = (of_answers.detach() / batch.inputs.size(0)).expand_as(counts);
  const auto number = [](const Tensor& x) { return x.detach().to(torch::kFloat); };
  const Tensor outcomes =
      torch::stack({number(counts), number(rights), number(of_halting),
                    number(halting.select(1, 0)), number(halting.select(1, 1)), number(of_row)},
                   1);
  Tensor(batch.results[kOfRows]).copy_(outcomes);
  if (batch.results.size() > kStates) {
    KeepStates(batch.kept[kOfRows].add(1).unsqueeze(1), state, batch.results[kStates]);
    if (batch.results_known) batch.results_known();
  }
  return all;
}

}  // namespace

SupervisionMetrics MetricsOf(absl::Span<const SupervisedSlot> slots) {
  SupervisionMetrics sums;
  for (const SupervisedSlot& slot : slots) {
    if (slot.steps == 0) continue;  // had no sample
    sums.samples += 1;
    sums.loss += slot.loss;
    sums.halt_loss += slot.halt_loss;
    if (slot.running != 0 || slot.counted == 0) continue;
    sums.count += 1;
    sums.accuracy += static_cast<double>(slot.right) / static_cast<double>(slot.counted);
    sums.exact_accuracy += slot.exact() ? 1 : 0;
    sums.halt_accuracy += (slot.halting >= 0) == slot.exact() ? 1 : 0;
    sums.steps += static_cast<double>(slot.steps);
  }
  return sums;
}

namespace {

// The loss of the last of all supervision steps, and in `outcomes` what it leaves.
Tensor LastLoss(const RecursiveModel& recursive, const TokenBatch& batch, const Tensor& outcomes,
                const PassInputs& inputs) {
  RecursiveModel::State state = recursive.Begin(batch.inputs.size(0), batch.inputs.size(1));
  for (int64_t step = 1; step < recursive.recursion().halt_max_steps; ++step) {
    state = recursive.Think(batch.inputs, state, inputs);
  }
  TokenBatch last = batch;
  last.results = {outcomes};
  return StepLoss(recursive, last, state, inputs);
}

}  // namespace

Tensor DeepSupervision::LossSum(const Model& model, const TokenBatch& batch,
                                const PassInputs& inputs) const {
  const RecursiveModel& recursive = RecursiveModelOf(model);
  const bool trains = !batch.results.empty();
  if (trains) return StepLoss(recursive, batch, StateOf(recursive, batch), inputs);
  return LastLoss(recursive, batch, Outcomes(batch.inputs.size(0), batch.inputs.device()), inputs);
}

std::vector<TaskFigure> DeepSupervision::StepFigures(Step step, const SlotStates& slots) const {
  const SupervisionMetrics sums = MetricsOf(slots.Records<SupervisedSlot>(step.next()));
  std::vector<TaskFigure> figures;
  if (sums.count > 0) {
    figures = {{"accuracy", sums.accuracy / sums.count},
               {"exact_accuracy", sums.exact_accuracy / sums.count},
               {"halt_accuracy", sums.halt_accuracy / sums.count},
               {"steps", sums.steps / sums.count}};
  }
  if (sums.samples > 0) figures.push_back({"halt_loss", sums.halt_loss / sums.samples});
  return figures;
}

std::vector<absl::string_view> DeepSupervision::EvaluationFigures() const {
  return {"accuracy", "exact_accuracy", "halt_accuracy", "halt_loss"};
}

std::vector<double> DeepSupervision::EvaluationSums(const Model& model, const TokenBatch& batch,
                                                    const PassInputs& inputs) const {
  const Tensor left = Outcomes(batch.inputs.size(0), batch.inputs.device());
  const double loss = LastLoss(RecursiveModelOf(model), batch, left, inputs).item<double>();
  const Tensor outcomes = left.cpu();
  std::vector<SupervisedSlot> slots;
  for (int64_t row = 0; row < outcomes.size(0); ++row) {
    const float* of = outcomes.data_ptr<float>() + row * kOutcomes;
    if (of[kCounted] == 0) continue;  // see FigureTokens
    slots.push_back({.steps = 1,
                     .counted = static_cast<int64_t>(of[kCounted]),
                     .right = static_cast<int64_t>(of[kRight]),
                     .halt_loss = of[kHaltLoss],
                     .halting = of[kHalting]});
  }
  const SupervisionMetrics sums = MetricsOf(slots);
  return {loss, sums.accuracy, sums.exact_accuracy, sums.halt_accuracy, sums.halt_loss};
}

int64_t DeepSupervision::FigureTokens(const Samples& samples, SlotRange rows) const {
  int64_t count = 0;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    count += samples.LossTokens({row, row + 1}) > 0 ? 1 : 0;
  }
  return count;
}

void DeepSupervision::FillRow(const Samples& samples, int64_t row, int64_t* inputs,
                              int64_t* targets) const {
  if (kind_ == Kind::kPuzzle) return FillPuzzle(samples, row, inputs, targets);
  const int64_t* tokens = samples.tokens.data() + row * (positions_ + 1);
  std::copy_n(tokens, positions_, inputs);
  std::copy_n(tokens + 1, positions_, targets);
  for (int64_t i = 0; i < positions_ && !samples.counted.empty(); ++i) {
    if (samples.counted[row * positions_ + i] == 0) targets[i] = kIgnoredTarget;
  }
}

// The first column that counts gives the first token of the completion, the last one its end.
void DeepSupervision::FillPuzzle(const Samples& samples, int64_t row, int64_t* inputs,
                                 int64_t* targets) const {
  const int64_t length = 2 * positions_;
  const int64_t* tokens = samples.tokens.data() + row * (length + 1);
  const uint8_t* counted = samples.counted.data() + row * length;
  const void* const first = std::memchr(counted, 1, static_cast<size_t>(length));
  const int64_t places =
      first == nullptr ? length : static_cast<const uint8_t*>(first) - counted + 1;
  const int64_t answers = std::count(counted, counted + length, 1) - 1;
  TORCH_CHECK(answers == places, "sample ", samples.ids[row], " has a prompt of ", places,
              " tokens and a completion of ", answers,
              "; a puzzle has an answer for each of its places, so they are as long");
  std::fill(std::copy_n(tokens, places, inputs), inputs + positions_, tokens[length]);
  std::fill(std::copy_n(tokens + places, places, targets), targets + positions_, kIgnoredTarget);
}

namespace {

// Each target that counts has an even share of its sample's loss.
void FillWeights(const int64_t* targets, int64_t positions, float* weights) {
  const int64_t counted = positions - std::count(targets, targets + positions, kIgnoredTarget);
  const float share = 1 / static_cast<float>(std::max<int64_t>(counted, 1));
  std::transform(targets, targets + positions, weights,
                 [share](int64_t target) { return target == kIgnoredTarget ? 0 : share; });
}

}  // namespace

TokenBatch DeepSupervision::Batch(const Samples& samples, SlotRange rows,
                                  Transfers& transfers) const {
  const std::vector<int64_t> shape = {rows.size(), positions_};
  const Tensor inputs = transfers.OnHost(shape, torch::kInt64),
               targets = transfers.OnHost(shape, torch::kInt64),
               weights = transfers.OnHost({rows.size() * positions_}, torch::kFloat);
  // Not by operators, which wake threads between two steps.
  for (int64_t row = 0; row < rows.size(); ++row) {
    int64_t* const of_row = targets.data_ptr<int64_t>() + row * positions_;
    FillRow(samples, rows.begin + row, inputs.data_ptr<int64_t>() + row * positions_, of_row);
    FillWeights(of_row, positions_, weights.data_ptr<float>() + row * positions_);
  }
  TokenBatch batch;
  batch.inputs = transfers.ToDevice(inputs);
  batch.targets = transfers.ToDevice(targets);
  batch.weights = transfers.ToDevice(weights);
  if (samples.slots.empty()) return batch;
  batch.results = {Outcomes(rows.size(), batch.inputs.device())};
  if (samples.carried.empty()) return batch;
  const Tensor steps = transfers.OnHost({rows.size()}, torch::kFloat);
  for (int64_t row = 0; row < rows.size(); ++row) {
    steps.data_ptr<float>()[row] = samples.carried[static_cast<size_t>(rows.begin + row)].front();
  }
  batch.kept = {transfers.ToDevice(steps), transfers.ToDevice(CarriedTogether(samples, rows))};
  batch.results.push_back(torch::empty_like(batch.kept[kStates]));
  return batch;
}

TokenBatch DeepSupervision::MadeUpBatch(int64_t rows, int64_t sequence_length,
                                        torch::Device device) const {
  TokenBatch batch = MadeUpTokenBatch({rows, sequence_length}, device);
  batch.weights = torch::full({rows * sequence_length}, 1 / static_cast<double>(sequence_length),
                              torch::TensorOptions(device).dtype(torch::kFloat));
  batch.results = {Outcomes(rows, device)};
  if (carried_channels_ == 0) return batch;
  const int64_t numbers = NumbersOf(sequence_length, carried_channels_);
  batch.kept = {torch::zeros({rows}, batch.weights.options()),
                torch::zeros({rows, numbers}, batch.weights.options())};
  batch.results.push_back(torch::empty_like(batch.kept[kStates]));
  return batch;
}

SlotStates::Size DeepSupervision::Keeps(const v1::JobSpec& spec,
                                        const DecoderConfig& config) const {
  return {.slots = spec.train().global_batch(),
          .record_bytes = sizeof(SupervisedSlot),
          .numbers = NumbersOf(positions_, CarriedChannels(*config.recursion, config.hidden_size))};
}

absl::StatusOr<Samples> DeepSupervision::Continue(Step step, SlotRange shard, const Samples& fresh,
                                                  SlotStates& slots) const {
  const auto records = slots.Records<SupervisedSlot>(step);
  const auto next_records = slots.NextRecords<SupervisedSlot>(step);
  const int64_t numbers = slots.size().numbers;
  const Tensor kept = slots.Numbers(step), next_numbers = slots.NextNumbers(step);
  std::vector<int64_t> ids, of_slots;
  for (int64_t slot = shard.begin; slot < shard.end; ++slot) {
    next_records[slot] = {};
    const bool stays = records[slot].running != 0;
    if (!stays && slot - shard.begin >= fresh.rows()) {  // at the end of an epoch
      if (numbers > 0) ForgetSteps(next_numbers, slot);
      continue;
    }
    ids.push_back(stays ? records[slot].sample : fresh.ids[slot - shard.begin]);
    of_slots.push_back(slot);
  }
  // Those of `fresh` again: cheaper than to join them to the others.
  ASSIGN_OR_RETURN(Samples next, training_->Read(std::move(ids)));
  for (const int64_t slot : of_slots) {
    if (numbers == 0) break;
    next.carried.emplace_back(kept.data_ptr<float>() + slot * numbers,
                              static_cast<size_t>(numbers));
  }
  next.slots = std::move(of_slots);
  return next;
}

int64_t DeepSupervision::StepsAtLeast(const RecursionConfig& recursion, Step step,
                                      int64_t slot) const {
  const uint64_t of_step = SplitMix64(seed_, static_cast<uint64_t>(step.value())).Next();
  SplitMix64 random(of_step, static_cast<uint64_t>(slot));
  if (random.Uniform() >= recursion.halt_exploration || recursion.halt_max_steps < 2) return 0;
  return 2 +
         static_cast<int64_t>(random.Below(static_cast<uint64_t>(recursion.halt_max_steps - 1)));
}

void DeepSupervision::Send(Step step, const Samples& samples, SlotRange rows,
                           std::vector<Tensor>& results, SlotStates& slots,
                           Transfers& transfers) const {
  if (results.size() <= kStates) return;
  KeepCarried(samples, rows, results[kStates], slots.NextNumbers(step), transfers);
  results[kStates] = Tensor();  // as large as the micro-batch
}

void DeepSupervision::Keep(const Model& model, Step step, const Samples& samples, SlotRange rows,
                           const std::vector<Tensor>& results, SlotStates& slots) const {
  const RecursionConfig& recursion = RecursiveModelOf(model).recursion();
  const Tensor outcomes = results[kOfRows].cpu(), next_numbers = slots.NextNumbers(step);
  const auto records = slots.Records<SupervisedSlot>(step);
  const auto next_records = slots.NextRecords<SupervisedSlot>(step);
  for (int64_t row = 0; row < rows.size(); ++row) {
    const int64_t slot = samples.slots[rows.begin + row];
    const float* of = outcomes.data_ptr<float>() + row * kOutcomes;
    const SupervisedSlot& before = records[slot];
    SupervisedSlot next{.sample = samples.ids[rows.begin + row],
                        .steps = (before.running != 0 ? before.steps : 0) + 1,
                        .counted = static_cast<int64_t>(of[kCounted]),
                        .right = static_cast<int64_t>(of[kRight]),
                        .loss = of[kLoss],
                        .halt_loss = of[kHaltLoss],
                        .halting = of[kHalting]};
    const bool wants = of[kHalting] > (recursion.halt_continue ? of[kGoingOn] : 0);
    const bool halted = next.steps >= recursion.halt_max_steps || !std::isfinite(of[kHalting]) ||
                        (wants && next.steps >= StepsAtLeast(recursion, step, slot));
    next.running = halted ? 0 : 1;
    next_records[slot] = next;
    // Its states stay where they are: none takes them.
    if (halted && results.size() > kStates) ForgetSteps(next_numbers, slot);
  }
}

}  // namespace espalier
