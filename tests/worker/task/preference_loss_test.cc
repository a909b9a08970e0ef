// The loss of preferences, against sums in double precision that are made here.
#include "worker/task/preference_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace espalier {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Two pairs in rows of seven columns, the first of which is of the prompt.
struct Numbers {
  std::vector<double> log_p = {0, -1.5, -0.25, 0, -3, -2, 0, 0, -0.5, 0, 0, -0.125, -6, -1};
  std::vector<double> reference = {0, -2, -0.5, 0, -2.5, -1, 0, 0, -1, 0, 0, -0.25, -5, -2};
  std::vector<double> sides = {0, 1, 1, 0, -1, -1, 0, 0, 1, 0, 0, -1, -1, -1};
};

torch::Tensor Matrix(const std::vector<double>& values) {
  return torch::tensor(values, torch::kDouble).view({2, 7});
}

TEST(PreferenceLoss, IsEquationSevenOfThePaper) {
  const Numbers n;
  for (const double beta : {0.1, 0.7}) {
    for (const double smoothing : {0.0, 0.2}) {
      const PairRewards rewards =
          RewardsOf(Matrix(n.log_p), Matrix(n.reference), Matrix(n.sides), beta);
      const PairTerms terms = PreferenceTerms(rewards.Margin(), smoothing);
      for (size_t pair = 0; pair < 2; ++pair) {
        double chosen = 0, rejected = 0;
        for (size_t i = 7 * pair; i < 7 * (pair + 1); ++i) {
          (n.sides[i] > 0 ? chosen : rejected) += beta * (n.log_p[i] - n.reference[i]);
        }
        const auto at = static_cast<int64_t>(pair);
        EXPECT_NEAR(rewards.chosen[at].item<double>(), chosen, 1e-12);
        EXPECT_NEAR(rewards.rejected[at].item<double>(), rejected, 1e-12);
        const double m = chosen - rejected;
        EXPECT_NEAR(terms.loss[at].item<double>(),
                    -(1 - smoothing) * std::log(Sigmoid(m)) - smoothing * std::log(Sigmoid(-m)),
                    1e-12);
        EXPECT_NEAR(terms.derivative[at].item<double>(),
                    -(1 - smoothing) * Sigmoid(-m) + smoothing * Sigmoid(m), 1e-12);
      }
    }
  }
}

// By differences of the loss as one changes log p of each target.
TEST(PreferenceLoss, OfATargetHasItsShareAndItsDerivative) {
  constexpr double kBeta = 0.4, kSmoothing = 0.1, kStep = 1e-5;
  const Numbers n;
  const auto loss = [&](const std::vector<double>& log_p) {
    return PreferenceTerms(
        RewardsOf(Matrix(log_p), Matrix(n.reference), Matrix(n.sides), kBeta).Margin(), kSmoothing);
  };
  const PairTerms pairs = loss(n.log_p);
  const PairTerms targets = OfTargets(pairs, Matrix(n.sides), kBeta);
  EXPECT_LT((targets.loss.view({2, 7}).sum(1) - pairs.loss).abs().max().item<double>(), 1e-12);
  for (size_t i = 0; i < n.log_p.size(); ++i) {
    std::vector<double> more = n.log_p, less = n.log_p;
    more[i] += kStep;
    less[i] -= kStep;
    const double slope =
        (loss(more).loss.sum() - loss(less).loss.sum()).item<double>() / (2 * kStep);
    EXPECT_NEAR(targets.derivative[static_cast<int64_t>(i)].item<double>(), slope, 1e-8)
        << "target " << i;
  }
}

TEST(PreferenceLoss, OfFarMarginsIsFinite) {
  const PairTerms terms = PreferenceTerms(torch::tensor({-1e4F, -100.0F, 0.0F, 100.0F, 1e4F}), 0);
  const std::vector<float> losses = {1e4F, 100, std::log(2.0F), 0, 0},
                           slopes = {-1, -1, -0.5, 0, 0};
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(terms.loss[i].item<float>(), losses[i], 1e-3);
    EXPECT_NEAR(terms.derivative[i].item<float>(), slopes[i], 1e-6);
  }
}

}  // namespace
}  // namespace espalier
