// Direct preference optimisation on a Mac: it calls no operator that MPS has not, and none against
// a rule of mac_rules.cc, and comes to what the processor comes to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/worker/mac/mac_device.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/tiny_preferences.h"
#include "worker/task/dpo.h"

namespace espalier {
namespace {

struct PreferenceKind {
  const char* name;
  v1::Precision precision = v1::PRECISION_FP32;
  int ranks = 1;
  double dropout = 0;
};

std::vector<RankResult> Train(const PreferenceKind& kind, const std::string& folder,
                              torch::Device device) {
  WorldOptions options;
  options.ranks = kind.ranks;
  options.validation = true;
  options.spec = TinyPreferenceSpec(4);
  options.spec.mutable_train()->set_precision(kind.precision);
  options.spec.mutable_train()->mutable_lora()->set_dropout(kind.dropout);
  options.spec.mutable_train()->mutable_dpo()->set_label_smoothing(0.1);
  options.spec.mutable_evaluate()->set_every_steps(2);
  options.checkpoints = folder;
  options.device = device;
  options.values_on_host = !device.is_cpu();
  const Dpo task(options.spec.train().dpo(), TinyPreferences(40), TinyPreferences(8, /*seed=*/2));
  options.task = &task;
  return TrainWorld(options);
}

class PreferencesOnAMac : public testing::TestWithParam<PreferenceKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, PreferencesOnAMac,
                         testing::Values(PreferenceKind{"TwoRanks", v1::PRECISION_FP32, 2},
                                         PreferenceKind{"Dropout", v1::PRECISION_FP32, 1, 0.2},
                                         PreferenceKind{"Bf16", v1::PRECISION_BF16}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(PreferencesOnAMac, BreaksNoRuleAndComesToWhatTheProcessorComesTo) {
  const TestFolder there, here;
  const MacDevice mac;
  const std::vector<RankResult> results = Train(GetParam(), there.path(), MacDevice::device());
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
  EXPECT_GT(mac.tally().all_launches(), 0);
  ASSERT_TRUE(results[0].outcome.ok()) << results[0].outcome.status();
  const std::vector<RankResult> expected = Train(GetParam(), here.path(), torch::kCPU);
  ASSERT_TRUE(expected[0].outcome.ok()) << expected[0].outcome.status();
  const double tolerance = GetParam().precision == v1::PRECISION_FP32 ? 1e-4 : 2e-2;
  ASSERT_EQ(results[0].losses.size(), 4u);
  for (size_t step = 0; step < 4; ++step) {
    EXPECT_NEAR(results[0].losses[step], expected[0].losses[step], tolerance) << "step " << step;
  }
  const auto last = results[0].client->evaluations().back();
  EXPECT_NEAR(last.loss(), expected[0].client->evaluations().back().loss(), tolerance);
}

}  // namespace
}  // namespace espalier
