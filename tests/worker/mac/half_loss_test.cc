// The loss in fp16, which the processor does not train in: gradients of rows that are weighted by
// far less than 1 are those of fp32, whatever a loss scale comes to later.
#include <gtest/gtest.h>

#include "tests/worker/mac/mac_device.h"
#include "worker/ops/ops.h"

namespace espalier {
namespace {

using torch::Tensor;

constexpr int64_t kRows = 20, kWidth = 16, kVocabulary = 50266;
constexpr double kWeight = 1.0 / 512;

struct Gradients {
  Tensor hidden, head;
};

// Of a policy that weighs its tokens, or of cross-entropies; hidden values of about one size, as
// behind a norm, and a head whose rows have something in common, as trained ones do.
Gradients GradientsIn(torch::ScalarType type, torch::Device device, bool policy, double lift) {
  torch::manual_seed(3);
  const Tensor some_hidden = (torch::randn({kRows, kWidth}) * 0.1).to(torch::kHalf);
  const Tensor some_head = (torch::randn({kVocabulary, kWidth}) * 0.1 + 0.5).to(torch::kHalf);
  const Tensor hidden = some_hidden.to(type).to(device).set_requires_grad(true);
  const Tensor head = some_head.to(type).to(device).set_requires_grad(true);
  head.mutable_grad() = torch::zeros(head.sizes(), torch::TensorOptions(device));
  const Tensor targets = (torch::arange(kRows) * 1361).remainder(kVocabulary).to(device);
  RowLoss loss{.weights = torch::full({kRows}, kWeight).to(device), .function = {}, .lift = lift};
  if (policy) {
    loss.function = [](const Tensor& log_p, int64_t) {
      return RowLoss::Terms{log_p * -0.7, torch::full_like(log_p, -0.7)};
    };
  }
  constexpr double kScale = 65536;  // more than fp16 holds
  ops::LossSum(hidden, head, targets, loss)
      .backward(torch::full({}, kScale, torch::TensorOptions(device)));
  return {hidden.grad().cpu().to(torch::kFloat) / kScale, head.grad().cpu() / kScale};
}

double RelativeError(const Tensor& found, const Tensor& expected) {
  return ((found - expected).norm() / expected.norm()).item<double>();
}

class HalfLoss : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Of, HalfLoss, testing::Bool(), [](const auto& info) {
  return info.param ? "Policies" : "CrossEntropies";
});

TEST_P(HalfLoss, LiftsWhatSmallWeightsWouldLeaveOfItsGradient) {
  const MacDevice mac;
  const Gradients exact = GradientsIn(torch::kFloat, torch::kCPU, GetParam(), 1);
  const auto error = [&](double lift) {
    const Gradients found = GradientsIn(torch::kHalf, MacDevice::device(), GetParam(), lift);
    // What is no target has the small probabilities alone.
    const Tensor others = torch::ones({kVocabulary}, torch::kBool);
    Tensor(others).index_put_({(torch::arange(kRows) * 1361).remainder(kVocabulary)}, false);
    return std::max(RelativeError(found.hidden, exact.hidden),
                    RelativeError(found.head.index({others}), exact.head.index({others})));
  };
  EXPECT_LT(error(1 / kWeight), 0.01);
  EXPECT_GT(error(1), 0.2) << "the rows show nothing";
}

// In fp32 there is nothing to lift: not a bit is another.
TEST_P(HalfLoss, LiftIsOfNoMatterInOtherTypes) {
  const Gradients plain = GradientsIn(torch::kFloat, torch::kCPU, GetParam(), 1);
  const Gradients lifted = GradientsIn(torch::kFloat, torch::kCPU, GetParam(), 1 / kWeight);
  EXPECT_TRUE(torch::equal(plain.hidden, lifted.hidden));
  EXPECT_TRUE(torch::equal(plain.head, lifted.head));
}

}  // namespace
}  // namespace espalier
