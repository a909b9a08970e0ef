#include "worker/model/generate.h"

#include <gtest/gtest.h>

#include "tests/worker/support/tiny_model.h"

namespace espalier {
namespace {

std::vector<int32_t> Draws(const SampleOptions& options, int count) {
  const std::vector<float> logits = {1, 3, 2, -4};
  SplitMix64 random(9);
  std::vector<int32_t> counts(logits.size());
  for (int i = 0; i < count; ++i) ++counts[SampleToken(logits, options, random)];
  return counts;
}

TEST(SampleToken, FollowsTheSoftmax) {
  const auto counts = Draws({}, 100000);
  const double total = std::exp(1) + std::exp(3) + std::exp(2) + std::exp(-4);
  EXPECT_NEAR(counts[0] / 1e5, std::exp(1) / total, 0.006);
  EXPECT_NEAR(counts[1] / 1e5, std::exp(3) / total, 0.006);
  EXPECT_NEAR(counts[2] / 1e5, std::exp(2) / total, 0.006);
}

TEST(SampleToken, LimitsKeepTheLikeliest) {
  EXPECT_EQ(Draws({.temperature = 0}, 100), (std::vector<int32_t>{0, 100, 0, 0}));
  EXPECT_EQ(Draws({.top_k = 1}, 100), (std::vector<int32_t>{0, 100, 0, 0}));
  const auto two = Draws({.top_k = 2}, 1000);
  EXPECT_EQ(two[0] + two[3], 0);
  EXPECT_GT(two[2], 0);
  // 0.665, 0.245 and 0.090 in falling order: 0.9 needs the first two.
  const auto nucleus = Draws({.top_p = 0.9}, 1000);
  EXPECT_EQ(nucleus[0] + nucleus[3], 0);
  EXPECT_GT(nucleus[2], 0);
}

TEST(Generate, ValuesThatAreNoNumbersAreAnErrorNotText) {
  const TinyModel model(TinyModelConfig());
  torch::NoGradGuard no_grad;
  model.parameters.Get("model.norm.weight").fill_(std::nan(""));
  const auto ids = Generate(*model.decoder, std::vector<int32_t>{3, 1}, {.max_new_tokens = 2});
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kDataLoss) << ids.status();
}

TEST(Generate, GreedyEqualsRecomputingEveryStep) {
  const TinyModel model(TinyModelConfig());
  const std::vector<int32_t> prompt = {3, 1, 4};
  const auto ids =
      Generate(*model.decoder, prompt, {.max_new_tokens = 12, .sample = {.temperature = 0}});
  ASSERT_TRUE(ids.ok()) << ids.status();
  std::vector<int64_t> all(prompt.begin(), prompt.end());
  for (const int32_t id : *ids) {
    const torch::Tensor logits =
        model.decoder->Logits(torch::tensor(all, torch::kLong).unsqueeze(0));
    EXPECT_EQ(logits[0][static_cast<int64_t>(all.size()) - 1].argmax().item<int64_t>(), id);
    all.push_back(id);
  }
  EXPECT_EQ(ids->size(), 12U);
}

TEST(Generate, SeedDecidesAndStopIdsAndCallbacksEnd) {
  const TinyModel model(TinyModelConfig());
  const auto run = [&](GenerateOptions options) { return *Generate(*model.decoder, {5}, options); };
  const auto first = run({.max_new_tokens = 20, .seed = 4});
  EXPECT_EQ(run({.max_new_tokens = 20, .seed = 4}), first);
  EXPECT_NE(run({.max_new_tokens = 20, .seed = 5}), first);
  const auto stopped = run({.max_new_tokens = 20, .seed = 4, .stop_ids = {first[6]}});
  EXPECT_LE(stopped.size(), 6U);
  std::vector<int32_t> streamed;
  const auto called = run({.max_new_tokens = 20, .seed = 4, .on_token = [&](int32_t id) {
                             streamed.push_back(id);
                             return streamed.size() < 3;
                           }});
  EXPECT_EQ(called, streamed);
  EXPECT_EQ(called.size(), 3U);
}

TEST(Generate, BadRequestsAreRefused) {
  const TinyModel model(TinyModelConfig());
  const auto code = [&](std::vector<int32_t> prompt, GenerateOptions options) {
    return Generate(*model.decoder, prompt, options).status().code();
  };
  const auto refused = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code({}, {}), refused);
  EXPECT_EQ(code({23}, {.max_new_tokens = 1}), refused);
  EXPECT_EQ(code({1}, {.max_new_tokens = 64}), refused);  // the model has 64 positions
  EXPECT_EQ(code({1}, {.max_new_tokens = 1, .sample = {.temperature = -1}}), refused);
  EXPECT_EQ(code({1}, {.max_new_tokens = 1, .sample = {.top_k = -1}}), refused);
  EXPECT_EQ(code({1}, {.max_new_tokens = 1, .sample = {.top_p = 0}}), refused);
}

}  // namespace
}  // namespace espalier
