// What passes of group relative policy optimisation compute: of which completions, with what
// dropped, and of which columns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/tiny_model.h"
#include "tests/worker/task/grpo_run.h"
#include "worker/collective/in_process.h"

namespace espalier {
namespace {

struct OneRank {
  std::vector<std::unique_ptr<Collective>> world = InProcessGroup(1, absl::Seconds(30));
  ProgressBoard board;
  RankContext context{*world[0], RealClock(), board};
};

// What is dropped is that of the pass that found what later ones compare with.
TEST(GrpoPasses, UpdatesThatLearnFromTheSameCompletionsDropTheSame) {
  const TestFolder folder;
  GrpoRun run = RunOf(6, folder.path(), {{2, 1}, {3, 5}}, 3);
  run.options.spec.mutable_model()->set_dropout(0.3);
  run.train().mutable_schedule()->set_learning_rate(0);
  run.train().mutable_grpo()->set_clip_low(1e-3);
  run.train().mutable_grpo()->set_clip_high(1e-3);
  const auto steps = run.Train()[0].client->steps();
  ASSERT_EQ(steps.size(), 6U);
  for (const v1::StepReport& step : steps) EXPECT_EQ(FiguresOf(step).at("clip_fraction"), 0);
  EXPECT_NE(steps[0].loss(), steps[3].loss()) << "of other completions";
}

// Epochs of five prompts go over into each other within steps of four.
TEST(GrpoPasses, APromptThatIsTwiceInAStepHasOtherCompletionsTheSecondTime) {
  constexpr int64_t kPrompts = 5;
  const TestFolder folder;
  GrpoRun run = RunOf(12, folder.path(), {{1, 1}, {8}});
  run.prompts = kPrompts;
  int64_t twice = 0;
  run.fake.on_made = [&](const Decoder&, const RolloutOrder& order, const Rollouts& made) {
    if (order.samples == 1) return;  // an evaluation
    std::map<int64_t, std::vector<std::vector<int32_t>>> of_id;
    for (const Rollout& one : made.all) {
      of_id[order.prompts[static_cast<size_t>(one.prompt)].id].push_back(one.ids);
    }
    EXPECT_EQ(of_id.size(), 4U) << "each has a number of its own";
    for (const auto& [id, completions] : of_id) {
      if (id < kPrompts) continue;
      ++twice;
      EXPECT_NE(completions, of_id.at(id - kPrompts));
    }
  };
  run.options.ranks = 1;
  run.options.spec.mutable_parallel()->clear_shares();
  EXPECT_EQ(run.Train()[0].losses.size(), 12U);
  EXPECT_GT(twice, 0) << "the order shows nothing";
}

// Slots that hold nothing in the middle of what learns from a rollout are filled with what was
// lost.
TEST(GrpoPasses, WhatIsSampledAgainIsWhatWasLost) {
  const TestFolder folder;
  GrpoRun run = RunOf(9, folder.path(), {}, 3);
  run.train().mutable_rollout()->set_temperature(1.5);
  run.train().mutable_rollout()->set_final_temperature(0.5);
  const GrpoPrompts prompts{TinyPrompts(24), {}, {}};
  std::vector<RolloutOrder> orders;
  run.fake.on_order = [&](const RolloutOrder& order) { orders.push_back(order); };
  OneRank world;
  const std::unique_ptr<Practice> practice = *GrpoPractice::Create(
      run.options.spec, prompts, {.context = world.context, .folder = folder.path()},
      std::make_unique<FakeRollouts>(run.fake));
  const TinyModel model(TinyConfig());
  const GrpoNumbers numbers(run.options.spec.train());
  std::vector<torch::Tensor> made;
  for (const Step step : {Step(3), Step(5)}) {
    SlotStates slots;
    ASSERT_TRUE(
        slots.Keep({.slots = 16, .record_bytes = sizeof(GrpoSlot), .numbers = numbers.size()})
            .ok());
    ASSERT_TRUE(*practice->Prepare(step, *model.decoder, {}, slots));
    made.push_back(slots.NextNumbers(step).clone());
  }
  ASSERT_EQ(orders.size(), 2U);
  EXPECT_EQ(orders[1].moment.step, 3);
  EXPECT_EQ(orders[1].moment.progress, orders[0].moment.progress);
  EXPECT_EQ(orders[1].sample.temperature, orders[0].sample.temperature);
  EXPECT_TRUE(torch::equal(made[0], made[1]));
}

// Of 16 completions of 6 tokens behind prompts of 17 to 20: columns from 16 on have logits.
TEST(GrpoPasses, PromptsCostNoLogits) {
  const TestFolder folder;
  GrpoRun run = RunOf(2, folder.path());
  run.prompt_tokens = 17;
  const std::vector<RankResult> results = run.Train();
  Samples samples;
  const int64_t length = run.options.spec.data().sequence_length();
  const GrpoNumbers numbers(run.options.spec.train());
  for (const int64_t prompt : {20, 18}) {
    samples.ids.push_back(prompt);
    samples.tokens.resize(samples.tokens.size() + length + 1, 7);
    samples.counted.resize(samples.ids.size() * static_cast<size_t>(length), 0);
    std::fill_n(samples.counted.end() - length + prompt - 1, 6, uint8_t{1});
    samples.kept.resize(samples.kept.size() + 3 + numbers.size(), 0.5F);
  }
  Transfers transfers(torch::kCPU);
  const TokenBatch batch = run.task->Batch(samples, {0, 2}, transfers);
  const int64_t columns = batch.inputs.size(1);
  EXPECT_GE(columns, 25);
  EXPECT_EQ(batch.targets.size(1), columns - 16);
  EXPECT_EQ(batch.targets.ne(kIgnoredTarget).sum().item<int64_t>(), 12);
  EXPECT_EQ(batch.weights.numel(), 2 * (columns - 16));
  EXPECT_EQ(batch.weights.sum().item<double>(), 12);
  EXPECT_EQ(batch.results[0].sizes(), batch.targets.sizes());
}

// By all logits at once: of the ids that were drawn, behind those before them, the mean of minus
// the log-probabilities.
double EntropyOf(const Decoder& decoder, const RolloutOrder& order, const Rollouts& made,
                 double temperature) {
  double sum = 0;
  int64_t tokens = 0;
  for (const Rollout& one : made.all) {
    const std::vector<int32_t>& prompt = order.prompts[static_cast<size_t>(one.prompt)].ids;
    std::vector<int64_t> ids(prompt.begin(), prompt.end());
    ids.insert(ids.end(), one.ids.begin(), one.ids.end());
    const torch::Tensor logits = decoder.Logits(torch::tensor(ids).unsqueeze(0))[0];
    const torch::Tensor log_p = torch::log_softmax(logits / temperature, 1);
    for (size_t i = 0; i < one.ids.size(); ++i) {
      sum -= log_p[static_cast<int64_t>(prompt.size() + i) - 1][one.ids[i]].item<double>();
    }
    tokens += static_cast<int64_t>(one.ids.size());
  }
  return sum / static_cast<double>(tokens);
}

// Of prompts that a pass has logits of, and of those that it has none of; with limits of sampling,
// which are no part of the policy; the end-of-text id counts.
TEST(GrpoPasses, PassesFindTheProbabilitiesOfWhatWasSampled) {
  for (const int32_t prompt_tokens : {2, 17}) {
    const TestFolder folder;
    GrpoRun run = RunOf(6, folder.path(), {{1}, {5}}, 2);
    run.prompt_tokens = prompt_tokens;
    run.train().mutable_schedule()->set_learning_rate(1e-2);
    run.train().mutable_rollout()->set_temperature(1.5);
    run.train().mutable_rollout()->set_final_temperature(0.5);
    run.train().mutable_rollout()->set_temperature_share(1);
    run.train().mutable_rollout()->set_top_k(30);
    run.train().mutable_rollout()->set_repetition_penalty(1.2);
    run.fake.end_of_text = 3;  // now and then
    std::vector<double> sampled;
    double by_another = 0;  // temperature: how far off
    int64_t ended = 0;
    run.fake.on_made = [&](const Decoder& decoder, const RolloutOrder& order,
                           const Rollouts& made) {
      for (const Rollout& one : made.all) ended += one.stopped ? 1 : 0;
      sampled.push_back(EntropyOf(decoder, order, made, order.sample.temperature));
      by_another =
          std::max(by_another, std::abs(EntropyOf(decoder, order, made, 1) - sampled.back()));
    };
    const auto steps = run.Train()[0].client->steps();
    ASSERT_EQ(sampled.size(), 3U);
    EXPECT_GT(ended, 0);
    for (size_t step = 0; step < 6; ++step) {
      EXPECT_NEAR(FiguresOf(steps[step]).at("entropy"), sampled[step / 2], 1e-4) << step;
    }
    EXPECT_GT(by_another, 1e-3) << "temperatures show nothing";
  }
}

TEST(GrpoPasses, TheTemperatureFollowsItsScheduleAndHoldsForAllUpdates) {
  const TestFolder folder;
  GrpoRun run = RunOf(8, folder.path(), {}, 2);
  run.train().mutable_schedule()->set_learning_rate(1e-4);
  run.train().mutable_rollout()->set_temperature(1.5);
  run.train().mutable_rollout()->set_final_temperature(0.5);
  run.train().mutable_rollout()->set_temperature_share(0.5);
  std::vector<double> temperatures;
  run.fake.on_order = [&](const RolloutOrder& order) {
    temperatures.push_back(order.sample.temperature);
  };
  const auto steps = run.Train()[0].client->steps();
  EXPECT_EQ(temperatures, (std::vector<double>{1.5, 1.0, 0.5, 0.5}));
  for (const v1::StepReport& step : steps) {
    EXPECT_LT(FiguresOf(step).at("clip_fraction"), 0.05) << "by another temperature most would be";
  }
}

}  // namespace
}  // namespace espalier
