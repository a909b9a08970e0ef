// Advantages, token weights and losses of policies are those of their definitions.
#include "worker/task/policy_loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/worker/support/tiny_model.h"

namespace espalier {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using torch::Tensor;

auto Near(double value) { return DoubleNear(value, 1e-5); }

TEST(Advantages, OfAGroupAreThoseOfTheVector) {
  const std::vector<double> rewards = {1, 0, 0.5, 0.5};  // deviation 0.408248
  const Advantages made = AdvantagesOf(rewards, 4, AdvantageScale::kGroup);
  EXPECT_THAT(made.of, ElementsAre(Near(1.22444), Near(-1.22444), Near(0), Near(0)));
  EXPECT_EQ(made.zero_groups, 0);
  EXPECT_NEAR(made.mean_deviation, 0.408248, 1e-6);
  EXPECT_THAT(AdvantagesOf(rewards, 4, AdvantageScale::kNone).of,
              ElementsAre(Near(0.5), Near(-0.5), Near(0), Near(0)));
}

TEST(Advantages, OfTheBatchShareOneDivisor) {
  const std::vector<double> rewards = {1, 0, 4, 2};
  const double deviation = std::sqrt((0.5625 + 3.0625 + 5.0625 + 0.0625) / 3);
  const Advantages made = AdvantagesOf(rewards, 2, AdvantageScale::kBatch);
  EXPECT_THAT(made.of, ElementsAre(Near(0.5 / (deviation + 1e-4)), Near(-0.5 / (deviation + 1e-4)),
                                   Near(1 / (deviation + 1e-4)), Near(-1 / (deviation + 1e-4))));
}

// Their mean may be another number than each: of three times 0.1 it is.
TEST(Advantages, OfEqualRewardsAreNothingAndAreCounted) {
  for (const AdvantageScale scale :
       {AdvantageScale::kGroup, AdvantageScale::kBatch, AdvantageScale::kNone}) {
    const Advantages made = AdvantagesOf({0.1, 0.1, 0.1, 2, 1, 0}, 3, scale);
    EXPECT_EQ(made.of[0], 0);
    EXPECT_EQ(made.of[2], 0);
    EXPECT_NE(made.of[3], 0);
    EXPECT_EQ(made.zero_groups, 1);
  }
  EXPECT_EQ(AdvantagesOf({}, 3, AdvantageScale::kGroup).mean_deviation, 0);
}

// Parts of a reward that are added in another order: a Wordle guess's of its letters.
TEST(Advantages, OfRewardsThatDifferByRoundingAreNothing) {
  const double sums[] = {-0.5 + 0.05 + -0.5 + 0.05 + 0.05 + 1, -0.5 + 0.05 + 0.05 + 0.05 - 0.5 + 1};
  ASSERT_NE(sums[0], sums[1]);
  for (const AdvantageScale scale :
       {AdvantageScale::kGroup, AdvantageScale::kBatch, AdvantageScale::kNone}) {
    const Advantages made = AdvantagesOf(sums, 2, scale);
    EXPECT_THAT(made.of, ElementsAre(0, 0));
    EXPECT_EQ(made.zero_groups, 1);
  }
  EXPECT_EQ(AdvantagesOf({1e-3, 2e-3}, 2, AdvantageScale::kNone).zero_groups, 0);
}

TEST(TokenWeights, AreThoseOfTheirAggregations) {
  const std::vector<int64_t> tokens = {2, 4, 6};
  EXPECT_THAT(TokenWeights(Aggregation::kDapo, tokens, 8), ElementsAre(1, 1, 1));
  EXPECT_THAT(TokenWeights(Aggregation::kGrpo, tokens, 8),
              ElementsAre(Near(0.5), Near(0.25), Near(1.0 / 6)));
  EXPECT_THAT(TokenWeights(Aggregation::kDrGrpo, tokens, 8),
              ElementsAre(Near(0.125), Near(0.125), Near(0.125)));
  EXPECT_THAT(TokenWeights(Aggregation::kBnpo, tokens, 8),
              ElementsAre(Near(0.25), Near(0.25), Near(0.25)))
      << "3 completions of 12 tokens, which a mean over completions divides by 3 again";
}

TEST(Settings, HaveTheNamesOfTheJobFile) {
  for (const char* name : {"group", "batch", "none"}) EXPECT_TRUE(ParseAdvantageScale(name).ok());
  for (const char* name : {"dapo", "grpo", "dr_grpo", "bnpo"}) {
    EXPECT_TRUE(ParseAggregation(name).ok());
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParseAdvantageScale("std").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseAggregation("mean").status()));
}

struct PolicyCase {
  const char* name;
  bool old = false, reference = false;
  double temperature = 1;
};

class PolicyLoss : public testing::TestWithParam<PolicyCase> {};
INSTANTIATE_TEST_SUITE_P(Of, PolicyLoss,
                         testing::Values(PolicyCase{"OnPolicy"}, PolicyCase{"Clipped", true},
                                         PolicyCase{"Divergence", false, true},
                                         PolicyCase{"AllAtOtherTemperature", true, true, 0.4}),
                         [](const auto& info) { return std::string(info.param.name); });

// By autograd, from all logits.
Tensor Expected(const Tensor& log_p, const PolicyRows& rows, const PolicyLimits& limits) {
  const Tensor old = rows.old.defined() ? rows.old : log_p.detach();
  const Tensor ratio = torch::exp(log_p - old);
  const Tensor clipped = torch::clamp(ratio, 1 - limits.clip_low, 1 + limits.clip_high);
  Tensor loss = -torch::min(ratio * rows.advantage, clipped * rows.advantage);
  if (!rows.reference.defined()) return loss;
  const Tensor d = rows.reference - log_p;
  return loss + limits.kl * (torch::exp(d) - d - 1);
}

TEST_P(PolicyLoss, HasTheValueAndTheGradientsOfTheFormula) {
  const PolicyCase& of = GetParam();
  torch::manual_seed(2);
  const TinyModel chunked(TinyModelConfig()), whole(TinyModelConfig());
  const Tensor ids = SomeIds(3, 20, 23);
  Tensor targets = (ids * 3 + 1).remainder(23);
  targets.narrow(1, 0, 5).fill_(kIgnoredTarget);  // prompts
  const Tensor counted = targets.ne(kIgnoredTarget).flatten();
  const PolicyLimits limits{.clip_low = 0.2, .clip_high = 0.3, .kl = 0.1};
  const auto log_p_of = [&](const TinyModel& model) {
    const Tensor all = torch::log_softmax(model.decoder->Logits(ids) / of.temperature, 2);
    return all.gather(2, targets.clamp_min(0).unsqueeze(2)).flatten();
  };
  const Tensor at_first = log_p_of(whole).detach();
  PolicyRows rows{torch::randn({60}), {}, {}};
  if (of.old) rows.old = at_first + torch::randn({60}) * 0.3;
  if (of.reference) rows.reference = at_first + torch::randn({60}) * 0.3;
  const Tensor weights = torch::rand({60});
  const auto function = [&](const Tensor& log_p, int64_t first) {
    const auto part = [&](const Tensor& all) {
      return all.defined() ? all.narrow(0, first, log_p.numel()) : all;
    };
    return PolicyTerms(log_p, {part(rows.advantage), part(rows.old), part(rows.reference)}, limits);
  };
  const Tensor found = chunked.decoder->LossSum(
      ids, targets, {.weights = weights, .function = function, .temperature = of.temperature});
  const Tensor terms = Expected(log_p_of(whole), rows, limits) * weights;
  const Tensor expected = terms.masked_fill(counted.logical_not(), 0).sum();
  EXPECT_NEAR(found.item<double>(), expected.item<double>(), 2e-5);
  found.backward();
  expected.backward();
  for (const Parameter& parameter : chunked.parameters.all()) {
    const Tensor other = whole.parameters.Find(parameter.shape.name)->leaf.grad();
    EXPECT_LT(LargestDifference(parameter.leaf.grad(), other), 1e-4) << parameter.shape.name;
    EXPECT_GT(other.abs().max().item<double>(), 1e-3) << parameter.shape.name;
  }
}

// What moves nothing in the gradient is what is counted.
TEST(PolicyTerms, OfClippedTokensHaveNoSlope) {
  const PolicyLimits limits{.clip_low = 0.2, .clip_high = 0.3};
  for (const double ratio : {0.5, 0.79, 0.81, 1.0, 1.29, 1.31, 4.0}) {
    for (const double advantage : {-1.5, 0.0, 2.0}) {
      const Tensor old = torch::zeros({1});
      const RowLoss::Terms terms = PolicyTerms(torch::full({1}, std::log(ratio)),
                                               {torch::full({1}, advantage), old, {}}, limits);
      const bool moves = terms.derivative.item<double>() != 0;
      EXPECT_EQ(IsClipped(std::log(ratio), advantage, limits), !moves && advantage != 0)
          << ratio << ", " << advantage;
    }
  }
}

TEST(PolicyTerms, AreFiniteHoweverFarAPolicyHasGone) {
  const Tensor far = torch::tensor({-200.0F, 0.0F}), near = torch::tensor({0.0F, -200.0F});
  for (const double advantage : {-1.0, 0.0, 1.0}) {
    const RowLoss::Terms terms =
        PolicyTerms(far, {torch::full({2}, advantage), near, near}, {.kl = 0.1});
    EXPECT_TRUE(terms.loss.isfinite().all().item<bool>());
    EXPECT_TRUE(terms.derivative.isfinite().all().item<bool>());
  }
  EXPECT_TRUE(std::isfinite(Divergence(500)));
}

TEST(Divergence, IsTheEstimatorK3) {
  EXPECT_EQ(Divergence(0), 0);
  EXPECT_NEAR(Divergence(1), std::exp(1.0) - 2, 1e-12);
  EXPECT_NEAR(Divergence(-1), std::exp(-1.0), 1e-12);
}

}  // namespace
}  // namespace espalier
