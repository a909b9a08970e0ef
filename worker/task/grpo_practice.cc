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

GrpoPractice::GrpoPractice(const v1::JobSpec& spec, const GrpoPrompts& prompts,
                           const RankContext& context, SampleOrder order,
                           std::unique_ptr<RolloutSource> source)
    : spec_(spec),
      prompts_(prompts),
      order_(std::move(order)),
      source_(std::move(source)),
      paced_(context, spec.train().rollout(), *source_) {}

absl::StatusOr<std::unique_ptr<Practice>> GrpoPractice::Create(
    const v1::JobSpec& spec, const GrpoPrompts& prompts, const RankContext& context,
    std::unique_ptr<RolloutSource> source) {
  ASSIGN_OR_RETURN(SampleOrder order,
                   SampleOrder::Create({.samples = static_cast<int64_t>(prompts.training.size()),
                                        .global_batch = spec.train().global_batch() /
                                                        spec.train().rollout().samples(),
                                        .seed = spec.data().seed()}));
  return std::unique_ptr<Practice>(
      new GrpoPractice(spec, prompts, context, std::move(order), std::move(source)));
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
  if (prompts_.games && !games_fit_) {  // said before any step, not at the first evaluation
    RETURN_IF_ERROR(CheckRoomForGames(*prompts_.games,
                                      DecoderOf(model).config().max_position_embeddings,
                                      spec_.train().rollout().max_new_tokens()));
    games_fit_ = true;
  }
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
                                const std::vector<Rollout>& rollouts, SlotStates& slots) {
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
  from_the_beginning_ = from_the_beginning_ || step == Step(0);
  groups_ += static_cast<int64_t>(order.prompts.size());
  equal_groups_ += advantages.zero_groups;
  const torch::Tensor numbers = slots.NextNumbers(step).zero_();
  const auto table = static_cast<int64_t>(prompts_.training.size());
  for (size_t i = 0; i < rollouts.size(); ++i) {
    const Rollout& one = rollouts[i];
    if (static_cast<int64_t>(one.ids.size()) > of.cap) {
      return absl::InternalError(absl::StrCat("a completion of ", one.ids.size(),
                                              " tokens, and rollout.max_new_tokens is ", of.cap));
    }
    const int64_t id = order.prompts[static_cast<size_t>(one.prompt)].id;
    records[i] = SlotOf(one, id % table, id / table, advantages.of[i]);
    float* const ids = of.ids(numbers.data_ptr<float>() + static_cast<int64_t>(i) * of.size());
    std::copy(one.ids.begin(), one.ids.end(), ids);
  }
  return absl::OkStatus();
}

std::string GrpoPractice::WhyItTaughtNothing() const {
  if (!from_the_beginning_ || equal_groups_ < groups_) return "";
  return absl::StrCat("in each of the ", groups_,
                      " groups all completions earned the same reward, so that none of ",
                      "them was better than another (zero_advantage_groups): look at `reward` in "
                      "the log and at what "
                      "the verifier gives; raise train.rollout.samples or "
                      "train.rollout.temperature, or take a model "
                      "that solves some of the prompts (after fine-tuning it on examples)");
}

size_t GrpoPractice::prompts_of_evaluation() const {
  const size_t all = prompts_.validation.size();
  const auto most = static_cast<size_t>(spec_.evaluate().max_prompts());
  return most > 0 ? std::min(all, most) : all;
}

absl::StatusOr<bool> GrpoPractice::AnswerNext(const Model& model, const RolloutAround& around,
                                              Examination& examination) {
  const auto begin = prompts_.validation.begin() + static_cast<std::ptrdiff_t>(examination.answers);
  const size_t left = prompts_of_evaluation() - examination.answers;
  const size_t some = std::min(left, static_cast<size_t>(paced_.order_size()));
  RolloutOrder order{.moment = EndOf(spec_),
                     .prompts = {begin, begin + static_cast<std::ptrdiff_t>(some)}};
  order.sample = GreedySampling();
  ASSIGN_OR_RETURN(const std::optional<Rollouts> made,
                   paced_.Sample(DecoderOf(model), order, around));
  if (!made) return false;
  for (const Rollout& one : made->all) {
    examination.reward += one.judgement.total;
    examination.accepted += one.judgement.accepted() ? 1 : 0;
    examination.stopped += one.stopped ? 1 : 0;
    examination.tokens += static_cast<double>(one.ids.size());
  }
  examination.answers += some;
  return true;
}

absl::StatusOr<std::optional<Practice::Findings>> GrpoPractice::Evaluate(
    const Model& model, const RolloutAround& around) {
  if (!under_way_ || under_way_->step != around.step) {
    under_way_.emplace();
    under_way_->step = around.step;
  }
  Examination& made = *under_way_;
  while (made.answers < prompts_of_evaluation()) {
    ASSIGN_OR_RETURN(const bool answered, AnswerNext(model, around, made));
    if (!answered) return std::nullopt;
  }
  const auto answers = static_cast<double>(std::max<size_t>(1, made.answers));
  Findings found{.loss = -made.reward / answers,
                 .answers = static_cast<int64_t>(made.answers),
                 .figures = {{"reward", made.reward / answers},
                             {"accepted", made.accepted / answers},
                             {"stopped", made.stopped / answers},
                             {"completion_tokens", made.tokens / answers}}};
  if (prompts_.games) {
    ASSIGN_OR_RETURN(
        const std::optional<std::vector<TaskFigure>> games,
        PlayGames(*prompts_.games, EndOf(spec_), DecoderOf(model), around, paced_, made.games));
    if (!games) return std::nullopt;
    found.figures.insert(found.figures.end(), games->begin(), games->end());
  }
  under_way_.reset();
  return found;
}

}  // namespace espalier
