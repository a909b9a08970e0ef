// Supervised fine-tuning: only the completions' tokens count, however the step is divided.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "worker/task/next_token.h"

namespace espalier {
namespace {

TEST(Sft, CountsTheCompletionAndItsEndAlone) {
  const NextToken task(TinyExamples(7));
  const Samples samples = *task.training()->Read({2, 5});
  Transfers transfers{torch::kCPU};
  const TokenBatch batch = task.Batch(samples, {0, 2}, transfers);
  const torch::Tensor counted = batch.targets.ne(kIgnoredTarget);
  EXPECT_EQ(counted[0].sum().item<int64_t>(), 1 + 2 % 6 + 1);
  EXPECT_EQ(counted[1].sum().item<int64_t>(), 1 + 5 % 6 + 1);
  EXPECT_EQ(samples.LossTokens({0, 2}), counted.sum().item<int64_t>());
  // The first that counts is given by the prompt's last token.
  EXPECT_FALSE(counted[0][3 + 2 - 2].item<bool>());
  EXPECT_TRUE(counted[0][3 + 2 - 1].item<bool>());
}

// Of one row everything is contiguous, and nothing is copied that need not be.
TEST(Sft, ABatchOfOneRowLeavesItsInputsAlone) {
  const NextToken task(TinyExamples(7));
  const Samples samples = *task.training()->Read({4});
  const std::vector<int64_t> before = samples.tokens;
  Transfers transfers{torch::kCPU};
  const TokenBatch batch = task.Batch(samples, {0, 1}, transfers);
  EXPECT_EQ(samples.tokens, before);
  EXPECT_GE(batch.inputs.min().item<int64_t>(), 0);
  EXPECT_EQ(batch.targets.ne(kIgnoredTarget).sum().item<int64_t>(), samples.LossTokens({0, 1}));
}

// The gradient of a step is the sum over all tokens that count, divided by their number, on any
// division: tokens are not spread evenly over the ranks here.
TEST(Sft, SplitInvarianceHoldsUnderAMask) {
  constexpr int64_t kSteps = 20;
  const NextToken task(TinyExamples(160), TinyExamples(40));
  struct Split {
    std::vector<int> shares, micro_batch;
  };
  std::vector<std::vector<double>> losses;
  int64_t tokens = 0;
  for (const Split& split :
       {Split{{1}, {16}}, Split{{1}, {5}}, Split{{3, 1}, {4, 2}}, Split{{1, 1}, {1, 8}}}) {
    const TestFolder folder;
    WorldOptions options;
    options.ranks = static_cast<int>(split.shares.size());
    options.spec = TinySpec(kSteps);
    options.spec.mutable_train()->set_task(v1::TASK_SFT);
    for (const int share : split.shares) options.spec.mutable_parallel()->add_shares(share);
    for (const int size : split.micro_batch) options.spec.mutable_batch()->add_micro_batch(size);
    options.checkpoints = folder.path();
    options.validation = true;
    options.task = &task;
    const std::vector<RankResult> results = TrainWorld(options);
    for (const RankResult& result : results) {
      ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
      EXPECT_EQ(result.fingerprint, results[0].fingerprint);
    }
    losses.push_back(results[0].losses);
    // True counts, of steps and of the evaluation.
    const v1::StepReport first = results[0].client->steps().front();
    EXPECT_LT(first.tokens(), 16 * 8);
    if (tokens == 0) tokens = first.tokens();
    EXPECT_EQ(first.tokens(), tokens);
    std::vector<int64_t> all(40);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(results[0].client->evaluations().back().tokens(),
              task.validation()->Read(all)->LossTokens({0, 40}));
  }
  for (size_t i = 1; i < losses.size(); ++i) {
    ASSERT_EQ(losses[i].size(), kSteps);
    for (int64_t step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(losses[i][step], losses[0][step], 1e-5 * losses[0][step]) << "step " << step;
    }
  }
  EXPECT_LT(losses[0].back(), 0.8 * losses[0].front()) << "it does not learn";
}

// Two conversations in rows of 200 tokens, of which few count.
Samples LongRows() {
  constexpr int64_t kTime = 200;
  Samples samples{.ids = {0, 1}, .tokens = {}, .counted = {}};
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t t = 0; t <= kTime; ++t) samples.tokens.push_back((t * 7 + row * 3) % 50);
    for (int64_t t = 0; t < kTime; ++t) samples.counted.push_back(t % 9 < 4 && t < 30 + row * 50);
  }
  return samples;
}

struct PassResult {
  double loss = 0;
  torch::Tensor gradient;
};

PassResult PassOver(const TokenBatch& batch) {
  const DecoderConfig config = TinyConfig();
  Parameters parameters = *Parameters::Create(config, Parameters::ForTraining(torch::kCPU));
  parameters.Initialize(3, 0.2);
  const torch::Tensor sum =
      Decoder(config, parameters).LossSum(batch.inputs, batch.targets, {}, {});
  sum.backward();
  return {sum.item<double>(), parameters.flat_gradient().Only().clone()};
}

// What lies behind the last target that counts is not computed, and is not missed.
TEST(Sft, APassEndsBehindWhatCounts) {
  const Samples samples = LongRows();
  Transfers transfers{torch::kCPU};
  const TokenBatch batch = MakeTokenBatch(samples, {0, 2}, transfers);
  EXPECT_EQ(batch.inputs.size(1), 128);
  EXPECT_EQ(MakeTokenBatch(samples, {0, 1}, transfers).inputs.size(1), 64);
  TokenBatch whole;
  const torch::Tensor windows = torch::tensor(samples.tokens, torch::kInt64).view({2, 201});
  whole.inputs = windows.narrow(1, 0, 200).contiguous();
  whole.targets = windows.narrow(1, 1, 200).masked_fill(
      torch::tensor(std::vector<int64_t>(samples.counted.begin(), samples.counted.end()))
          .view({2, 200})
          .eq(0),
      kIgnoredTarget);
  const PassResult cut = PassOver(batch), uncut = PassOver(whole);
  EXPECT_NEAR(cut.loss, uncut.loss, 1e-5 * uncut.loss);
  EXPECT_LT((cut.gradient - uncut.gradient).norm().item<double>(),
            1e-5 * uncut.gradient.norm().item<double>());
}

// 21 samples in batches of 8: the third step of an epoch has 5, and a rank of two may have none.
TEST(Sft, EpochsEndWithWhatIsLeftOnAnyDivision) {
  const NextToken task(TinyExamples(21), TinyExamples(5));
  std::vector<std::vector<double>> losses;
  for (const std::vector<int>& shares : std::vector<std::vector<int>>{{1}, {3, 1}}) {
    const TestFolder folder;
    WorldOptions options;
    options.ranks = static_cast<int>(shares.size());
    options.spec = TinySpec(6);
    options.spec.mutable_train()->set_task(v1::TASK_SFT);
    options.spec.mutable_train()->set_epochs(2);
    options.spec.mutable_train()->set_global_batch(8);
    options.spec.mutable_data()->set_group_by_length(true);
    for (const int share : shares) options.spec.mutable_parallel()->add_shares(share);
    options.checkpoints = folder.path();
    options.task = &task;
    const std::vector<RankResult> results = TrainWorld(options);
    for (const RankResult& result : results) {
      ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    }
    losses.push_back(results[0].losses);
    const auto tokens = [&](int64_t first, int64_t end) {
      int64_t sum = 0;
      for (int64_t s = first; s < end; ++s) {
        sum += results[0].client->steps()[static_cast<size_t>(s)].tokens();
      }
      return sum;
    };
    std::vector<int64_t> all(21);
    std::iota(all.begin(), all.end(), 0);
    const int64_t expected = task.training()->Read(all)->LossTokens({0, 21});
    EXPECT_EQ(tokens(0, 3), expected);
    EXPECT_EQ(tokens(3, 6), expected);
  }
  ASSERT_EQ(losses[1].size(), 6u);
  for (size_t step = 0; step < 6; ++step) {
    EXPECT_NEAR(losses[1][step], losses[0][step], 1e-5 * losses[0][step]) << "step " << step;
  }
}

}  // namespace
}  // namespace espalier
