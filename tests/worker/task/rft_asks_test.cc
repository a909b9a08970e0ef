// Which completions of rft are made, and which of them become rows.
#include "worker/task/rft_asks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

// What a sampler makes of asks: a prompt's sample of the number that `right` says is accepted, and
// all behind it.
std::vector<Rollout> Answer(const std::vector<RftAsk>& asks,
                            const std::map<int64_t, int64_t>& right) {
  std::vector<Rollout> all;
  for (size_t place = 0; place < asks.size(); ++place) {
    const RftAsk& ask = asks[place];
    for (int64_t sample = ask.first; sample < ask.first + ask.samples; ++sample) {
      Rollout& one = all.emplace_back();
      one.prompt = static_cast<int64_t>(place);
      one.sample = sample;
      one.text = absl::StrCat(ask.prompt, "/", sample);
      const auto found = right.find(ask.prompt);
      if (found == right.end() || sample < found->second) one.judgement.invalid = "wrong";
    }
  }
  return all;
}

std::vector<std::string> TextsOf(const RftProgress& progress) {
  std::vector<std::string> texts;
  for (const RftRow& row : progress.rows) texts.push_back(row.text);
  return texts;
}

TEST(RftAsks, RowsAreThoseOfTheFirstAcceptedSamplesWhateverTheOrdersHold) {
  const RftLimits limits{.prompts = 6, .samples = 15};
  const std::map<int64_t, int64_t> right = {{0, 0}, {1, 6}, {2, 1}, {4, 14}, {5, 3}};
  for (const int64_t most : {1, 4, 7, 100}) {
    RftProgress progress;
    int64_t made = 0;
    for (;;) {
      const std::vector<RftAsk> asks = NextAsks(progress, limits, most);
      if (asks.empty()) break;
      const std::vector<Rollout> all = Answer(asks, right);
      made += static_cast<int64_t>(all.size());
      TakeUp(asks, limits, all, progress);
    }
    EXPECT_EQ(progress.done(), 6);
    EXPECT_THAT(TextsOf(progress), ElementsAre("0/0", "1/6", "2/1", "4/14", "5/3")) << most;
    EXPECT_EQ(made, 1 + 8 + 2 + 15 + 15 + 4) << "1, 1, 2, 4 and the last 7";
  }
}

// Else two machines would wait for the last few of one prompt after the other.
TEST(RftAsks, HardPromptsAndNewOnesFillAnOrder) {
  RftProgress progress;
  progress.prompts = 10;
  progress.pending = {{.prompt = 3, .made = 2}, {.prompt = 8, .made = 1}};
  const RftLimits limits{.prompts = 100, .samples = 3};
  const std::vector<RftAsk> asks = NextAsks(progress, limits, 20);
  ASSERT_EQ(asks.size(), 20U);
  EXPECT_EQ(asks[0].first, 2);
  EXPECT_EQ(asks[0].samples, 1) << "there are no more";
  EXPECT_EQ(asks[2].prompt, 10);
  TakeUp(asks, limits, Answer(asks, {{8, 1}}), progress);
  EXPECT_EQ(progress.prompts, 28);
  EXPECT_EQ(progress.pending.size(), 18U);
  EXPECT_THAT(TextsOf(progress), ElementsAre("8/1"));
}

TEST(RftAsks, WhatDoesNotFitIsAskedLater) {
  RftProgress progress;
  progress.prompts = 2;
  progress.pending = {{.prompt = 0, .made = 4}, {.prompt = 1, .made = 4}};
  const RftLimits limits{.prompts = 2, .samples = 8};
  const std::vector<RftAsk> asks = NextAsks(progress, limits, 2);
  ASSERT_EQ(asks.size(), 1U) << "one at least";
  TakeUp(asks, limits, Answer(asks, {}), progress);
  EXPECT_THAT(progress.pending, ElementsAre(RftPending{.prompt = 1, .made = 4}));
}

}  // namespace
}  // namespace espalier
