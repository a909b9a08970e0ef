// The one chunked loss gives the values and gradients of the same loss computed from all logits at
// once, for every function of the target's log-probability that tasks need, by both
// implementations.
#include <gtest/gtest.h>

#include <new>
#include <string>

#include "tests/worker/support/failing_allocator.h"
#include "worker/ops/fused_ops.h"
#include "worker/ops/generic_ops.h"
#include "worker/ops/ops.h"
#include "worker/tensor/torch.h"

namespace espalier {
namespace {

using torch::Tensor;

constexpr int64_t kRows = 2500, kWidth = 12, kVocabulary = 37;  // more than two chunks

struct LossCase {
  const char* name;
  // f(log p) of all rows, by autograd; `old`: log-probabilities of before.
  std::function<Tensor(const Tensor& log_p, const Tensor& old)> formula;
  // Its derivative; null: cross-entropy, which needs none.
  std::function<Tensor(const Tensor& log_p, const Tensor& old)> derivative;
  bool weighted = false;
};

constexpr double kClip = 0.2;

// Schulman et al. 2017, eq. 7, for an advantage of -1 or 1 by row.
Tensor Advantages(const Tensor& like) {
  return torch::arange(like.numel(), like.options()).remainder(2) * 2 - 1;
}
Tensor ClippedSurrogate(const Tensor& log_p, const Tensor& old) {
  const Tensor ratio = torch::exp(log_p - old), a = Advantages(log_p);
  return -torch::min(ratio * a, ratio.clamp(1 - kClip, 1 + kClip) * a);
}
Tensor ClippedSurrogateSlope(const Tensor& log_p, const Tensor& old) {
  const Tensor ratio = torch::exp(log_p - old), a = Advantages(log_p);
  const Tensor clipped = (a.gt(0).logical_and(ratio.gt(1 + kClip)))
                             .logical_or(a.lt(0).logical_and(ratio.lt(1 - kClip)));
  return (-ratio * a).masked_fill(clipped, 0);
}
// The estimator k3 of KL(p || old) by one sample (Schulman 2020).
Tensor KlEstimate(const Tensor& log_p, const Tensor& old) {
  return torch::exp(old - log_p) - (old - log_p) - 1;
}
Tensor KlEstimateSlope(const Tensor& log_p, const Tensor& old) {
  return 1 - torch::exp(old - log_p);
}
Tensor NegativeLogLikelihood(const Tensor& log_p, const Tensor&) { return -log_p; }

std::vector<LossCase> Cases() {
  return {{"NextToken", NegativeLogLikelihood, nullptr},
          {"Weighted", NegativeLogLikelihood, nullptr, true},
          {"PolicyGradient", ClippedSurrogate, ClippedSurrogateSlope},
          {"WeightedPolicyGradient", ClippedSurrogate, ClippedSurrogateSlope, true},
          {"Kl", KlEstimate, KlEstimateSlope, true}};
}

using LossOperation = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const RowLoss&,
                                 const std::function<void()>&);
struct Implementation {
  const char* name;
  LossOperation loss;
};

class ChunkedLoss : public testing::TestWithParam<std::tuple<LossCase, Implementation, double>> {
 protected:
  void SetUp() override {
    torch::manual_seed(3);
    hidden_ = torch::randn({kRows, kWidth});
    head_ = torch::randn({kVocabulary, kWidth}) * 0.4;
    targets_ = (torch::arange(kRows) * 5).remainder(kVocabulary);
    targets_.index_put_({torch::tensor({0, 7, 300, 2499})}, kIgnoredTarget);
    old_ = torch::randn({kRows}) * 0.3 - 3.5;
    weights_ = torch::rand({kRows}) * 2 - 0.5;  // of either sign
  }
  RowLoss Loss() const {
    const LossCase& of = std::get<0>(GetParam());
    RowLoss loss;
    if (of.weighted) loss.weights = weights_;
    if (of.derivative == nullptr) return loss;
    loss.function = [this, of](const Tensor& log_p, int64_t first_row) {
      const Tensor old = old_.narrow(0, first_row, log_p.numel());
      return RowLoss::Terms{of.formula(log_p, old), of.derivative(log_p, old)};
    };
    return loss;
  }
  // From all logits at once.
  Tensor Whole(const Tensor& hidden, const Tensor& head) const {
    const LossCase& of = std::get<0>(GetParam());
    const Tensor all = torch::log_softmax(hidden.mm(head.t()), 1);
    const Tensor log_p = all.gather(1, targets_.clamp_min(0).unsqueeze(1)).squeeze(1);
    Tensor rows = of.formula(log_p, old_);
    if (of.weighted) rows = rows * weights_;
    return rows.masked_fill(targets_.eq(kIgnoredTarget), 0).sum();
  }
  Tensor hidden_, head_, targets_, old_, weights_;
};
INSTANTIATE_TEST_SUITE_P(
    All, ChunkedLoss,
    testing::Combine(testing::ValuesIn(Cases()),
                     testing::Values(Implementation{"Fused", fused_ops::LossSum},
                                     Implementation{"Generic", generic_ops::LossSum}),
                     testing::Values(1.0, 0.25)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + std::get<1>(info.param).name +
             (std::get<2>(info.param) == 1.0 ? "" : "Scaled");
    });

void ExpectClose(const Tensor& a, const Tensor& b) {
  EXPECT_LT((a - b).abs().max().item<double>(), 2e-5 * (1 + b.abs().max().item<double>()));
}

TEST_P(ChunkedLoss, EqualsTheLossOfAllLogits) {
  const Tensor h = hidden_.clone().set_requires_grad(true),
               w = head_.clone().set_requires_grad(true);
  w.mutable_grad() = torch::ones_like(w);  // what is there is added to
  const Tensor h2 = hidden_.clone().set_requires_grad(true),
               w2 = head_.clone().set_requires_grad(true);
  const double upstream = std::get<2>(GetParam());
  int chunks = 0;  // that were told of
  const Tensor loss = std::get<1>(GetParam()).loss(h, w, targets_, Loss(), [&] { ++chunks; });
  const Tensor expected = Whole(h2, w2);
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(),
              1e-3 + 1e-5 * expected.abs().item<double>());
  EXPECT_GE(chunks, std::get<1>(GetParam()).loss == fused_ops::LossSum ? 3 : 1);
  (loss * upstream).backward();
  (expected * upstream).backward();
  ExpectClose(h.grad(), h2.grad());
  ExpectClose(w.grad() - 1, w2.grad());
}

TEST_P(ChunkedLoss, AFrozenHeadHasNoGradientAndChangesNoOther) {
  const Tensor h = hidden_.clone().set_requires_grad(true),
               h2 = hidden_.clone().set_requires_grad(true);
  const Tensor head = head_.clone();
  const auto operation = std::get<1>(GetParam()).loss;
  const auto gradients_of_the_head = [&](const Tensor& hidden, const Tensor& of) {
    const FailingAllocator allocations;
    operation(hidden, of, targets_, Loss(), {}).backward();
    return FailingAllocator::count(of.nbytes());
  };
  EXPECT_EQ(gradients_of_the_head(h, head), 0);
  EXPECT_GT(gradients_of_the_head(h2, head_.clone().set_requires_grad(true)), 0);
  EXPECT_TRUE(torch::equal(h.grad(), h2.grad()));
  EXPECT_FALSE(head.grad().defined());
}

TEST_P(ChunkedLoss, TellsWhichTargetsAreTheLikeliest) {
  RowLoss loss = Loss();
  loss.right = torch::zeros({kRows}, torch::kBool);
  const Tensor best = hidden_.mm(head_.t()).argmax(1);
  targets_ = torch::where(torch::arange(kRows).remainder(3).eq(0), best, targets_);
  targets_[5] = kIgnoredTarget;
  std::get<1>(GetParam()).loss(hidden_, head_, targets_, loss, {});
  const Tensor counted = targets_.ne(kIgnoredTarget);
  EXPECT_TRUE(torch::equal(loss.right.logical_and(counted), best.eq(targets_)));
  EXPECT_GT(loss.right.sum().item<int64_t>(), kRows / 3 - 2);
}

TEST(Temperature, DividesTheLogitsForwardAndBackward) {
  torch::manual_seed(3);
  const Tensor h = torch::randn({kRows, kWidth}).set_requires_grad(true),
               w = torch::randn({kVocabulary, kWidth}).set_requires_grad(true);
  const Tensor h2 = h.detach().clone().set_requires_grad(true),
               w2 = w.detach().clone().set_requires_grad(true);
  const Tensor targets = torch::arange(kRows).remainder(kVocabulary);
  RowLoss loss;
  loss.temperature = 0.3;
  const Tensor found = ops::LossSum(h, w, targets, loss);
  const Tensor log_p = torch::log_softmax(h2.mm(w2.t()) / 0.3, 1);
  const Tensor of_target = log_p.gather(1, targets.unsqueeze(1)).squeeze(1);
  const Tensor expected = of_target.neg().sum();
  EXPECT_NEAR(found.item<double>(), expected.item<double>(), 1e-5 * expected.item<double>());
  found.backward();
  expected.backward();
  ExpectClose(h.grad(), h2.grad());
  ExpectClose(w.grad(), w2.grad());
  ExpectClose(ops::TargetLogProbabilities(h.detach(), w.detach(), targets, 0.3),
              of_target.detach());
}

// In 16 bits, too: of a reference that is the policy's equal the policy must not seem to differ.
TEST(FusedLoss, FindsTheLogProbabilitiesThatAFunctionIsGiven) {
  torch::manual_seed(3);
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    const Tensor h = torch::randn({kRows, kWidth}).mul(3).to(type),
                 w = torch::randn({kVocabulary, kWidth}).mul(3).to(type);
    const Tensor targets = torch::arange(kRows).remainder(kVocabulary);
    Tensor(targets).index_put_({torch::tensor({0, 7})}, kIgnoredTarget);
    const Tensor given = torch::zeros({kRows});
    RowLoss loss;
    loss.function = [&](const Tensor& log_p, int64_t begin) {
      Tensor(given).narrow(0, begin, log_p.size(0)).copy_(log_p);
      return RowLoss::Terms{log_p, torch::ones_like(log_p)};
    };
    ops::LossSum(h, w, targets, loss);
    EXPECT_LT((ops::TargetLogProbabilities(h, w, targets) - given).abs().max().item<double>(), 1e-4)
        << type;
  }
}

// By s(v) itself, in double precision.
TEST(Stablemax, EqualsTheFormulaForwardAndBackward) {
  torch::manual_seed(3);
  const Tensor h = (torch::randn({kRows, kWidth}) * 3).set_requires_grad(true),
               w = torch::randn({kVocabulary, kWidth}).set_requires_grad(true);
  const Tensor targets = torch::arange(kRows).remainder(kVocabulary),
               weights = torch::rand({kRows});
  Tensor(targets).index_put_({torch::tensor({0, 7, 300, 2499})}, kIgnoredTarget);
  const Tensor h2 = h.detach().to(torch::kDouble).set_requires_grad(true),
               w2 = w.detach().to(torch::kDouble).set_requires_grad(true);
  const Tensor logits = h2.mm(w2.t());
  const Tensor s = torch::where(logits >= 0, logits + 1, 1 / (1 - logits.clamp_max(0)));
  const Tensor p = s / s.sum(1, /*keepdim=*/true);
  const Tensor of_target = p.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const Tensor rows = of_target.log().neg() * weights;
  const Tensor expected = rows.masked_fill(targets.eq(kIgnoredTarget), 0).sum();
  const Tensor loss = ops::LossSum(
      h, w, targets,
      {.weights = weights, .function = {}, .probabilities = Probabilities::kStablemax});
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5 * expected.item<double>());
  loss.backward();
  expected.backward();
  ExpectClose(h.grad().to(torch::kDouble), h2.grad());
  ExpectClose(w.grad().to(torch::kDouble), w2.grad());
}

// A pass that ran out of memory is done again; what a part of it had added would count twice.
TEST(FusedLoss, AFunctionThatFailsAfterTheFirstChunkHasAddedNothing) {
  RowLoss loss;
  loss.function = [](const Tensor& log_p, int64_t first_row) {
    if (first_row > 0) throw std::bad_alloc();
    return RowLoss::Terms{log_p.neg(), torch::full_like(log_p, -1)};
  };
  const Tensor h = torch::randn({kRows, kWidth}).set_requires_grad(true),
               w = torch::randn({kVocabulary, kWidth}).set_requires_grad(true);
  w.mutable_grad() = torch::zeros_like(w);
  const Tensor targets = torch::arange(kRows).remainder(kVocabulary);
  EXPECT_THROW(fused_ops::LossSum(h, w, targets, loss), std::bad_alloc);
  EXPECT_EQ(w.grad().abs().sum().item<double>(), 0);
}

}  // namespace
}  // namespace espalier
