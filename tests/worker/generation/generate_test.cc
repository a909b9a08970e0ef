#include <gtest/gtest.h>

#include "tests/worker/support/tiny_model.h"
#include "worker/generation/batch_generator.h"

namespace espalier {
namespace {

TEST(Generate, ValuesThatAreNoNumbersAreAnErrorNotText) {
  const TinyModel model(TinyModelConfig());
  torch::NoGradGuard no_grad;
  model.parameters.Get("model.norm.weight").fill_(std::nan(""));
  const auto ids = Generate(*model.decoder, {.prompt = {3, 1}, .max_new_tokens = 2});
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kDataLoss) << ids.status();
}

TEST(Generate, GreedyEqualsRecomputingEveryStep) {
  const TinyModel model(TinyModelConfig());
  const std::vector<int32_t> prompt = {3, 1, 4};
  const auto ids = Generate(*model.decoder,
                            {.prompt = prompt, .max_new_tokens = 12, .sample = {.temperature = 0}});
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
  const auto run = [&](Sequence sequence) {
    sequence.prompt = {5};
    sequence.max_new_tokens = 20;
    return *Generate(*model.decoder, std::move(sequence));
  };
  const auto first = run({.seed = 4});
  EXPECT_EQ(run({.seed = 4}), first);
  EXPECT_NE(run({.seed = 5}), first);
  EXPECT_LE(run({.seed = 4, .stop_ids = {first[6]}}).size(), 6U);
  std::vector<int32_t> streamed;
  const auto called = run({.seed = 4, .on_token = [&](int32_t id) {
                             streamed.push_back(id);
                             return streamed.size() < 3;
                           }});
  EXPECT_EQ(called, streamed);
  EXPECT_EQ(called.size(), 3U);
}

TEST(Generate, BadRequestsAreRefused) {
  const TinyModel model(TinyModelConfig());
  const auto code = [&](Sequence sequence) {
    return Generate(*model.decoder, std::move(sequence)).status().code();
  };
  const auto refused = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code({}), refused);
  EXPECT_EQ(code({.prompt = {23}, .max_new_tokens = 1}), refused);
  EXPECT_EQ(code({.prompt = {1}, .max_new_tokens = 64}), refused);  // the model has 64 positions
  EXPECT_EQ(code({.prompt = {1}, .max_new_tokens = 1, .sample = {.temperature = -1}}), refused);
  EXPECT_EQ(code({.prompt = {1}, .max_new_tokens = -1}), refused);
}

}  // namespace
}  // namespace espalier
