// Direct preference optimisation as a run has it: the loss and its gradient are those of answers by
// themselves, in double precision and by LibTorch's own derivatives; who computes a step does not
// matter; and what is preferred becomes likelier.
#include "worker/task/dpo.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/tiny_model.h"
#include "tests/worker/support/tiny_preferences.h"

namespace espalier {
namespace {

using Figures = std::map<std::string, double>;

constexpr double kBeta = 0.3;

v1::DpoSpec Settings(double label_smoothing = 0) {
  v1::DpoSpec spec;
  spec.set_beta(kBeta);
  spec.set_label_smoothing(label_smoothing);
  return spec;
}

Parameters WithAdapters(const DecoderConfig& config, double stirred) {
  Parameters::Options options = Parameters::ForTraining(torch::kCPU, torch::kDouble);
  options.untied_embedding = EmbeddingGradient::kDense;
  options.lora = LoraConfig{};
  options.lora->rank = 4;
  options.trained = [](const ParameterShape& shape) { return shape.is_adapter(); };
  Parameters parameters = *Parameters::Create(config, options);
  parameters.Initialize(3, 0.2);
  torch::manual_seed(3);
  const torch::NoGradGuard no_grad;
  for (const Parameter& parameter : parameters.trained()) {
    torch::Tensor(parameter.value).copy_(torch::randn(parameter.value.sizes()) * stirred);
  }
  parameters.RefreshCopy();
  return parameters;
}

// The log-probability of an answer, from the logits of its own row.
torch::Tensor LogProbability(const Decoder& decoder, const Samples& pair, size_t part) {
  const RowPart& own = pair.parts[0][part];
  const std::vector<int64_t> ids(pair.tokens.begin() + own.begin, pair.tokens.begin() + own.end);
  const auto length = static_cast<int64_t>(ids.size());
  const torch::Tensor row = torch::tensor(ids, torch::kInt64).unsqueeze(0);
  const torch::Tensor log_p =
      decoder.Logits(row.narrow(1, 0, length - 1)).to(torch::kDouble).log_softmax(2)[0];
  const torch::Tensor targets = row[0].narrow(0, 1, length - 1);
  torch::Tensor sum = torch::zeros({}, torch::kDouble);
  for (int64_t t = 0; t + 1 < length; ++t) {
    if (pair.counted[own.begin + t] == 0) continue;
    sum = sum + log_p[t][targets[t].item<int64_t>()];
  }
  return sum;
}

TEST(Dpo, LossAndGradientAreThoseOfAnswersByThemselves) {
  DecoderConfig config = TinyModelConfig();
  config.vocab_size = 50;
  for (const double smoothing : {0.0, 0.2}) {
    Parameters parameters = WithAdapters(config, 0.1), untrained = WithAdapters(config, 0);
    const Decoder policy(config, parameters), reference(config, untrained);
    const Dpo task(Settings(smoothing), TinyPreferences(9), nullptr);
    const Samples samples = *task.training()->Read({0, 4, 7});
    Transfers transfers{torch::kCPU};
    const TokenBatch batch = task.Batch(samples, {0, 3}, transfers);
    const torch::Tensor loss = task.LossSum(policy, batch, {});
    loss.backward();
    const torch::Tensor gradient = parameters.flat_gradient().Only().clone();
    parameters.flat_gradient().Zero();
    torch::Tensor expected = torch::zeros({}, torch::kDouble);
    for (int64_t i = 0; i < 3; ++i) {
      const Samples pair = *task.training()->Read({samples.ids[i]});
      const auto reward = [&](size_t part) {
        return kBeta * (LogProbability(policy, pair, part) -
                        LogProbability(reference, pair, part).detach());
      };
      const torch::Tensor chosen = reward(0), rejected = reward(1), margin = chosen - rejected;
      expected = expected - (1 - smoothing) * margin.sigmoid().log() -
                 smoothing * margin.neg().sigmoid().log();
      const torch::Tensor told = batch.results[0][i];
      EXPECT_NEAR(told[1].item<double>(), chosen.item<double>(), 1e-5);
      EXPECT_NEAR(told[2].item<double>(), rejected.item<double>(), 1e-5);
      EXPECT_GT(std::abs(margin.item<double>()), 1e-3) << "adapters say nothing";
    }
    expected.backward();
    const torch::Tensor wanted = parameters.flat_gradient().Only();
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
    EXPECT_LT((gradient - wanted).norm().item<double>(), 1e-5 * wanted.norm().item<double>());
  }
}

TEST(Dpo, WhatIsMadeUpIsAsLargeAsWhatIsRead) {
  const Dpo task(Settings(), TinyPreferences(9), nullptr);
  Transfers transfers{torch::kCPU};
  const TokenBatch read = task.Batch(*task.training()->Read({1, 2}), {0, 2}, transfers);
  const TokenBatch made_up = task.MadeUpBatch(2, 32, torch::kCPU);
  EXPECT_EQ(read.shared.begins.sizes(), made_up.shared.begins.sizes());
  ASSERT_EQ(read.kept.size(), made_up.kept.size());
  EXPECT_EQ(read.kept[0].sizes(), made_up.kept[0].sizes());
  ASSERT_EQ(read.results.size(), made_up.results.size());
  EXPECT_EQ(read.results[0].sizes(), made_up.results[0].sizes());
}

struct Split {
  std::vector<int> shares = {1}, micro_batch = {16};
};

WorldOptions OptionsOf(int64_t steps, const std::string& folder, const Task& task,
                       const Split& split = {}) {
  WorldOptions options;
  options.ranks = static_cast<int>(split.shares.size());
  options.spec = TinyPreferenceSpec(steps);
  options.spec.mutable_train()->mutable_schedule()->set_learning_rate(1e-2);
  for (const int share : split.shares) options.spec.mutable_parallel()->add_shares(share);
  for (const int size : split.micro_batch) options.spec.mutable_batch()->add_micro_batch(size);
  options.checkpoints = folder;
  options.task = &task;
  return options;
}

std::vector<RankResult> Train(const WorldOptions& options) {
  std::vector<RankResult> results = TrainWorld(options);
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.fingerprint, results[0].fingerprint) << "replicas differ";
    EXPECT_EQ(result.losses, results[0].losses);
  }
  return results;
}

template <typename Report>
Figures FiguresOf(const Report& report) {
  Figures figures;
  for (const v1::TaskFigure& one : report.figures()) {
    EXPECT_TRUE(IsTaskFigure(one.name())) << one.name();
    figures[one.name()] = one.value();
  }
  return figures;
}

TEST(Dpo, SplitInvarianceHoldsForRanksAndMicroBatches) {
  constexpr int64_t kSteps = 8;
  const TestFolder folder;
  const Dpo task(Settings(), TinyPreferences(100), TinyPreferences(8));
  for (const double dropout : {0.0, 0.2}) {
    const auto run = [&](const std::string& name, const Split& split) {
      WorldOptions options = OptionsOf(kSteps, folder / absl::StrCat(name, dropout), task, split);
      options.spec.mutable_train()->mutable_lora()->set_dropout(dropout);
      return Train(options);
    };
    const std::vector<RankResult> one = run("one", {});
    ASSERT_EQ(one[0].losses.size(), kSteps);
    int number = 0;
    for (const Split& split : {Split{{1}, {3}}, Split{{11, 5}, {2, 5}}, Split{{9, 0, 7}, {4}}}) {
      const std::vector<RankResult> other = run(absl::StrCat(++number), split);
      for (size_t step = 0; step < kSteps; ++step) {
        EXPECT_NEAR(other[0].losses[step], one[0].losses[step], 1e-5) << "step " << step;
        const Figures a = FiguresOf(other[0].client->steps()[step]),
                      b = FiguresOf(one[0].client->steps()[step]);
        ASSERT_EQ(b.size(), 4u);
        EXPECT_NEAR(a.at("preference_margin"), b.at("preference_margin"), 1e-4);
        EXPECT_EQ(one[0].client->steps()[step].tokens(), 16) << "pairs";
      }
    }
  }
}

// By another plan, and other ranks.
TEST(Dpo, AStoppedRunGoesOnAsIfItHadNotBeen) {
  constexpr int64_t kSteps = 9;
  const TestFolder folder;
  const Dpo task(Settings(), TinyPreferences(100), TinyPreferences(8));
  const std::vector<RankResult> straight = Train(OptionsOf(kSteps, folder / "straight", task));
  std::vector<double> losses;
  const auto part = [&](const Split& split, int64_t until) {
    WorldOptions options = OptionsOf(kSteps, folder / "parts", task, split);
    if (until < kSteps) options.script = StopAfter(until, StopKeeps::kCheckpoint);
    const std::vector<RankResult> results = Train(options);
    losses.insert(losses.end(), results[0].losses.begin(), results[0].losses.end());
    return results[0].start.step;
  };
  part({}, 4);
  EXPECT_EQ(part({{3, 13}, {4}}, kSteps), Step(4));
  ASSERT_EQ(losses.size(), straight[0].losses.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], straight[0].losses[i], 1e-5);
}

// At first the model is its reference: every pair loses log 2. Validation has other pairs.
TEST(Dpo, MakesTheChosenAnswersLikelierThanTheRejected) {
  const TestFolder folder;
  const Dpo task(Settings(), TinyPreferences(160), TinyPreferences(60, /*seed=*/2));
  WorldOptions options = OptionsOf(60, folder.path(), task, {{2, 1}, {4}});
  options.validation = true;
  options.spec.mutable_evaluate()->set_every_steps(30);
  const std::vector<RankResult> results = Train(options);
  const std::vector<v1::StepReport> steps = results[0].client->steps();
  EXPECT_NEAR(steps[0].loss(), std::log(2), 1e-6);
  EXPECT_NEAR(FiguresOf(steps[0]).at("preference_chosen"), 0, 1e-6);
  EXPECT_GT(FiguresOf(steps.back()).at("preference_accuracy"), 0.7);
  const Figures last = FiguresOf(results[0].client->evaluations().back());
  EXPECT_EQ(results[0].client->evaluations().back().tokens(), 60) << "pairs";
  EXPECT_GT(last.at("preference_accuracy"), 0.7) << "pairs that it has not seen; 0.8 and more";
  EXPECT_LT(results[0].client->evaluations().back().loss(), 0.65) << "0.56 was measured";
  EXPECT_NEAR(last.at("preference_margin"),
              last.at("preference_chosen") - last.at("preference_rejected"), 1e-6);
}

// 21 pairs in batches of 16: the second step of an epoch has 5, and a rank of two may have none.
TEST(Dpo, EpochsEndWithWhatIsLeft) {
  const Dpo task(Settings(), TinyPreferences(21), TinyPreferences(8));
  std::vector<std::vector<double>> losses;
  for (const std::vector<int>& shares : std::vector<std::vector<int>>{{1}, {3, 1}}) {
    const TestFolder folder;
    WorldOptions options = OptionsOf(4, folder.path(), task, {shares, {16}});
    options.spec.mutable_train()->set_epochs(2);
    const std::vector<RankResult> results = Train(options);
    EXPECT_EQ(results[0].client->steps()[1].tokens(), 5);
    EXPECT_EQ(FiguresOf(results[0].client->steps()[1]).size(), 4u);
    losses.push_back(results[0].losses);
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(losses[1][i], losses[0][i], 1e-5);
}

}  // namespace
}  // namespace espalier
