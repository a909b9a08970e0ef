// Completions that are sampled and judged on a Mac, and fine-tuning on those that are accepted: no
// operator that MPS has not, none against a rule of mac_rules.cc, and what the processor comes to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "common/config/job_file.h"
#include "tests/worker/mac/mac_device.h"
#include "tests/worker/rollout/sampling_world.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "worker/task/rft.h"

namespace espalier {
namespace {

const Tokenizer& Bytes() {
  static const Tokenizer& tokenizer = *MakeByteTokenizer().release();
  return tokenizer;
}

std::vector<Rollout> SampledOn(torch::Device device, const RolloutOrder& order) {
  Parameters parameters = *Parameters::Create(ByteConfig(), {.device = device});
  parameters.Initialize(3, ByteConfig().initializer_range);
  const Decoder decoder(ByteConfig(), parameters);
  const auto group = InProcessGroup(1, absl::Seconds(60));
  ProgressBoard board;
  LetterVerifier::Counts counts;
  const RolloutLimits limits{.max_new_tokens = 30, .stop = {"e", "th"}, .positions = 28, .rows = 5};
  RolloutEngine engine({*group[0], RealClock(), board}, Bytes(),
                       std::make_unique<LetterVerifier>(&counts, nullptr), {.limits = limits});
  const auto rollouts = engine.Sample(decoder, order, {});
  EXPECT_TRUE(rollouts.ok()) << rollouts.status();
  return rollouts.ok() && rollouts->has_value() ? (*rollouts)->all : std::vector<Rollout>();
}

// More of them than rows, with stop texts, limits of sampling and prompts that end early.
TEST(RolloutsOnAMac, AreThoseOfTheProcessor) {
  const MacDevice mac;
  RolloutOrder order = SomeOrder(6, 3);
  order.sample = {
      .temperature = 0.9, .top_k = 40, .top_p = 0.95, .min_p = 0.01, .repetition_penalty = 1.1};
  const std::vector<Rollout> expected = SampledOn(torch::kCPU, order);
  EXPECT_EQ(expected.size(), 18U);
  ExpectEqual(SampledOn(MacDevice::device(), order), expected);
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
  EXPECT_GT(mac.tally().all_launches(), 0);
}

// Accepts a completion with a letter of its record.
class LettersVerifier final : public Verifier {
 public:
  absl::StatusOr<std::vector<Judgement>> Judge(absl::Span<const Completion> completions,
                                               const TrainingMoment&) override {
    std::vector<Judgement> judgements(completions.size());
    for (size_t i = 0; i < completions.size(); ++i) {
      const auto& record = completions[i].record;
      const auto parsed = nlohmann::json::parse(record.begin(), record.end());
      const std::string letters = parsed["answer"];
      const bool right = completions[i].text.find_first_of(letters) != absl::string_view::npos;
      judgements[i].Add("correct", right ? 1 : 0);
      if (!right) judgements[i].invalid = "wrong";
    }
    return judgements;
  }
};

std::shared_ptr<const PromptTable> Prompts(int64_t count, int first) {
  std::vector<PromptTable::Row> rows;
  for (int64_t i = 0; i < count; ++i) {
    PromptTable::Row row;
    for (int64_t j = 0; j < 2 + i % 3; ++j) {
      row.ids.push_back(static_cast<int32_t>(first + (i + j) % 60));
    }
    row.record = R"({"question": "which?", "answer": "aeiou0123456789"})";
    rows.push_back(std::move(row));
  }
  return std::make_shared<const PromptTable>(std::move(rows));
}

struct RftKind {
  const char* name;
  v1::Precision precision = v1::PRECISION_FP32;
  bool adapters = false;
  int ranks = 1;
};

std::vector<RankResult> TrainRft(const RftKind& kind, const std::string& folder, bool on_mac) {
  WorldOptions options;
  options.ranks = kind.ranks;
  options.spec = TinySpec(3);
  v1::TrainSpec& train = *options.spec.mutable_train();
  train.set_task(v1::TASK_RFT);
  train.set_precision(kind.precision);
  if (kind.adapters) train.mutable_lora()->set_rank(4);
  FillJobDefaults(options.spec);
  train.mutable_rollout()->set_samples(3);
  train.mutable_rollout()->set_max_new_tokens(14);
  train.mutable_verifier()->set_kind("units");
  options.checkpoints = folder;
  options.own_folders = true;
  options.validation = true;
  options.config = ByteConfig();
  if (on_mac) options.device = MacDevice::device();
  options.values_on_host = on_mac;
  const auto open =
      [](const RolloutPlace& place) -> absl::StatusOr<std::unique_ptr<RolloutSource>> {
    return std::make_unique<RolloutEngine>(
        place.context, Bytes(), std::make_unique<LettersVerifier>(),
        RolloutEngine::Options{.limits = {.max_new_tokens = 14}});
  };
  const Rft task({.spec = options.spec,
                  .training = Prompts(24, 40),
                  .validation = Prompts(6, 100),
                  .tokenizer = MakeByteTokenizer(),
                  .data_hash = "made up",
                  .open_source = open});
  options.task = &task;
  return TrainWorld(options);
}

class RftOnAMac : public testing::TestWithParam<RftKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, RftOnAMac,
                         testing::Values(RftKind{"WholeModelTwoRanks", v1::PRECISION_FP32, false,
                                                 2},
                                         RftKind{"Adapters", v1::PRECISION_FP32, true},
                                         RftKind{"Bf16Adapters", v1::PRECISION_BF16, true},
                                         RftKind{"Fp16", v1::PRECISION_FP16}),
                         [](const auto& info) { return std::string(info.param.name); });

// In 16 bits other answers are sampled.
TEST_P(RftOnAMac, BreaksNoRuleAndLearnsWhatTheProcessorLearns) {
  const TestFolder there, here;
  const MacDevice mac;
  const std::vector<RankResult> results = TrainRft(GetParam(), there.path(), true);
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
  EXPECT_GT(mac.tally().all_launches(), 0);
  ASSERT_TRUE(results[0].outcome.ok()) << results[0].outcome.status();
  ASSERT_EQ(results[0].losses.size(), 3U);
  for (const double loss : results[0].losses) EXPECT_TRUE(std::isfinite(loss));
  const auto rows = nlohmann::json::parse(ReadText(there / "0/rft.json"));
  EXPECT_GT(rows.size(), 6U);
  if (GetParam().precision != v1::PRECISION_FP32) return;
  const std::vector<RankResult> expected = TrainRft(GetParam(), here.path(), false);
  ASSERT_TRUE(expected[0].outcome.ok()) << expected[0].outcome.status();
  EXPECT_EQ(rows, nlohmann::json::parse(ReadText(here / "0/rft.json")));
  for (size_t step = 0; step < 3; ++step) {
    EXPECT_NEAR(results[0].losses[step], expected[0].losses[step], 1e-4) << "step " << step;
  }
}

}  // namespace
}  // namespace espalier
