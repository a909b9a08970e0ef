// Group relative policy optimisation as a run has it: what is learnt does not depend on who
// computes it, nor on where the run was interrupted, and makes what is rewarded likelier.
#include "worker/task/grpo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/tiny_model.h"
#include "tests/worker/task/grpo_run.h"

namespace espalier {
namespace {

using testing::HasSubstr;

class GrpoUpdates : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(PerRollout, GrpoUpdates, testing::Values(1, 2, 3));

TEST_P(GrpoUpdates, SplitInvarianceHoldsForRanksAndMicroBatches) {
  constexpr int64_t kSteps = 8;
  const TestFolder folder;
  const std::vector<RankResult> one = RunOf(kSteps, folder / "one", {}, GetParam()).Train();
  ASSERT_EQ(one[0].losses.size(), kSteps);
  int number = 0;
  for (const Split& split :
       {Split{{1}, {3}}, Split{{1, 1}, {8}}, Split{{11, 5}, {2, 5}}, Split{{9, 0, 7}, {4}}}) {
    const std::vector<RankResult> other =
        RunOf(kSteps, folder / absl::StrCat(++number), split, GetParam()).Train();
    ExpectSame(other[0].losses, one[0].losses);
    const auto a = one[0].client->steps(), b = other[0].client->steps();
    for (size_t step = 0; step < kSteps; ++step) {
      EXPECT_EQ(a[step].tokens(), b[step].tokens()) << "other completions in step " << step;
      EXPECT_EQ(FiguresOf(a[step]).at("reward"), FiguresOf(b[step]).at("reward"));
      EXPECT_NEAR(FiguresOf(a[step]).at("entropy"), FiguresOf(b[step]).at("entropy"), 1e-4);
    }
  }
}

// Also between two steps that learn from the same completions, and then by other ranks.
TEST_P(GrpoUpdates, AKilledRunGoesOnAsIfItHadNotBeen) {
  constexpr int64_t kSteps = 10;
  for (const bool warm : {false, true}) {
    const TestFolder folder;
    const std::vector<RankResult> straight =
        RunOf(kSteps, folder / "straight", {}, GetParam()).Train();
    std::vector<double> losses;
    const auto part = [&](const Split& split, int64_t until) {
      GrpoRun run = RunOf(kSteps, folder / "parts", split, GetParam());
      if (warm) run.options.warm = folder / "warm";
      const auto keeps = warm ? StopKeeps::kNothing : StopKeeps::kCheckpoint;
      if (until < kSteps) run.options.script = StopAfter(until, keeps);
      const std::vector<RankResult> results = run.Train();
      losses.insert(losses.end(), results[0].losses.begin(), results[0].losses.end());
      return results[0].start.step;
    };
    part({}, 3);
    EXPECT_EQ(part({{1, 1}, {4}}, 7), Step(3));
    EXPECT_EQ(part({{5, 11}, {4}}, kSteps), Step(7));
    ExpectSame(losses, straight[0].losses);
    for (int worker = 0; worker < 2; ++worker) {
      const auto left = ListSegments(folder / "warm", "studio");
      ASSERT_TRUE(left.ok()) << left.status();
      for (const RegisteredSegment& one : *left) RemoveSegment(folder / "warm", one.name);
    }
  }
}

TEST(Grpo, CompletionsAreSampledOnceForAllUpdatesThatLearnFromThem) {
  const TestFolder folder;
  GrpoRun run = RunOf(7, folder.path(), {}, 3);
  std::vector<int64_t> steps;
  std::vector<std::vector<int64_t>> prompts;
  run.fake.on_order = [&](const RolloutOrder& order) {
    steps.push_back(order.moment.step);
    prompts.emplace_back();
    for (const RolloutPrompt& one : order.prompts) prompts.back().push_back(one.id);
    EXPECT_EQ(order.samples, 4);
  };
  run.Train();
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 3, 6}));
  const SampleOrder order = *SampleOrder::Create(
      {.samples = 24, .global_batch = 4, .seed = run.options.spec.data().seed()});
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(prompts[i], order.SamplesOfStep(Step(i)));
}

// At the end of an epoch; they drop other values then, and are other samples in the log.
TEST(Grpo, APromptThatIsTwiceInAStepHasSamplesOfItsOwnEachTime) {
  const TestFolder folder;
  GrpoRun run = RunOf(1, folder.path());
  run.Train();
  SlotStates slots(torch::kCPU);
  ASSERT_TRUE(slots.Keep(run.task->Keeps(run.options.spec, DecoderConfig())).ok());
  const absl::Span<GrpoSlot> records = slots.NextRecords<GrpoSlot>(Step(0));
  for (size_t i = 0; i < records.size(); ++i) {
    const auto number = static_cast<int64_t>(i);
    records[i] = SlotOf({.sample = number % 4, .ids = {1, 2}}, /*prompt=*/1, number / 4, 0.5);
  }
  const Samples samples = *run.task->Continue(Step(0), {0, 16}, {}, slots);
  EXPECT_EQ(std::set<int64_t>(samples.ids.begin(), samples.ids.end()).size(), 16U);
}

// From the first update of a rollout on the policy goes away from the one that sampled.
TEST(Grpo, TheFirstUpdateIsOnPolicyAndLaterOnesAreClipped) {
  const TestFolder folder;
  GrpoRun run = RunOf(6, folder.path(), {}, 3);
  run.train().mutable_schedule()->set_learning_rate(3e-2);
  run.train().mutable_schedule()->set_warmup_steps(0);
  const auto steps = run.Train()[0].client->steps();
  EXPECT_EQ(FiguresOf(steps[0]).at("clip_fraction"), 0);
  EXPECT_NEAR(FiguresOf(steps[0]).at("entropy"), std::log(50), 0.3);
  EXPECT_GT(FiguresOf(steps[1]).at("clip_fraction"), 0.01);
  EXPECT_EQ(FiguresOf(steps[1]).at("entropy"), FiguresOf(steps[0]).at("entropy"))
      << "of the sampling";
  EXPECT_EQ(FiguresOf(steps[3]).at("clip_fraction"), 0);
}

// Neither weight decay nor momentum moves what has learnt nothing.
TEST(Grpo, AStepWithoutAnyAdvantageMakesNoUpdate) {
  const TestFolder folder;
  GrpoRun run = RunOf(4, folder.path(), {{1, 1}, {8}}, 2);
  run.train().mutable_optimizer()->set_weight_decay(0.5);
  int64_t orders = 0;
  run.fake.on_order = [&](const RolloutOrder& order) { orders = order.moment.step; };
  run.fake.reward = [&](const RolloutPrompt& prompt, const std::vector<int32_t>& ids) {
    return orders < 2 ? 0.3 : SameParity(prompt, ids);
  };
  run.options.ranks = 1;
  run.options.spec.mutable_parallel()->clear_shares();
  const std::vector<RankResult> results = run.Train();
  const auto steps = results[0].client->steps();
  for (const int step : {0, 1}) {
    EXPECT_TRUE(steps[step].skipped());
    EXPECT_EQ(steps[step].tokens(), 0);
    EXPECT_EQ(FiguresOf(steps[step]).at("zero_advantage_groups"), 4);
    EXPECT_EQ(FiguresOf(steps[step]).count("entropy"), 0U) << "no pass has found one";
    EXPECT_NEAR(FiguresOf(steps[step]).at("reward"), 0.3, 1e-6);
  }
  EXPECT_FALSE(steps[2].skipped());
  EXPECT_EQ(results[0].replica->counters().updates, 2);
  EXPECT_EQ(results[0].replica->counters().skipped, 2);
  EXPECT_EQ(results[0].replica->counters().skipped_in_a_row, 0) << "it is no fault";
}

// A reference holds the policy also where all are worth the same.
TEST(Grpo, WithAReferenceAStepWithoutAnyAdvantageUpdates) {
  const TestFolder folder;
  GrpoRun run = RunOf(3, folder.path(), {{1, 1}, {8}}, 1);
  run.train().mutable_lora()->set_rank(4);
  FillJobDefaults(run.options.spec);
  run.train().mutable_grpo()->set_kl(0.1);
  run.train().mutable_schedule()->set_learning_rate(1e-6);  // AdamW makes steps of roundings
  run.fake.reward = [](const RolloutPrompt&, const std::vector<int32_t>&) { return 0.3; };
  for (const v1::StepReport& step : run.Train()[0].client->steps()) {
    EXPECT_FALSE(step.skipped());
    EXPECT_NEAR(FiguresOf(step).at("kl"), 0, 1e-6) << "the reference is where the policy is";
    EXPECT_NEAR(FiguresOf(step).at("entropy"), std::log(50), 0.3);
  }
}

// What the model did before training, for the same prompts and seeds, and after it.
TEST(Grpo, MakesWhatIsRewardedLikelier) {
  const TestFolder folder;
  GrpoRun run = RunOf(60, folder.path(), {{1, 1}, {8}});
  run.train().mutable_schedule()->set_learning_rate(1e-2);
  const std::vector<RankResult> results = run.Train();
  const auto rewards = [&](Replica& replica) {
    RolloutOrder order{.moment = {}, .prompts = TinyPrompts(50), .samples = 4};
    std::vector<double> found;
    const auto made = FakeRollouts(run.fake).Sample(DecoderOf(replica.model()), order, {});
    for (const Rollout& one : (**made).all) found.push_back(one.judgement.total);
    return found;
  };
  GrpoRun before = RunOf(0, folder / "before");
  before.options.spec.mutable_train()->set_steps(1);
  before.options.script = [](int, ScriptedClient& client) {
    client.Set(StopDirective(StopKeeps::kNothing));
  };
  const std::vector<double> first = rewards(*before.Train()[0].replica);
  const std::vector<double> last = rewards(*results[0].replica);
  double gain = 0, squares = 0;
  const auto count = static_cast<double>(first.size());
  for (size_t i = 0; i < first.size(); ++i) gain += (last[i] - first[i]) / count;
  for (size_t i = 0; i < first.size(); ++i) {
    squares += std::pow(last[i] - first[i] - gain, 2) / (count - 1);
  }
  EXPECT_GT(gain, 0.2) << "of a mean of 0.5 at first and 1 at most";
  EXPECT_GT(gain / std::sqrt(squares / count), 4) << "standard errors";
}

TEST(Grpo, EveryAggregationAndScaleTrains) {
  for (const char* aggregation : {"grpo", "dr_grpo", "bnpo"}) {
    for (const char* scale : {"batch", "none"}) {
      const TestFolder folder;
      GrpoRun run = RunOf(3, folder.path(), {{1, 1}, {8}});
      run.train().mutable_grpo()->set_aggregation(aggregation);
      run.train().mutable_grpo()->set_scale(scale);
      for (const v1::StepReport& step : run.Train()[0].client->steps()) {
        EXPECT_EQ(step.tokens(), 16) << "completions";
        EXPECT_FALSE(step.skipped());
        EXPECT_GT(step.gradient_norm(), 0);
      }
    }
  }
}

// All but the one whose divisor is of a pass.
TEST(Grpo, MeansOverCompletionsAreNoMatterOfMicroBatches) {
  for (const char* aggregation : {"grpo", "dr_grpo"}) {
    std::vector<std::vector<double>> losses;
    for (const Split& split : {Split{}, Split{{3, 1}, {5, 2}}}) {
      const TestFolder folder;
      GrpoRun run = RunOf(5, folder.path(), split, 2);
      run.train().mutable_grpo()->set_aggregation(aggregation);
      losses.push_back(run.Train()[0].losses);
    }
    ExpectSame(losses[0], losses[1]);
  }
}

class Reference : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(UpdatesPerRollout, Reference, testing::Values(1, 2));

// The reference is the model without its adapters, which begin as nothing.
TEST_P(Reference, HoldsThePolicyTheMoreItWeighs) {
  std::vector<double> divergence;
  for (const double weight : {1e-9, 3.0}) {
    const TestFolder folder;
    GrpoRun run = RunOf(12, folder.path(), {{1, 1}, {8}}, GetParam());
    run.train().mutable_lora()->set_rank(4);
    FillJobDefaults(run.options.spec);
    run.train().mutable_grpo()->set_kl(weight);
    run.train().mutable_schedule()->set_learning_rate(2e-2);
    const auto steps = run.Train()[0].client->steps();
    EXPECT_NEAR(FiguresOf(steps[0]).at("kl"), 0, 1e-6);
    divergence.push_back(0);
    for (size_t step = 6; step < 12; ++step)
      divergence.back() += FiguresOf(steps[step]).at("kl") / 6;
  }
  EXPECT_GT(divergence[0], 0.005);
  EXPECT_LT(divergence[1], 0.8 * divergence[0]);
}

TEST_P(Reference, SplitInvarianceHoldsWithOne) {
  std::vector<std::vector<double>> losses;
  for (const Split& split : {Split{}, Split{{3, 1}, {5, 2}}}) {
    const TestFolder folder;
    GrpoRun run = RunOf(6, folder.path(), split, GetParam());
    run.train().mutable_lora()->set_rank(4);
    FillJobDefaults(run.options.spec);
    run.train().mutable_grpo()->set_kl(0.1);
    losses.push_back(run.Train()[0].losses);
  }
  ExpectSame(losses[0], losses[1]);
}

TEST(Grpo, AnEvaluationIsLessLossTheMoreIsEarned) {
  const TestFolder folder;
  GrpoRun run = RunOf(4, folder.path(), {{1, 1}, {8}});
  run.options.validation = true;
  run.options.spec.mutable_evaluate()->set_every_steps(2);
  run.options.spec.mutable_evaluate()->set_max_prompts(5);
  std::vector<size_t> asked;
  run.options.ranks = 1;
  run.options.spec.mutable_parallel()->clear_shares();
  run.fake.on_order = [&](const RolloutOrder& order) {
    if (order.sample.temperature > 0) return;
    asked.push_back(order.prompts.size());
    EXPECT_EQ(order.moment.progress, 1) << "rewards of all evaluations compare";
  };
  const auto evaluations = run.Train()[0].client->evaluations();
  EXPECT_EQ(asked, (std::vector<size_t>{5, 5}));
  ASSERT_EQ(evaluations.size(), 2u);
  for (const v1::EvaluationReport& one : evaluations) {
    EXPECT_EQ(one.tokens(), 5) << "answers";
    ASSERT_GE(one.figures_size(), 2);
    EXPECT_EQ(one.figures(0).name(), "reward");
    EXPECT_NEAR(one.figures(0).value(), -one.loss(), 1e-12);
    EXPECT_LT(one.loss(), 0);
  }
}

// The step has not begun: nothing of it is kept, and the next generation samples the same.
TEST(Grpo, AStopDuringSamplingIsObeyedAtOnce) {
  const TestFolder folder;
  const std::vector<RankResult> straight = RunOf(6, folder / "straight").Train();
  std::vector<double> losses;
  for (const bool stops : {true, false}) {
    GrpoRun run = RunOf(6, folder / "parts");
    ScriptedClient* client = nullptr;
    run.options.script = [&](int, ScriptedClient& own) { client = &own; };
    run.fake.on_order = [&](const RolloutOrder& order) {
      if (stops && order.moment.step == 4) client->Set(StopDirective(StopKeeps::kCheckpoint));
    };
    const std::vector<RankResult> results = run.Train();
    EXPECT_EQ(*results[0].outcome, stops ? v1::OUTCOME_STOPPED : v1::OUTCOME_COMPLETED);
    EXPECT_EQ(results[0].losses.size(), stops ? 4u : 2u);
    losses.insert(losses.end(), results[0].losses.begin(), results[0].losses.end());
  }
  EXPECT_EQ(losses, straight[0].losses);
}

TEST(Grpo, WhatCannotBeIsSaidAtOnce) {
  const TestFolder folder;
  const auto refusal = [&](const std::function<void(GrpoRun&)>& change) {
    GrpoRun run = RunOf(4, folder.path());
    change(run);
    return std::string(Grpo::Create(run.options.spec, {TinyPrompts(run.prompts), {}, {}}, nullptr)
                           .status()
                           .message());
  };
  EXPECT_EQ(refusal([](GrpoRun&) {}), "");
  EXPECT_THAT(refusal([](GrpoRun& run) { run.prompts = 3; }), HasSubstr("the data have 3"));
  EXPECT_THAT(refusal([](GrpoRun& run) { run.train().mutable_rollout()->set_samples(1); }),
              HasSubstr("2 or more"));
  EXPECT_THAT(refusal([](GrpoRun& run) { run.train().mutable_rollout()->set_samples(5); }),
              HasSubstr("global_batch 16"));
  EXPECT_THAT(refusal([](GrpoRun& run) { run.train().mutable_rollout()->set_max_new_tokens(29); }),
              HasSubstr("has room for 1 to 3"));
}

}  // namespace
}  // namespace espalier
