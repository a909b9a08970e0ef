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

}  // namespace
}  // namespace espalier
