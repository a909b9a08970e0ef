// Group relative policy optimisation on a Mac: sampling and learning call no operator that MPS has
// not, and none against a rule of mac_rules.cc, and come to what the processor comes to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "common/config/job_file.h"
#include "tests/worker/mac/mac_device.h"
#include "tests/worker/support/fake_rollouts.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "worker/task/grpo.h"

namespace espalier {
namespace {

struct PolicyKind {
  const char* name;
  v1::Precision precision = v1::PRECISION_FP32;
  int ranks = 1;
  int updates = 1;
  double kl = 0;  // with adapters
  double temperature = 1;
  double dropout = 0;
  const char* aggregation = "dapo";
  int32_t prompt_tokens = 2;  // at least
};

WorldOptions OptionsOf(const PolicyKind& kind, const std::string& folder) {
  WorldOptions options;
  options.ranks = kind.ranks;
  options.validation = true;
  options.spec = TinySpec(4);
  v1::TrainSpec& train = *options.spec.mutable_train();
  train.set_task(v1::TASK_GRPO);
  train.set_precision(kind.precision);
  if (kind.kl > 0) train.mutable_lora()->set_rank(4);
  train.mutable_grpo()->set_kl(kind.kl);
  train.mutable_grpo()->set_updates_per_rollout(kind.updates);
  train.mutable_rollout()->set_samples(4);
  train.mutable_rollout()->set_max_new_tokens(6);
  train.mutable_rollout()->set_temperature(kind.temperature);
  train.mutable_grpo()->set_aggregation(kind.aggregation);
  options.spec.mutable_model()->set_dropout(kind.dropout);
  options.spec.mutable_evaluate()->set_every_steps(2);
  FillJobDefaults(options.spec);
  options.checkpoints = folder;
  return options;
}

std::vector<RankResult> Train(const PolicyKind& kind, WorldOptions options) {
  const auto open = [](const RolloutPlace&) -> absl::StatusOr<std::unique_ptr<RolloutSource>> {
    return std::make_unique<FakeRollouts>(FakeRollouts::Options{.reward = SameParity});
  };
  const std::unique_ptr<Task> task =
      *Grpo::Create(options.spec, {TinyPrompts(24, kind.prompt_tokens), TinyPrompts(8), {}}, open);
  options.task = task.get();
  return TrainWorld(options);
}

class PolicyOnAMac : public testing::TestWithParam<PolicyKind> {};
INSTANTIATE_TEST_SUITE_P(
    Kinds, PolicyOnAMac,
    testing::Values(
        PolicyKind{"WholeModelTwoRanks", v1::PRECISION_FP32, 2},
        PolicyKind{"AdaptersAndReference", v1::PRECISION_FP32, 1, 2, 0.1, 0.8},
        PolicyKind{"LongPromptsAndDropout", v1::PRECISION_FP32, 1, 2, 0.1, 1, 0.2, "dapo", 17},
        PolicyKind{"Bf16AdaptersAndReference", v1::PRECISION_BF16, 1, 2, 0.1},
        PolicyKind{"Fp16MeansOfCompletions", v1::PRECISION_FP16, 1, 2, 0.1, 1, 0, "dr_grpo", 17}),
    [](const auto& info) { return std::string(info.param.name); });

// In 16 bits other tokens are sampled soon.
TEST_P(PolicyOnAMac, BreaksNoRuleAndComesToWhatTheProcessorComesTo) {
  const TestFolder there, here;
  const MacDevice mac;
  WorldOptions on_mac = OptionsOf(GetParam(), there.path());
  on_mac.device = MacDevice::device();
  on_mac.values_on_host = true;
  const std::vector<RankResult> results = Train(GetParam(), on_mac);
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
  EXPECT_GT(mac.tally().all_launches(), 0);
  ASSERT_TRUE(results[0].outcome.ok()) << results[0].outcome.status();
  ASSERT_EQ(results[0].losses.size(), 4u);
  for (const double loss : results[0].losses) EXPECT_TRUE(std::isfinite(loss));
  if (GetParam().precision != v1::PRECISION_FP32) return;
  const std::vector<RankResult> expected = Train(GetParam(), OptionsOf(GetParam(), here.path()));
  ASSERT_TRUE(expected[0].outcome.ok()) << expected[0].outcome.status();
  for (size_t step = 0; step < 4; ++step) {
    EXPECT_NEAR(results[0].losses[step], expected[0].losses[step], 1e-4) << "step " << step;
  }
}

}  // namespace
}  // namespace espalier
