// The self-test of a device refuses one of whose operators any is wrong. Made-up devices: the CPU
// in fp64, which LibTorch's operators compute as they do on devices without kernels of ours.
#include "worker/model/self_check.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/support/wrong_operator.h"

namespace espalier {
namespace {

TEST(SelfTest, PassesWithTheOperatorsOfLibTorch) {
  const absl::StatusOr<double> difference = SelfTest(torch::kCPU, torch::kDouble);
  ASSERT_TRUE(difference.ok()) << difference.status();
  EXPECT_LT(*difference, 1e-4);
}

class WrongOperators : public testing::TestWithParam<const char*> {};

TEST_P(WrongOperators, AreRefused) {
  const std::string name = absl::StrCat("aten::", GetParam());
  const WrongOperator wrong(name.c_str(), torch::kDouble);
  const absl::Status refused = SelfTest(torch::kCPU, torch::kDouble).status();
  EXPECT_GT(WrongOperator::calls(), 0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(), "choose another")) << refused;
}

INSTANTIATE_TEST_SUITE_P(Each, WrongOperators,
                         testing::Values("add", "addcdiv", "addcmul", "addcmul_", "addmm", "addmm_",
                                         "bmm", "cat", "copy_", "exp_", "gather", "hypot_",
                                         "index_add_", "index_put_", "linalg_vector_norm", "linear",
                                         "mm", "mv", "scatter_add_", "silu", "silu_backward",
                                         "_softmax", "_softmax_backward_data", "bitwise_xor"),
                         [](const auto& info) { return std::string(info.param); });

TEST(SelfTest, OfGpt2TriesItsOwnOperations) {
  const absl::StatusOr<double> difference =
      SelfTest(torch::kCPU, torch::kDouble, Architecture::kGpt2);
  ASSERT_TRUE(difference.ok()) << difference.status();
  EXPECT_LT(*difference, 1e-4);
  for (const auto& [operation, named] : {std::pair{"aten::native_layer_norm", "a centred norm"},
                                         {"aten::native_layer_norm_backward", "a centred norm"},
                                         {"aten::gelu", "a product of what GELU gives"},
                                         {"aten::gelu_backward", "a product of what GELU gives"}}) {
    const WrongOperator wrong(operation, torch::kDouble);
    const absl::Status refused =
        SelfTest(torch::kCPU, torch::kDouble, Architecture::kGpt2).status();
    EXPECT_TRUE(absl::StrContains(refused.message(), absl::StrCat("computes ", named)))
        << operation << ": " << refused;
    EXPECT_TRUE(SelfTest(torch::kCPU, torch::kDouble).ok()) << "Llama has none of it";
  }
}

TEST(SelfTest, OfRecursiveModelsTriesTheirOwnOperations) {
  for (const auto type : {torch::kDouble, torch::kBFloat16}) {
    const absl::StatusOr<double> difference = SelfTest(torch::kCPU, type, Architecture::kTrm);
    ASSERT_TRUE(difference.ok()) << difference.status();
    EXPECT_LT(*difference, type == torch::kDouble ? 1e-4 : 0.2);
  }
  // Of stablemax, and of halting.
  for (const char* operation : {"aten::sign", "aten::softplus", "aten::softplus_backward",
                                "aten::sigmoid", "aten::where"}) {
    const WrongOperator wrong(operation, torch::kDouble);
    EXPECT_EQ(SelfTest(torch::kCPU, torch::kDouble, Architecture::kTrm).status().code(),
              absl::StatusCode::kFailedPrecondition)
        << operation;
    EXPECT_TRUE(SelfTest(torch::kCPU, torch::kDouble).ok()) << "Llama has none of it";
  }
}

// As products with a long common dimension are on M1 and M2.
TEST(SelfTest, NamesTheOperationThatIsWrong) {
  for (const auto& [operation, named] : {std::pair{"aten::bmm", "attention"},
                                         {"aten::silu", "a gated product"},
                                         {"aten::index_add_", "rows that are looked up"},
                                         {"aten::index_put_", "attention to keys and values"},
                                         {"aten::hypot_", "a norm"}}) {
    const WrongOperator wrong(operation, torch::kDouble);
    const DeviceTrial trial = TryDevice(torch::kCPU, torch::kDouble);
    EXPECT_TRUE(absl::StrContains(trial.status.message(), absl::StrCat("computes ", named)))
        << operation << ": " << trial.status;
    EXPECT_TRUE(absl::StartsWith(trial.failed, named)) << trial.failed;
    EXPECT_NE(trial.failed.back(), ',');
  }
}

}  // namespace
}  // namespace espalier
