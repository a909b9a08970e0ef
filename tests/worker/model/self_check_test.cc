// The self-test of a device refuses one of whose operators any is wrong. Made-up devices: the CPU
// in fp64, which LibTorch's operators compute as they do on devices without kernels of ours.
#include "worker/model/self_check.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// While it lives, results of an operator in fp64 or in whole numbers are too large.
class WrongOperator {
 public:
  explicit WrongOperator(const char* name) {
    name_ = name;
    calls_ = 0;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction&) { return std::unique_ptr<at::ObserverContext>(); }, Spoil)
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~WrongOperator() { at::removeCallback(handle_); }
  static int calls() { return calls_; }

 private:
  static void Spoil(const at::RecordFunction& function, at::ObserverContext*) {
    static thread_local bool spoiling = false;  // by operators of its own
    if (spoiling || std::strcmp(function.name(), name_) != 0) return;
    if (function.outputs().empty()) return;
    const c10::IValue& out = function.outputs()[0];
    if (!out.isTensor() || !out.toTensor().defined()) return;
    const torch::NoGradGuard no_grad;
    const torch::Tensor result = out.toTensor().variable_data();
    spoiling = true;
    if (result.scalar_type() == torch::kDouble) {
      ++calls_;
      result.mul_(1.125).add_(0.125);
    } else if (result.scalar_type() == torch::kLong || result.scalar_type() == torch::kInt) {
      ++calls_;
      result.add_(1);
    }
    spoiling = false;
  }

  static const char* name_;
  static int calls_;
  at::CallbackHandle handle_;
};
const char* WrongOperator::name_ = nullptr;
int WrongOperator::calls_ = 0;

TEST(SelfTest, PassesWithTheOperatorsOfLibTorch) {
  const absl::StatusOr<double> difference = SelfTest(torch::kCPU, torch::kDouble);
  ASSERT_TRUE(difference.ok()) << difference.status();
  EXPECT_LT(*difference, 1e-4);
}

class WrongOperators : public testing::TestWithParam<const char*> {};

TEST_P(WrongOperators, AreRefused) {
  const std::string name = absl::StrCat("aten::", GetParam());
  const WrongOperator wrong(name.c_str());
  const absl::Status refused = SelfTest(torch::kCPU, torch::kDouble).status();
  EXPECT_GT(WrongOperator::calls(), 0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(), "choose another")) << refused;
}

INSTANTIATE_TEST_SUITE_P(Each, WrongOperators,
                         testing::Values("add", "addcdiv", "addcmul", "addcmul_", "addmm", "addmm_",
                                         "bmm", "cat", "copy_", "exp_", "gather", "hypot_",
                                         "index_add_", "linalg_vector_norm", "linear", "mm", "mv",
                                         "scatter_add_", "silu", "silu_backward", "_softmax",
                                         "_softmax_backward_data", "bitwise_xor"),
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
    const WrongOperator wrong(operation);
    const absl::Status refused =
        SelfTest(torch::kCPU, torch::kDouble, Architecture::kGpt2).status();
    EXPECT_TRUE(absl::StrContains(refused.message(), absl::StrCat("computes ", named)))
        << operation << ": " << refused;
    EXPECT_TRUE(SelfTest(torch::kCPU, torch::kDouble).ok()) << "Llama has none of it";
  }
}

// As products with a long common dimension are on M1 and M2.
TEST(SelfTest, NamesTheOperationThatIsWrong) {
  for (const auto& [operation, named] : {std::pair{"aten::bmm", "attention"},
                                         {"aten::silu", "a gated product"},
                                         {"aten::index_add_", "rows that are looked up"},
                                         {"aten::hypot_", "a norm"}}) {
    const WrongOperator wrong(operation);
    const DeviceTrial trial = TryDevice(torch::kCPU, torch::kDouble);
    EXPECT_TRUE(absl::StrContains(trial.status.message(), absl::StrCat("computes ", named)))
        << operation << ": " << trial.status;
    EXPECT_TRUE(absl::StartsWith(trial.failed, named)) << trial.failed;
    EXPECT_NE(trial.failed.back(), ',');
  }
}

}  // namespace
}  // namespace espalier
