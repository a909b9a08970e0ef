// What trains on a Mac calls no operator that MPS has not, and none against a rule of mac_rules.cc,
// and comes to what the processor comes to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "tests/worker/mac/mac_device.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/tiny_trm.h"
#include "tests/worker/support/training_world.h"
#include "tests/worker/support/wrong_operator.h"
#include "worker/collective/in_process.h"
#include "worker/data/packed_table.h"
#include "worker/model/self_check.h"
#include "worker/task/deep_supervision.h"
#include "worker/task/next_token.h"
#include "worker/train/evaluate.h"

namespace espalier {
namespace {

struct Kind {
  const char* name;
  v1::Precision precision;
  bool tied = false;
  int ranks = 1;
  double dropout = 0;
  std::vector<std::string> recompute = {};
  std::vector<std::string> frozen = {};
  v1::GradientDtype wire = v1::GRADIENT_DTYPE_FP32;
  v1::MomentType moments = v1::MOMENT_TYPE_FP32;
  Architecture architecture = Architecture::kLlama;
  int32_t lora_rank = 0;  // 0: the model itself is trained
};

Kind Gpt2(Kind kind) {
  kind.architecture = Architecture::kGpt2;
  return kind;
}

Kind Lora(Kind kind) {
  kind.lora_rank = 4;
  return kind;
}

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

const Kind kKinds[] = {
    {"Fp32", v1::PRECISION_FP32},
    {"Fp32TiedTwoRanks", v1::PRECISION_FP32, true, 2},
    {"Bf16TiedDropout", v1::PRECISION_BF16, true, 1, 0.1},
    {"Bf16RecomputeTwoRanks", v1::PRECISION_BF16, false, 2, 0.1, {"all"}},
    {"Fp16", v1::PRECISION_FP16, false, 1},
    {"Frozen", v1::PRECISION_BF16, false, 1, 0, {}, {"model.embed_tokens.weight", "*.mlp.*"}},
    {"GradientsInInt8", v1::PRECISION_FP32, true, 2, 0, {}, {}, v1::GRADIENT_DTYPE_INT8},
    {"GradientsInBf16MomentsOf8Bits",
     v1::PRECISION_BF16,
     false,
     2,
     0,
     {},
     {},
     v1::GRADIENT_DTYPE_BF16,
     v1::MOMENT_TYPE_INT8},
    Gpt2({"Gpt2TwoRanks", v1::PRECISION_FP32, true, 2, 0.1}),
    Gpt2({"Gpt2Bf16Recompute", v1::PRECISION_BF16, true, 1, 0, {"all"}}),
    Gpt2({"Gpt2Fp16Untied", v1::PRECISION_FP16}),
    Lora({"LoraTwoRanks", v1::PRECISION_FP32, true, 2}),
    Lora({"LoraBf16DropoutRecompute", v1::PRECISION_BF16, false, 1, 0.1, {"all"}}),
    Lora({"LoraFp16", v1::PRECISION_FP16}),
    Gpt2(Lora({"LoraGpt2", v1::PRECISION_FP32, true, 1, 0.1})),
};

WorldOptions OptionsOf(const Kind& kind, const TestFolder& folder) {
  WorldOptions options;
  options.ranks = kind.ranks;
  options.tied = kind.tied;
  options.architecture = kind.architecture;
  options.validation = true;
  options.spec = TinySpec(6);
  v1::TrainSpec& train = *options.spec.mutable_train();
  train.set_precision(kind.precision);
  train.mutable_optimizer()->set_moments(kind.moments);
  if (kind.lora_rank > 0) {
    train.mutable_lora()->set_rank(kind.lora_rank);
    train.mutable_lora()->set_dropout(kind.dropout);
  }
  train.mutable_freeze()->Assign(kind.frozen.begin(), kind.frozen.end());
  if (!kind.recompute.empty()) {
    train.mutable_recompute()->Assign(kind.recompute.begin(), kind.recompute.end());
  }
  options.spec.mutable_parallel()->set_gradient_dtype(kind.wire);
  options.spec.mutable_model()->set_dropout(kind.dropout);
  options.spec.mutable_evaluate()->set_every_steps(3);
  options.spec.mutable_checkpoint()->set_every_steps(3);
  options.checkpoints = folder.path();
  return options;
}

WorldOptions OnMac(WorldOptions options, const TestFolder& folder) {
  options.checkpoints = folder.path();
  options.device = MacDevice::device();
  options.values_on_host = true;
  return options;
}

class OnAMac : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, OnAMac, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(OnAMac, TrainingBreaksNoRuleAndComesToWhatTheProcessorComesTo) {
  const TestFolder there, here;
  const MacDevice mac;
  const WorldOptions options = OptionsOf(GetParam(), here);
  const std::vector<RankResult> results = TrainWorld(OnMac(options, there));
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
  EXPECT_GT(mac.tally().all_launches(), 0);
  WorldOptions by_the_processor = options;
  if (GetParam().precision == v1::PRECISION_FP16) {
    by_the_processor.spec.mutable_train()->set_precision(v1::PRECISION_FP32);
  }
  const std::vector<RankResult> expected = TrainWorld(by_the_processor);
  const double tolerance = GetParam().precision == v1::PRECISION_FP32 ? 1e-3 : 0.05;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    ASSERT_TRUE(results[rank].outcome.ok()) << results[rank].outcome.status();
    ASSERT_EQ(results[rank].losses.size(), expected[rank].losses.size());
    for (size_t step = 0; step < expected[rank].losses.size(); ++step) {
      EXPECT_NEAR(results[rank].losses[step], expected[rank].losses[step],
                  tolerance * expected[rank].losses[step]);
    }
  }
}

TEST(OnAMacToo, FineTuningBreaksNoRule) {
  const TestFolder folder;
  const MacDevice mac;
  const NextToken task(TinyExamples(100), TinyExamples(100));
  WorldOptions options = OnMac(OptionsOf(kKinds[0], folder), folder);
  options.task = &task;
  const std::vector<RankResult> results = TrainWorld(options);
  EXPECT_TRUE(results[0].outcome.ok()) << results[0].outcome.status();
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
}

// The positions of examples that share a row, and what each sees, in all that a model may have.
TEST(OnAMacToo, FineTuningOnPackedRowsBreaksNoRuleAndComesToWhatTheProcessorComesTo) {
  const NextToken task(std::make_shared<const PackedTable>(TinyExamples(300), 1), TinyExamples(20));
  for (const Kind& kind : {kKinds[1], Gpt2(kKinds[3]), Lora(kKinds[2])}) {
    const TestFolder there, here;
    const MacDevice mac;
    WorldOptions options = OptionsOf(kind, here);
    options.spec.mutable_data()->set_packing(true);
    options.task = &task;
    const std::vector<RankResult> results = TrainWorld(OnMac(options, there));
    EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
    const std::vector<RankResult> expected = TrainWorld(options);
    ASSERT_TRUE(results[0].outcome.ok()) << results[0].outcome.status();
    const double tolerance = kind.precision == v1::PRECISION_FP32 ? 1e-3 : 0.05;
    ASSERT_EQ(results[0].losses.size(), 6u);
    for (size_t step = 0; step < 6; ++step) {
      EXPECT_NEAR(results[0].losses[step], expected[0].losses[step],
                  tolerance * expected[0].losses[step]);
    }
  }
}

class RecursionOnAMac : public testing::TestWithParam<std::tuple<bool, v1::Precision>> {};
INSTANTIATE_TEST_SUITE_P(Kinds, RecursionOnAMac,
                         testing::Combine(testing::Bool(),
                                          testing::Values(v1::PRECISION_FP32, v1::PRECISION_BF16)));

// Of text, and of what sees both ways; samples stay for several steps.
TEST_P(RecursionOnAMac, DeepSupervisionBreaksNoRuleAndComesToWhatTheProcessorComesTo) {
  const auto [causal, precision] = GetParam();
  const TestFolder there, here;
  const MacDevice mac;
  const DeepSupervision task(DeepSupervision::Kind::kText, 32, TinyExamples(100), TinyExamples(30),
                             /*seed=*/5);
  WorldOptions options = OptionsOf({"Recursion", precision, false, 2}, here);
  options.config = TinyTrmConfig(causal);
  options.config->vocab_size = 50;
  options.config->max_position_embeddings = 32;
  options.config->recursion->halt_continue = true;
  options.config->recursion->halt_reads_last = causal;
  options.spec.mutable_train()->set_task(v1::TASK_TRM);
  options.task = &task;
  const std::vector<RankResult> results = TrainWorld(OnMac(options, there));
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
  EXPECT_GT(mac.tally().all_launches(), 0);
  const std::vector<RankResult> expected = TrainWorld(options);
  ASSERT_TRUE(results[0].outcome.ok()) << results[0].outcome.status();
  ASSERT_EQ(results[0].losses.size(), expected[0].losses.size());
  for (size_t step = 0; step < expected[0].losses.size(); ++step) {
    EXPECT_NEAR(results[0].losses[step], expected[0].losses[step],
                (precision == v1::PRECISION_FP32 ? 1e-3 : 0.05) * expected[0].losses[step]);
  }
}

struct StandingClock : Clock {
  absl::Time Now() override { return absl::UnixEpoch(); }
  absl::Duration Monotonic() override { return absl::ZeroDuration(); }
  void Sleep(absl::Duration) override {}
};

// A wait lets the device run dry. By this clock none takes long, so they get fewer and fewer.
TEST(OnAMacToo, AnEvaluationWaitsForTheDeviceNowAndThenAndNotInEveryPass) {
  const MacDevice mac;
  Parameters parameters = *Parameters::Create(TinyConfig(), {.device = MacDevice::device()});
  parameters.Initialize(3, 0.3);
  const Decoder decoder(TinyConfig(), parameters);
  const NextToken task(TinyExamples(100), TinyExamples(100));
  const auto alone = InProcessGroup(1, absl::Seconds(60));
  StandingClock clock;
  ProgressBoard board;
  Evaluator evaluator({*alone[0], clock, board}, decoder, task, {});
  ASSERT_TRUE(evaluator.Run({.micro_batch = 5}).ok());
  constexpr int64_t kPasses = 20;  // each reads its loss
  EXPECT_GT(mac.tally().reads, kPasses);
  EXPECT_LE(mac.tally().reads, kPasses + 8);
}

TEST(OnAMacToo, AReproducibleRunIsRefused) {
  const TestFolder folder;
  const MacDevice mac;
  WorldOptions options = OnMac(OptionsOf(kKinds[0], folder), folder);
  options.spec.mutable_train()->set_reproducible(true);
  EXPECT_EQ(TrainWorld(options)[0].outcome.status().code(), absl::StatusCode::kFailedPrecondition);
}

// Each is compiled and kept for ever: a Mac would swap after days, and each token would wait.
TEST(OnAMacToo, StepsThatLookUpOtherRowsShareTheirGraphs) {
  const TestFolder folder;
  MacDevice mac;
  std::vector<size_t> graphs;
  WorldOptions options = OnMac(OptionsOf(kKinds[0], folder), folder);
  options.validation = false;
  options.spec.mutable_train()->set_global_batch(2);
  options.spec.mutable_train()->set_steps(12);
  options.spec.mutable_evaluate()->set_every_steps(0);
  options.spec.mutable_checkpoint()->set_every_steps(0);
  options.script = [&](int, ScriptedClient& client) {
    client.on_report = [&](ScriptedClient&, const v1::AttachRequest& message) {
      if (message.has_step()) graphs.push_back(mac.tally().graphs.size());
    };
  };
  const std::vector<RankResult> results = TrainWorld(options);
  ASSERT_TRUE(results[0].outcome.ok()) << results[0].outcome.status();
  ASSERT_EQ(graphs.size(), 12u);
  EXPECT_EQ(graphs.back(), graphs[3]);
}

class SelfTestsOnAMac : public testing::TestWithParam<std::tuple<Architecture, torch::ScalarType>> {
};
INSTANTIATE_TEST_SUITE_P(
    Architectures, SelfTestsOnAMac,
    testing::Combine(testing::Values(Architecture::kLlama, Architecture::kGpt2, Architecture::kTrm),
                     testing::Values(torch::kFloat, torch::kBFloat16, torch::kHalf)));

TEST_P(SelfTestsOnAMac, BreakNoRule) {
  const MacDevice mac;
  const auto [architecture, type] = GetParam();
  const absl::Status tried = SelfTest(MacDevice::device(), type, architecture).status();
  EXPECT_TRUE(tried.ok()) << tried;
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
  EXPECT_GT(mac.tally().all_launches(), 0);
}

// As one of the known faults is: of a single product, in 16 bits, which a whole decoder would round
// as much in.
TEST(SelfTestOnAMac, SeesAFaultOfAnEighthInSixteenBits) {
  const MacDevice mac;
  for (const torch::ScalarType type : {torch::kBFloat16, torch::kHalf}) {
    const absl::StatusOr<double> good = SelfTest(MacDevice::device(), type);
    EXPECT_TRUE(good.ok()) << good.status();
    const WrongOperator wrong("aten::linear", type);
    const absl::Status refused = SelfTest(MacDevice::device(), type).status();
    EXPECT_GT(WrongOperator::calls(), 0);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  }
}

// Nothing says that the GPU has given up what it was told to do, but what it has not counted.
TEST(OnAMacToo, AStepOfWhichLaunchesWereLostIsNoStep) {
  const TestFolder folder;
  MacDevice mac;
  WorldOptions options = OnMac(OptionsOf(kKinds[0], folder), folder);
  options.validation = false;
  options.spec.mutable_evaluate()->set_every_steps(0);
  options.spec.mutable_checkpoint()->set_every_steps(0);
  options.script = [&](int, ScriptedClient& client) {
    client.on_report = [&](ScriptedClient&, const v1::AttachRequest& message) {
      if (message.has_step() && message.step().step() == 2) mac.Lose(200);
    };
  };
  const std::vector<RankResult> results = TrainWorld(options);
  const absl::Status& status = results[0].outcome.status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("did not do"));
  EXPECT_EQ(results[0].losses.size(), 3u);
}

// Down go the sums of gradients, up the copy that is computed with: nothing else that grows with
// the model.
TEST(OnAMacToo, AStepMovesGradientsOnceDownAndTheCopyOnceUp) {
  const TestFolder folder;
  MacDevice mac;
  std::vector<MacDevice::Tally> tallies;
  WorldOptions options = OnMac(OptionsOf(kKinds[1], folder), folder);
  options.ranks = 1;
  options.validation = false;
  options.spec.mutable_evaluate()->set_every_steps(0);
  options.spec.mutable_checkpoint()->set_every_steps(0);
  options.script = [&](int, ScriptedClient& client) {
    client.on_report = [&](ScriptedClient&, const v1::AttachRequest& message) {
      if (!message.has_step()) return;
      tallies.push_back(mac.tally());
      mac.Restart();
    };
  };
  const std::vector<RankResult> results = TrainWorld(options);
  ASSERT_TRUE(results[0].outcome.ok()) << results[0].outcome.status();
  const int64_t model = results[0].replica->parameters().flat().nbytes();
  ASSERT_GT(tallies.size(), 3u);
  const MacDevice::Tally& step = tallies[3];
  const int64_t tokens = 4 * 16 * 33 * static_cast<int64_t>(sizeof(int64_t));
  EXPECT_GE(step.bytes_to_host, model);
  EXPECT_LE(step.bytes_to_host, model + tokens);
  EXPECT_EQ(step.waits, 0) << "for the device: buckets follow it by events";
  EXPECT_GE(step.bytes_to_device, model);
  EXPECT_LE(step.bytes_to_device, model + tokens);
}

}  // namespace
}  // namespace espalier
