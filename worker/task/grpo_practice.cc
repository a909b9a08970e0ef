#include "worker/task/grpo_practice.h"

#include <algorithm>
#include <bit>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "worker/model/decoder.h"
#include "worker/rollout/job_rollouts.h"
#include "worker/task/run_name.h"
#include "worker/task/test_progress.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kTestName[] = "grpo.test.json";

TrainingMoment EndOf(const v1::JobSpec& spec) {
  return {.step = spec.train().steps(), .progress = 1};
}

// Of a completion and what it earned beside the others of its prompt.
uint64_t HashOf(const std::vector<int32_t>& ids, double advantage) {
  uint64_t hash = MixBits(std::bit_cast<uint64_t>(advantage));
  for (const int32_t id : ids) hash = MixBits(hash ^ static_cast<uint32_t>(id));
  return hash;
}

bool HasCompletions(absl::Span<const GrpoSlot> slots) {
  return std::any_of(slots.begin(), slots.end(),
                     [](const GrpoSlot& slot) { return slot.tokens > 0; });
}

}  // namespace

GrpoPractice::GrpoPractice(const v1::JobSpec& spec, const GrpoPrompts& prompts,
                           const PracticePlace& place, SampleOrder order,
                           std::unique_ptr<RolloutSource> source)
    : place_(place),
      spec_(spec),
      prompts_(prompts),
      order_(std::move(order)),
      source_(std::move(source)),
      paced_(place.context, spec.train().rollout(), *source_),
      folder_(place),
      learns_from_(place.learns_from) {}

absl::StatusOr<std::unique_ptr<Practice>> GrpoPractice::Create(
    const v1::JobSpec& spec, const GrpoPrompts& prompts, const PracticePlace& place,
    std::unique_ptr<RolloutSource> source) {
  ASSIGN_OR_RETURN(SampleOrder order,
                   SampleOrder::Create({.samples = static_cast<int64_t>(prompts.training.size()),
                                        .global_batch = spec.train().global_batch() /
                                                        spec.train().rollout().samples(),
                                        .seed = spec.data().seed()}));
  return std::unique_ptr<Practice>(
      new GrpoPractice(spec, prompts, place, std::move(order), std::move(source)));
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
  kept_ = 0;                            // what counts from here on is the step
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
  if (std::exchange(filled_, step) != step) learnt_from_before_ = learns_from_;
  learns_from_ = learnt_from_before_;
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
    learns_from_ = MixBits(learns_from_ ^ HashOf(one.ids, records[i].advantage));
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

int64_t GrpoPractice::Examination::reach() const {
  auto reach = static_cast<int64_t>(answers);
  for (const WordleGame& game : games) reach += static_cast<int64_t>(game.turns().size());
  return reach;
}

std::string GrpoPractice::ToJson(const Examination& examination) {
  Json games = Json::array();
  for (const WordleGame& game : examination.games) games.push_back(game.said());
  return Json{{"answers", examination.answers},   {"reward", examination.reward},
              {"accepted", examination.accepted}, {"stopped", examination.stopped},
              {"tokens", examination.tokens},     {"games", std::move(games)}}
      .dump();
}

bool GrpoPractice::FromJson(const std::string& text, Examination& examination) {
  try {
    const Json json = Json::parse(text);
    Examination read = examination;
    read.answers = json.at("answers").get<size_t>();
    read.reward = json.at("reward").get<double>();
    read.accepted = json.at("accepted").get<double>();
    read.stopped = json.at("stopped").get<double>();
    read.tokens = json.at("tokens").get<double>();
    const auto games = json.at("games").get<std::vector<std::vector<std::string>>>();
    if (games.size() != read.games.size()) return false;
    for (size_t i = 0; i < games.size(); ++i) {
      for (const std::string& turn : games[i]) {
        if (read.games[i].over()) return false;
        read.games[i].Play(turn);
      }
    }
    examination = std::move(read);
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

bool GrpoPractice::IsDone(const Examination& examination) const {
  return examination.answers >= prompts_of_evaluation() && AreOver(examination.games);
}

std::string GrpoPractice::name_of_test() const {
  return TestName(spec_, prompts_.data_hash, absl::StrCat(learns_from_));
}

absl::StatusOr<GrpoPractice::Examination> GrpoPractice::Load(int64_t step) {
  Examination examination;
  examination.step = step;
  if (prompts_.games) examination.games = GamesOf(*prompts_.games);
  if (step == 0) return examination;
  ASSIGN_OR_RETURN(const TestProgress kept,
                   LoadTestProgress(place_, kTestName, name_of_test(), step));
  replaces_ = kept.reach > 0 && !FromJson(kept.so_far, examination);
  // Also in folders that lack it.
  if (examination.reach() > 0) RETURN_IF_ERROR(Keep(examination));
  return examination;
}

absl::Status GrpoPractice::Keep(const Examination& examination) {
  if (examination.step == 0) return absl::OkStatus();  // nothing says yet which model it is
  const TestProgress progress{.of = name_of_test(),
                              .step = examination.step,
                              .reach = examination.reach(),
                              .so_far = ToJson(examination)};
  ASSIGN_OR_RETURN(const bool mine,
                   WriteTestProgress(folder_, kTestName, progress,
                                     replaces_ ? MayReplace::kAnything : MayReplace::kNoFurther));
  if (mine) kept_ = progress.reach;
  return absl::OkStatus();
}

absl::StatusOr<bool> GrpoPractice::GoOn(const Model& model, const RolloutAround& around,
                                        Examination& examination) {
  if (examination.answers < prompts_of_evaluation()) return AnswerNext(model, around, examination);
  return PlayTurns(*prompts_.games, EndOf(spec_), DecoderOf(model), around, paced_,
                   examination.games);
}

absl::StatusOr<std::optional<Practice::Findings>> GrpoPractice::Evaluate(
    const Model& model, const RolloutAround& around) {
  if (!under_way_ || under_way_->step != around.step) {
    kept_ = 0;
    ASSIGN_OR_RETURN(under_way_, Load(around.step));
  }
  Examination& made = *under_way_;
  while (!IsDone(made)) {
    ASSIGN_OR_RETURN(const bool went_on, GoOn(model, around, made));
    if (!went_on) return std::nullopt;
    RETURN_IF_ERROR(Keep(made));
    if (IsDone(made)) break;
    if (!around.in_one_go) return std::nullopt;
    if (around.got_on) around.got_on();
  }
  const auto answers = static_cast<double>(std::max<size_t>(1, made.answers));
  Findings found{.loss = 0 - made.reward / answers,  // 0, not -0, where nothing is earned
                 .answers = static_cast<int64_t>(made.answers),
                 .figures = {{"reward", made.reward / answers},
                             {"accepted", made.accepted / answers},
                             {"stopped", made.stopped / answers},
                             {"completion_tokens", made.tokens / answers}}};
  if (prompts_.games) {
    const std::vector<TaskFigure> games = FiguresOf(*prompts_.games, made.games);
    found.figures.insert(found.figures.end(), games.begin(), games.end());
  }
  under_way_.reset();
  return found;
}

}  // namespace espalier
