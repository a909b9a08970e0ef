// What recursive models give: after all supervision steps, of what they were trained for.
#include "worker/generation/recursive_generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/support/tiny_trm.h"

namespace espalier {
namespace {

using testing::HasSubstr;

constexpr int32_t kEndOfText = 22;

DecoderConfig TextConfig() {
  DecoderConfig config = TinyTrmConfig(/*causal=*/true);
  config.max_position_embeddings = 20;
  return config;
}

std::vector<int32_t> Greedy(const RecursiveModel& model, int64_t count) {
  auto made = Generate(
      model, {.prompt = {3, 1, 4, 1, 5}, .max_new_tokens = count, .sample = {.temperature = 0}});
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *made : std::vector<int32_t>();
}

// By what the model gives for the last place of all ids so far, after all steps, one by one.
TEST(RecursiveGeneration, EachIdFollowsFromAllSupervisionSteps) {
  const TinyTrm tiny(TextConfig());
  torch::NoGradGuard no_grad;
  std::vector<int64_t> ids = {3, 1, 4, 1, 5};
  std::vector<int32_t> expected;
  for (int i = 0; i < 6; ++i) {
    const torch::Tensor row = torch::tensor(ids).unsqueeze(0);
    RecursiveModel::State state = tiny.model->Begin(1, row.size(1));
    for (int step = 0; step < 3; ++step) state = tiny.model->Think(row, state);
    const torch::Tensor last = tiny.model->Logits(state.high)[0][-1];
    ids.push_back(last.argmax().item<int64_t>());
    expected.push_back(static_cast<int32_t>(ids.back()));
  }
  EXPECT_EQ(Greedy(*tiny.model, 6), expected);
}

TEST(RecursiveGeneration, CyclesAndStepsDecideWhatIsSaid) {
  const TinyTrm tiny(TextConfig());
  const std::vector<int32_t> said = Greedy(*tiny.model, 12);
  EXPECT_EQ(said.size(), 12u);
  for (int64_t RecursionConfig::*number :
       {&RecursionConfig::high_cycles, &RecursionConfig::low_cycles,
        &RecursionConfig::halt_max_steps}) {
    DecoderConfig config = TextConfig();
    (*config.recursion).*number += 3;
    EXPECT_NE(Greedy(RecursiveModel(config, tiny.parameters), 12), said);
  }
}

TEST(RecursiveGeneration, EndsAtAStopIdAndWhenItIsTold) {
  const TinyTrm tiny(TextConfig());
  const std::vector<int32_t> said = Greedy(*tiny.model, 12);
  Sequence sequence{.prompt = {3, 1, 4, 1, 5},
                    .max_new_tokens = 12,
                    .sample = {.temperature = 0},
                    .stop_ids = {said[4]}};
  const auto stopped = Generate(*tiny.model, sequence);
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_LE(stopped->size(), 4u);
  sequence.stop_ids = {};
  sequence.on_token = [](int32_t) { return false; };
  EXPECT_EQ(Generate(*tiny.model, sequence)->size(), 1u);
}

TEST(RecursiveGeneration, APuzzleHasAnAnswerForEachPlace) {
  const TinyTrm tiny(TinyTrmConfig(/*causal=*/false));
  for (const std::vector<int32_t>& puzzle : {std::vector<int32_t>{3, 1, 4, 1, 5, 9}, {3, 1, 4}}) {
    const auto answer = Answer(*tiny.model, puzzle, kEndOfText);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->size(), puzzle.size());
  }
}

TEST(RecursiveGeneration, WhatAModelIsNotForIsRefused) {
  const TinyTrm text(TextConfig());
  DecoderConfig config = TinyTrmConfig(/*causal=*/false);
  config.recursion->mix_positions = true;
  const TinyTrm puzzles(config);
  EXPECT_THAT(Answer(*text.model, {1, 2}, kEndOfText).status().message(),
              HasSubstr("answers no puzzles"));
  EXPECT_THAT(Generate(*puzzles.model, {.prompt = {1}, .max_new_tokens = 2}).status().message(),
              HasSubstr("continues no text"));
  EXPECT_THAT(Answer(*puzzles.model, {1, 2, 3, 4, 5, 6, 7}, kEndOfText).status().message(),
              HasSubstr("exceed the 6 positions"));
  EXPECT_THAT(Generate(*text.model, {.prompt = {1}, .max_new_tokens = 20}).status().message(),
              HasSubstr("exceed the 20 positions"));
}

}  // namespace
}  // namespace espalier
