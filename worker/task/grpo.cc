#include "worker/task/grpo.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/model/decoder.h"
#include "worker/rollout/job_rollouts.h"

namespace espalier {
namespace {

using torch::Tensor;

// What a row of samples keeps, before the numbers of its slot's tokens.
enum Head : int64_t { kTemperature, kAdvantage, kIsOld, kHead };

// Places of TokenBatch::kept: of columns [rows, columns], but two numbers on the host, what logits
// are divided by and RowLoss::lift; undefined as PolicyRows says. And of TokenBatch::results:
// [rows, columns]. Columns are those of the targets, from the first that counts in any row on.
enum Kept : size_t { kConstants, kAdvantages, kOld, kReference, kKept };
enum Result : size_t { kLogProbability, kOfReference };

Tensor ZerosOf(const Tensor& ids) {
  return torch::zeros(ids.sizes(), torch::TensorOptions(ids.device()).dtype(torch::kFloat));
}

struct Constants {
  double temperature = 1, lift = 1;
};
Tensor ToTensor(const Constants& of) {
  return torch::tensor({of.temperature, of.lift}, torch::kDouble);
}
Constants ConstantsOf(const TokenBatch& batch) {
  const auto* const of = batch.kept[kConstants].data_ptr<double>();
  return {of[0], of[1]};
}

// Before which no target of the rows counts: prompts cost no logits. In steps, so that a device
// meets few shapes of tensors.
constexpr int64_t kColumnStep = 16;
int64_t FirstColumn(const Samples& samples, SlotRange rows) {
  const int64_t length = samples.sequence_length();
  int64_t first = length;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const uint8_t* const counted = samples.counted.data() + row * length;
    first = std::min<int64_t>(first, std::find(counted, counted + length, 1) - counted);
  }
  return first == length ? 0 : first / kColumnStep * kColumnStep;
}

// Completions as a job counts samples: those of a prompt follow each other. Rows are made of what
// slots keep, and none is read here.
class CompletionTable final : public SampleTable {
 public:
  CompletionTable(const std::vector<RolloutPrompt>& prompts, int64_t samples,
                  int64_t sequence_length)
      : samples_(samples), sequence_length_(sequence_length) {
    for (const RolloutPrompt& one : prompts) {
      lengths_.push_back(static_cast<int64_t>(one.ids.size()));
    }
  }
  int64_t size() const override { return static_cast<int64_t>(lengths_.size()) * samples_; }
  int64_t sequence_length() const override { return sequence_length_; }
  int64_t Length(int64_t id) const override { return lengths_[static_cast<size_t>(id / samples_)]; }
  absl::StatusOr<Samples> Read(std::vector<int64_t>) const override {
    return absl::FailedPreconditionError("completions are sampled, not read");
  }

 private:
  const int64_t samples_, sequence_length_;
  std::vector<int64_t> lengths_;
};

absl::Status CheckSizes(const v1::JobSpec& spec, const GrpoPrompts& prompts) {
  const v1::RolloutSpec& rollout = spec.train().rollout();
  const int64_t batch = spec.train().global_batch(), samples = rollout.samples();
  const auto there = static_cast<int64_t>(prompts.training.size());
  if (samples < 2 || batch % samples != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.rollout.samples is ", samples, " and train.global_batch ", batch,
        "; completions are compared with others of their prompt, so there are 2 or more of each, "
        "and as many of all prompts of a step"));
  }
  if (batch / samples > there) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step takes ", batch / samples,
                     " prompts (train.global_batch / train.rollout.samples) and the data have ",
                     there, "; lower global_batch, or prepare more prompts"));
  }
  for (const std::vector<RolloutPrompt>* split : {&prompts.training, &prompts.validation}) {
    for (const RolloutPrompt& one : *split) {
      RETURN_IF_ERROR(CheckRoom(spec, one.id, one.ids.size()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

Grpo::Grpo(const v1::JobSpec& spec, GrpoPrompts prompts, OpenSource open_source)
    : spec_(spec),
      prompts_(std::move(prompts)),
      open_source_(std::move(open_source)),
      limits_{spec.train().grpo().clip_low(), spec.train().grpo().clip_high(),
              spec.train().grpo().kl()},
      numbers_(spec.train()) {
  const int64_t length = spec.data().sequence_length();
  training_ = std::make_shared<CompletionTable>(prompts_.training, spec.train().rollout().samples(),
                                                length);
  if (prompts_.validation.empty()) return;
  validation_ = std::make_shared<CompletionTable>(prompts_.validation, 1, length);
}

absl::StatusOr<std::unique_ptr<Task>> Grpo::Create(const v1::JobSpec& spec, GrpoPrompts prompts,
                                                   OpenSource open_source) {
  RETURN_IF_ERROR(CheckSizes(spec, prompts));
  RETURN_IF_ERROR(ParseAdvantageScale(spec.train().grpo().scale()).status());
  ASSIGN_OR_RETURN(const Aggregation aggregation,
                   ParseAggregation(spec.train().grpo().aggregation()));
  std::unique_ptr<Grpo> made(new Grpo(spec, std::move(prompts), std::move(open_source)));
  made->aggregation_ = aggregation;
  return made;
}

absl::StatusOr<std::unique_ptr<Practice>> Grpo::MakePractice(const PracticePlace& place) const {
  ASSIGN_OR_RETURN(std::unique_ptr<RolloutSource> source, open_source_(place.rollouts()));
  return GrpoPractice::Create(spec_, prompts_, place, std::move(source));
}

SlotStates::Size Grpo::Keeps(const v1::JobSpec& spec, const DecoderConfig&) const {
  return {.slots = spec.train().global_batch(),
          .record_bytes = sizeof(GrpoSlot),
          .numbers = numbers_.size()};
}

double Grpo::TemperatureOf(Step step) const {
  const auto sampled = static_cast<double>(SampledAt(spec_.train(), step.value()));
  const double progress = sampled / static_cast<double>(spec_.train().steps());
  return RolloutSampling(spec_.train().rollout(), progress).temperature;
}

absl::StatusOr<Samples> Grpo::Continue(Step step, SlotRange shard, const Samples&,
                                       SlotStates& slots) const {
  const absl::Span<const GrpoSlot> records = slots.NextRecords<GrpoSlot>(step);
  Samples samples;
  if (limits_.kl == 0 && !AnyAdvantage(records)) return samples;
  const Tensor numbers = slots.NextNumbers(step);
  const double temperature = TemperatureOf(step);
  for (int64_t slot = shard.begin; slot < shard.end; ++slot) {
    AppendRow(records[slot], numbers.data_ptr<float>() + slot * numbers_.size(), temperature,
              samples);
    samples.slots.push_back(slot);
  }
  return samples;
}

void Grpo::AppendRow(const GrpoSlot& slot, float* numbers, double temperature,
                     Samples& samples) const {
  const std::vector<int32_t>& prompt = prompts_.training[static_cast<size_t>(slot.prompt)].ids;
  const int64_t length = spec_.data().sequence_length();
  const auto begin = static_cast<int64_t>(prompt.size());
  const auto table = static_cast<int64_t>(prompts_.training.size());
  samples.ids.push_back(
      (slot.occurrence * table + slot.prompt) * spec_.train().rollout().samples() + slot.sample);
  samples.tokens.insert(samples.tokens.end(), prompt.begin(), prompt.end());
  const float* const ids = numbers_.ids(numbers);
  for (int64_t i = 0; i < slot.tokens; ++i) {
    samples.tokens.push_back(static_cast<int64_t>(ids[i]));
  }
  samples.tokens.resize(samples.ids.size() * static_cast<size_t>(length + 1), 0);
  samples.counted.resize(samples.ids.size() * static_cast<size_t>(length), 0);
  std::fill_n(samples.counted.end() - length + begin - 1, slot.tokens, uint8_t{1});
  const float head[kHead] = {static_cast<float>(temperature), static_cast<float>(slot.advantage),
                             slot.updates > 0 ? 1.0F : 0.0F};
  samples.kept.insert(samples.kept.end(), head, head + kHead);
  samples.kept.insert(samples.kept.end(), numbers_.old(numbers), numbers + numbers_.size());
}

int64_t Grpo::LossTokens(const Samples& samples, SlotRange rows) const {
  return aggregation_ == Aggregation::kDapo ? samples.LossTokens(rows) : rows.size();
}

std::vector<double> Grpo::WeightsOf(const Samples& samples, SlotRange rows) const {
  std::vector<int64_t> tokens;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    tokens.push_back(samples.LossTokens({row, row + 1}));
  }
  return TokenWeights(aggregation_, tokens, numbers_.cap);
}

// Of the columns [first, first + columns), [rows, columns]: the weights, and what PolicyRows has,
// in this order.
Tensor Grpo::OfColumns(const Samples& samples, SlotRange rows, const std::vector<double>& weights,
                       int64_t first, int64_t columns) const {
  const int64_t length = samples.sequence_length();
  const int64_t kept = static_cast<int64_t>(samples.kept.size()) / samples.rows();
  Tensor made = torch::zeros({4, rows.size(), columns}, torch::kFloat);
  const int64_t part = rows.size() * columns;
  for (int64_t i = 0; i < rows.size(); ++i) {
    const float* const own = samples.kept.data() + (rows.begin + i) * kept;
    const float* old = own + kHead;
    float* to = made.data_ptr<float>() + i * columns;
    for (int64_t column = 0; column < columns; ++column, ++to) {
      if (samples.counted[(rows.begin + i) * length + first + column] == 0) continue;
      to[0] = static_cast<float>(weights[static_cast<size_t>(i)]);
      to[part] = own[kAdvantage];
      to[2 * part] = *old;
      if (numbers_.reference) to[3 * part] = old[numbers_.cap];
      ++old;
    }
  }
  return made;
}

TokenBatch Grpo::Batch(const Samples& samples, SlotRange rows, Transfers& transfers) const {
  TokenBatch batch = MakeTokenBatch(samples, rows, transfers);
  const int64_t first = FirstColumn(samples, rows), columns = batch.inputs.size(1) - first;
  batch.targets = batch.targets.narrow(1, first, columns).contiguous();
  const std::vector<double> weights = WeightsOf(samples, rows);
  const Tensor of_columns = OfColumns(samples, rows, weights, first, columns);
  const auto part = [&](int64_t place) {
    return transfers.ToDevice(of_columns[place].contiguous());
  };
  const auto kept = static_cast<int64_t>(samples.kept.size()) / samples.rows();
  const float* const head = samples.kept.data() + rows.begin * kept;
  const bool old = head[kIsOld] > 0;
  batch.weights = part(0).flatten();
  batch.kept.resize(kKept);
  const double lift = 1 / *std::max_element(weights.begin(), weights.end());
  batch.kept[kConstants] = ToTensor({head[kTemperature], lift});
  batch.kept[kAdvantages] = part(1);
  if (old) batch.kept[kOld] = part(2);
  if (old && numbers_.reference) batch.kept[kReference] = part(3);
  batch.results = {ZerosOf(batch.targets)};
  if (!old && numbers_.reference) batch.results.push_back(ZerosOf(batch.targets));
  return batch;
}

TokenBatch Grpo::MadeUpBatch(int64_t rows, int64_t sequence_length, torch::Device device) const {
  TokenBatch batch = MadeUpTokenBatch({rows, sequence_length}, device);
  batch.weights =
      torch::ones({rows * sequence_length}, torch::TensorOptions(device).dtype(torch::kFloat));
  batch.kept.resize(kKept);
  batch.kept[kConstants] = ToTensor({});
  batch.kept[kAdvantages] = ZerosOf(batch.inputs);
  batch.results = {ZerosOf(batch.inputs)};
  if (numbers_.reference) batch.results.push_back(ZerosOf(batch.inputs));
  return batch;
}

Tensor Grpo::LossSum(const Model& model, const TokenBatch& batch, const PassInputs& inputs) const {
  const Decoder& decoder = DecoderOf(model);
  const Constants constants = ConstantsOf(batch);
  const auto flat = [&](size_t place) {
    return batch.kept[place].defined() ? batch.kept[place].flatten() : Tensor();
  };
  PolicyRows rows{flat(kAdvantages), flat(kOld), flat(kReference)};
  if (batch.results.size() > kOfReference) {
    const PassInputs as_it_was{.adapters = false, .worked = inputs.worked};
    const Tensor found = decoder.TargetLogProbabilities(batch.inputs, batch.targets,
                                                        constants.temperature, as_it_was);
    Tensor(batch.results[kOfReference]).copy_(found);
    rows.reference = batch.results[kOfReference].flatten();
  }
  const Tensor log_probabilities = batch.results[kLogProbability].flatten();
  const auto function = [this, rows, log_probabilities](const Tensor& log_p, int64_t first) {
    const auto part = [&](const Tensor& of) {
      return of.defined() ? of.narrow(0, first, log_p.numel()) : of;
    };
    part(log_probabilities).copy_(log_p);
    return PolicyTerms(log_p, {part(rows.advantage), part(rows.old), part(rows.reference)},
                       limits_);
  };
  return decoder.LossSum(batch.inputs, batch.targets,
                         {.weights = batch.weights,
                          .function = function,
                          .temperature = constants.temperature,
                          .lift = constants.lift},
                         inputs);
}

void Grpo::Keep(const Model&, Step step, const Samples& samples, SlotRange rows,
                const std::vector<Tensor>& results, SlotStates& slots) const {
  const Tensor log_p = results[kLogProbability].cpu();
  const Tensor reference = results.size() > kOfReference ? results[kOfReference].cpu() : Tensor();
  const int64_t columns = log_p.size(1), length = samples.sequence_length();
  const int64_t first_column = FirstColumn(samples, rows);
  for (int64_t i = 0; i < rows.size(); ++i) {
    const int64_t row = rows.begin + i, index = samples.slots[row];
    GrpoSlot& slot = slots.NextRecords<GrpoSlot>(step)[index];
    float* const numbers = slots.NextNumbers(step).data_ptr<float>() + index * numbers_.size();
    const float* const now = log_p.data_ptr<float>() + i * columns;
    const bool first = slot.updates == 0;
    float *old = numbers_.old(numbers), *of_reference = numbers_.of_reference(numbers);
    slot.clipped = slot.kl = 0;
    if (first) slot.surprise = 0;
    for (int64_t column = 0; column < columns; ++column) {
      if (samples.counted[row * length + first_column + column] == 0) continue;
      if (first) {
        *old = now[column];
        slot.surprise -= now[column];
        if (reference.defined()) *of_reference = reference[i].data_ptr<float>()[column];
      }
      slot.clipped += IsClipped(now[column] - *old++, slot.advantage, limits_) ? 1 : 0;
      if (numbers_.reference) {
        slot.kl += static_cast<float>(Divergence(*of_reference++ - now[column]));
      }
    }
    ++slot.updates;
  }
}

std::vector<TaskFigure> Grpo::StepFigures(Step step, const SlotStates& slots) const {
  return FiguresOf(slots.Records<GrpoSlot>(step.next()), spec_.train().rollout().samples(),
                   numbers_.reference);
}

}  // namespace espalier
