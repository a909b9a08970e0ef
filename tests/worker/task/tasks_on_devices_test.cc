// Tasks that sample, that make several passes of a step, or whose samples take several steps learn
// on every device of this machine, in every precision it has, what they learn on the CPU in fp32.
// On a machine without an accelerator the list holds the CPU alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/tiny_model.h"
#include "tests/worker/support/tiny_preferences.h"
#include "tests/worker/support/tiny_trm.h"
#include "tests/worker/task/grpo_run.h"
#include "worker/task/deep_supervision.h"
#include "worker/task/dpo.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

struct DeviceCase {
  torch::Device device;
  v1::Precision precision;
  double tolerance;  // of losses, relative
};

std::vector<DeviceCase> Cases() {
  std::vector<DeviceCase> cases = {{torch::kCPU, v1::PRECISION_BF16, 0.05}};
  if (HasCuda()) {
    cases.push_back({torch::kCUDA, v1::PRECISION_FP32, 1e-3});
    cases.push_back({torch::kCUDA, v1::PRECISION_BF16, 0.05});
  }
  return cases;
}

class TasksOnDevices : public testing::TestWithParam<DeviceCase> {};
INSTANTIATE_TEST_SUITE_P(All, TasksOnDevices, testing::ValuesIn(Cases()), [](const auto& info) {
  const bool narrow = info.param.precision == v1::PRECISION_BF16;
  return info.param.device.str() + (narrow ? "Bf16" : "Fp32");
});

constexpr int64_t kSteps = 4;
const DeviceCase kReference = {torch::kCPU, v1::PRECISION_FP32, 0};

// `scale`: of the losses, where they may come near 0.
void ExpectNear(const std::vector<double>& losses, const std::vector<double>& expected,
                double tolerance, double scale) {
  ASSERT_EQ(losses.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(expected.size(), losses.size());
  for (size_t step = 0; step < losses.size(); ++step) {
    const double size = std::max(scale, std::abs(expected[step]));
    EXPECT_NEAR(losses[step], expected[step], tolerance * size) << "step " << step;
  }
}

std::vector<double> LossesOf(WorldOptions options, const DeviceCase& on) {
  options.device = on.device;
  options.spec.mutable_train()->set_precision(on.precision);
  const std::vector<RankResult> results = TrainWorld(options);
  EXPECT_TRUE(results[0].outcome.ok()) << results[0].outcome.status();
  return results[0].losses;
}

// With adapters, a reference, and two updates of a rollout.
std::vector<double> PolicyLosses(const DeviceCase& on) {
  const TestFolder folder;
  GrpoRun run = RunOf(kSteps, folder.path(), {{1}, {5}}, /*updates=*/2);
  run.prompt_tokens = 17;
  run.train().mutable_lora()->set_rank(4);
  run.train().mutable_grpo()->set_kl(0.1);
  run.train().mutable_schedule()->set_learning_rate(1e-2);
  FillJobDefaults(run.options.spec);
  run.options.device = on.device;
  run.train().set_precision(on.precision);
  return run.Train()[0].losses;
}

TEST_P(TasksOnDevices, PoliciesLearnAlike) {
  const std::vector<double> losses = PolicyLosses(GetParam());
  if (GetParam().precision == v1::PRECISION_FP32) {
    ExpectNear(losses, PolicyLosses(kReference), GetParam().tolerance, /*scale=*/0.1);
    return;
  }
  ASSERT_EQ(losses.size(), static_cast<size_t>(kSteps));  // in 16 bits other ids are sampled soon
  for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss));
}

TEST_P(TasksOnDevices, PreferencesAreLearntAlike) {
  const Dpo task(TinyPreferenceSpec(kSteps).train().dpo(), TinyPreferences(40),
                 TinyPreferences(8, 2));
  const auto losses = [&](const DeviceCase& on) {
    const TestFolder folder;
    WorldOptions options;
    options.spec = TinyPreferenceSpec(kSteps);
    options.checkpoints = folder.path();
    options.task = &task;
    return LossesOf(options, on);
  };
  ExpectNear(losses(GetParam()), losses(kReference), GetParam().tolerance, 0.1);
}

TEST_P(TasksOnDevices, RecursiveModelsLearnAlike) {
  const DeepSupervision task(DeepSupervision::Kind::kText, 32, TinyExamples(160), TinyExamples(24),
                             5);
  const auto losses = [&](const DeviceCase& on) {
    const TestFolder folder;
    WorldOptions options;
    options.spec = TinySpec(kSteps);
    options.spec.mutable_train()->set_task(v1::TASK_TRM);
    options.checkpoints = folder.path();
    options.config = TinyTrmConfig(/*causal=*/true);
    options.config->vocab_size = 50;
    options.config->max_position_embeddings = 32;
    options.config->recursion->halt_reads_last = true;
    options.task = &task;
    return LossesOf(options, on);
  };
  ExpectNear(losses(GetParam()), losses(kReference), GetParam().tolerance, 0.1);
}

}  // namespace
}  // namespace espalier
