#include "worker/generation/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

constexpr int kDraws = 100000;

// How often each id is drawn from logits 1, 3, 2 and -4, each time first.
std::vector<int> Draws(const SampleOptions& options, int count = kDraws) {
  std::vector<int> counts(4);
  for (int i = 0; i < count; ++i) {
    std::vector<float> logits = {1, 3, 2, -4};
    Sampler sampler(options, static_cast<uint64_t>(i), {});
    ++counts[static_cast<size_t>(*sampler.Next(absl::MakeSpan(logits)))];
  }
  return counts;
}

TEST(Sampler, FollowsTheSoftmax) {
  const auto counts = Draws({});
  const double total = std::exp(1) + std::exp(3) + std::exp(2) + std::exp(-4);
  EXPECT_NEAR(counts[0] / 1e5, std::exp(1) / total, 0.006);
  EXPECT_NEAR(counts[1] / 1e5, std::exp(3) / total, 0.006);
  EXPECT_NEAR(counts[2] / 1e5, std::exp(2) / total, 0.006);
}

TEST(Sampler, TheNextChoicesOfASeedFollowTheSoftmaxToo) {
  Sampler sampler({}, 5, {});
  std::vector<int> counts(2);
  for (int i = 0; i < kDraws; ++i) {
    std::vector<float> logits = {0, std::log(3.0F)};
    ++counts[static_cast<size_t>(*sampler.Next(absl::MakeSpan(logits)))];
  }
  EXPECT_NEAR(counts[1] / 1e5, 0.75, 0.006);
}

TEST(Sampler, LimitsKeepTheLikeliest) {
  EXPECT_EQ(Draws({.temperature = 0}, 100), (std::vector<int>{0, 100, 0, 0}));
  EXPECT_EQ(Draws({.top_k = 1}, 100), (std::vector<int>{0, 100, 0, 0}));
  const auto two = Draws({.top_k = 2}, 1000);
  EXPECT_EQ(two[0] + two[3], 0);
  EXPECT_GT(two[2], 0);
  // 0.665, 0.245 and 0.090 in falling order: 0.9 needs the first two.
  const auto nucleus = Draws({.top_p = 0.9}, 1000);
  EXPECT_EQ(nucleus[0] + nucleus[3], 0);
  EXPECT_GT(nucleus[2], 0);
  // 0.368 and 0.135 of the likeliest.
  const auto near = Draws({.min_p = 0.3}, 1000);
  EXPECT_EQ(near[0] + near[3], 0);
  EXPECT_GT(near[2], 0);
}

TEST(Sampler, EqualLogitsAreOrderedById) {
  const auto choose = [](const SampleOptions& options) {
    std::vector<float> logits = {1, 2, 2, 2};
    return *Sampler(options, 3, {}).Next(absl::MakeSpan(logits));
  };
  EXPECT_EQ(choose({.temperature = 0}), 1);
  EXPECT_EQ(choose({.top_k = 1}), 1);
  EXPECT_EQ(choose({.top_p = 0.1}), 1);
}

TEST(Sampler, PenaltiesAreForWhatWasSaid) {
  const SampleOptions repetition = {.temperature = 0, .repetition_penalty = 2};
  const auto next = [](Sampler& sampler, std::vector<float> logits) {
    return *sampler.Next(absl::MakeSpan(logits));
  };
  Sampler of_prompt(repetition, 1, std::vector<int32_t>{1});
  EXPECT_EQ(next(of_prompt, {2.1F, 4, -1}), 0);
  EXPECT_EQ(next(of_prompt, {-1, -3, -1.5F}), 2);  // 0 is in the answer now
  Sampler frequent({.temperature = 0, .presence_penalty = 0.5, .frequency_penalty = 1}, 1,
                   std::vector<int32_t>{2});
  EXPECT_EQ(next(frequent, {0, 1, 3}), 2);  // of answers alone
  EXPECT_EQ(next(frequent, {0, 1.4F, 3}), 2);
  EXPECT_EQ(next(frequent, {0, 1.4F, 3}), 1);
}

TEST(Sampler, WhatIsNoNumberGivesNothing) {
  for (const float bad : {std::nanf(""), INFINITY}) {
    std::vector<float> logits = {1, bad};
    EXPECT_FALSE(Sampler({}, 1, {}).Next(absl::MakeSpan(logits)).has_value());
  }
}

// What batches that differ in rounding rely on.
TEST(Sampler, RoundingOfLogitsChangesNearlyNoChoice) {
  int changed = 0;
  constexpr int kChoices = 20000;
  for (const SampleOptions& options :
       {SampleOptions{}, SampleOptions{.top_p = 0.9}, SampleOptions{.top_k = 20}}) {
    for (int i = 0; i < kChoices; ++i) {
      std::vector<float> logits(50), other(50);
      for (int id = 0; id < 50; ++id) {
        logits[static_cast<size_t>(id)] = static_cast<float>((id * 7919 + i * 31) % 101) * 0.05F;
        other[static_cast<size_t>(id)] =
            logits[static_cast<size_t>(id)] + ((id + i) % 3 - 1) * 1e-6F;
      }
      const auto choose = [&](std::vector<float>& from) {
        return *Sampler(options, static_cast<uint64_t>(i), {}).Next(absl::MakeSpan(from));
      };
      changed += choose(logits) != choose(other) ? 1 : 0;
    }
  }
  EXPECT_LT(changed, 30);
}

TEST(SampleSeed, SharesNothingBetweenPromptsAndSamples) {
  std::vector<uint64_t> seeds;
  for (uint64_t prompt = 0; prompt < 30; ++prompt) {
    for (uint64_t sample = 0; sample < 30; ++sample) seeds.push_back(SampleSeed(7, prompt, sample));
  }
  std::sort(seeds.begin(), seeds.end());
  EXPECT_EQ(std::unique(seeds.begin(), seeds.end()), seeds.end());
}

TEST(CheckSampleOptions, NamesWhatIsOutOfRange) {
  EXPECT_TRUE(CheckSampleOptions({}).ok());
  EXPECT_FALSE(CheckSampleOptions({.temperature = -1}).ok());
  EXPECT_FALSE(CheckSampleOptions({.temperature = std::nan("")}).ok());
  EXPECT_FALSE(CheckSampleOptions({.top_k = -1}).ok());
  EXPECT_FALSE(CheckSampleOptions({.top_p = 0}).ok());
  EXPECT_FALSE(CheckSampleOptions({.min_p = 1.5}).ok());
  EXPECT_FALSE(CheckSampleOptions({.repetition_penalty = 0}).ok());
  EXPECT_FALSE(CheckSampleOptions({.frequency_penalty = INFINITY}).ok());
}

}  // namespace
}  // namespace espalier
