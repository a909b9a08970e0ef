#include "worker/task/grpo_practice.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/model/decoder.h"
#include "worker/rollout/job_rollouts.h"

namespace espalier {
namespace {

TrainingMoment EndOf(const v1::JobSpec& spec) {
  return {.step = spec.train().steps(), .progress = 1};
}

bool HasCompletions(absl::Span<const GrpoSlot> slots) {
  return std::any_of(slots.begin(), slots.end(),
                     [](const GrpoSlot& slot) { return slot.tokens > 0; });
}

}  // namespace

GrpoPractice::GrpoPractice(const v1::JobSpec& spec, const GrpoPrompts& prompts, SampleOrder order,
                           std::unique_ptr<RolloutSource> source)
    : spec_(spec), prompts_(prompts), order_(std::move(order)), source_(std::move(source)) {}

absl::StatusOr<std::unique_ptr<Practice>> GrpoPractice::Create(
    const v1::JobSpec& spec, const GrpoPrompts& prompts, std::unique_ptr<RolloutSource> source) {
  ASSIGN_OR_RETURN(SampleOrder order,
                   SampleOrder::Create({.samples = static_cast<int64_t>(prompts.training.size()),
                                        .global_batch = spec.train().global_batch() /
                                                        spec.train().rollout().samples(),
                                        .seed = spec.data().seed()}));
  return std::unique_ptr<Practice>(
      new GrpoPractice(spec, prompts, std::move(order), std::move(source)));
}

RolloutOrder GrpoPractice::OrderOf(Step step) const {
  const v1::TrainSpec& train = spec_.train();
  const Step rollout(step.value() / train.grpo().updates_per_rollout());
  const int64_t sampled = SampledAt(train, step.value());
  RolloutOrder order;
  order.moment = {.step = sampled,
                  .progress = static_cast<double>(sampled) / static_cast<double>(train.steps())};
  const auto table = static_cast<int64_t>(prompts_.training.size());
  std::map<int64_t, int64_t> times;
  for (const int64_t prompt : order_.SamplesOfStep(rollout)) {
    order.prompts.push_back(prompts_.training[static_cast<size_t>(prompt)]);
    order.prompts.back().id += table * times[prompt]++;
  }
  order.samples = train.rollout().samples();
  order.sample = RolloutSampling(train.rollout(), order.moment.progress);
  order.seed = train.rollout().seed();
  return order;
}

absl::StatusOr<bool> GrpoPractice::Prepare(Step step, const Model& model,
                                           const RolloutAround& around, SlotStates& slots) {
  const absl::Span<const GrpoSlot> held = slots.Records<GrpoSlot>(step);
  const bool first = step.value() % spec_.train().grpo().updates_per_rollout() == 0;
  if (!first && HasCompletions(held)) {
    std::copy(held.begin(), held.end(), slots.NextRecords<GrpoSlot>(step).begin());
    slots.NextNumbers(step).copy_(slots.Numbers(step));
    return true;
  }
  const RolloutOrder order = OrderOf(step);
  ASSIGN_OR_RETURN(const std::optional<Rollouts> made,
                   source_->Sample(DecoderOf(model), order, around));
  if (!made) return false;
  RETURN_IF_ERROR(Fill(step, order, made->all, slots));
  return true;
}

absl::Status GrpoPractice::Fill(Step step, const RolloutOrder& order,
                                const std::vector<Rollout>& rollouts, SlotStates& slots) const {
  const absl::Span<GrpoSlot> records = slots.NextRecords<GrpoSlot>(step);
  const GrpoNumbers of(spec_.train());
  if (rollouts.size() != records.size()) {
    return absl::InternalError(absl::StrCat("a step has ", records.size(), " completions, and ",
                                            rollouts.size(), " were sampled"));
  }
  std::vector<double> rewards;
  for (const Rollout& one : rollouts) rewards.push_back(one.judgement.total);
  ASSIGN_OR_RETURN(const AdvantageScale scale, ParseAdvantageScale(spec_.train().grpo().scale()));
  const Advantages advantages = AdvantagesOf(rewards, order.samples, scale);
  const torch::Tensor numbers = slots.NextNumbers(step).zero_();
  const auto table = static_cast<int64_t>(prompts_.training.size());
  for (size_t i = 0; i < rollouts.size(); ++i) {
    const Rollout& one = rollouts[i];
    if (static_cast<int64_t>(one.ids.size()) > of.cap) {
      return absl::InternalError(absl::StrCat("a completion of ", one.ids.size(),
                                              " tokens, and rollout.max_new_tokens is ", of.cap));
    }
    const int64_t prompt = order.prompts[static_cast<size_t>(one.prompt)].id % table;
    records[i] = SlotOf(one, prompt, advantages.of[i]);
    float* const ids = of.ids(numbers.data_ptr<float>() + static_cast<int64_t>(i) * of.size());
    std::copy(one.ids.begin(), one.ids.end(), ids);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Practice::Findings>> GrpoPractice::Evaluate(
    const Model& model, const RolloutAround& around) {
  const int64_t most = spec_.evaluate().max_prompts();
  RolloutOrder order{.moment = EndOf(spec_), .prompts = prompts_.validation};
  if (most > 0 && most < static_cast<int64_t>(order.prompts.size())) {
    order.prompts.resize(static_cast<size_t>(most));
  }
  order.sample = GreedySampling();
  ASSIGN_OR_RETURN(const std::optional<Rollouts> made,
                   source_->Sample(DecoderOf(model), order, around));
  if (!made) return std::nullopt;
  double reward = 0, accepted = 0, stopped = 0, tokens = 0;
  for (const Rollout& one : made->all) {
    reward += one.judgement.total;
    accepted += one.judgement.accepted() ? 1 : 0;
    stopped += one.stopped ? 1 : 0;
    tokens += static_cast<double>(one.ids.size());
  }
  const auto answers = static_cast<double>(std::max<size_t>(1, made->all.size()));
  Findings found{.loss = -reward / answers,
                 .answers = static_cast<int64_t>(made->all.size()),
                 .figures = {{"reward", reward / answers},
                             {"accepted", accepted / answers},
                             {"stopped", stopped / answers},
                             {"completion_tokens", tokens / answers}}};
  if (!prompts_.games) return found;
  ASSIGN_OR_RETURN(const std::optional<std::vector<TaskFigure>> games,
                   PlayGames(*prompts_.games, order.moment, DecoderOf(model), around, *source_));
  if (!games) return std::nullopt;
  found.figures.insert(found.figures.end(), games->begin(), games->end());
  return found;
}

}  // namespace espalier
