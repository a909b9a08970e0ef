// Deep supervision as a run has it: samples stay in their slots until they halt, whatever ranks,
// passes, plans and generations compute them.
#include "worker/task/deep_supervision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/tiny_trm.h"
#include "tests/worker/support/training_world.h"
#include "worker/data/dataset.h"
#include "worker/data/prepare.h"
#include "worker/task/open_trm.h"

namespace espalier {
namespace {

using Kind = DeepSupervision::Kind;

constexpr int64_t kLength = 32;

DecoderConfig Config(int64_t halt_max_steps) {
  DecoderConfig config = TinyTrmConfig(/*causal=*/true);
  config.vocab_size = 50;
  config.max_position_embeddings = kLength;
  config.recursion->halt_max_steps = halt_max_steps;
  config.recursion->halt_exploration = 0.5;
  config.recursion->halt_reads_last = true;
  return config;
}

const DeepSupervision& Texts() {
  static const auto& task =
      *new DeepSupervision(Kind::kText, kLength, TinyExamples(160), TinyExamples(24), /*seed=*/5);
  return task;
}

WorldOptions OptionsOf(int64_t steps, const std::string& folder, std::vector<int> shares = {1},
                       std::vector<int> micro_batch = {16}) {
  WorldOptions options;
  options.ranks = static_cast<int>(shares.size());
  options.spec = TinySpec(steps);
  options.spec.mutable_train()->set_task(v1::TASK_TRM);
  options.spec.mutable_train()->mutable_schedule()->set_kind(v1::SCHEDULE_KIND_CONSTANT);
  for (const int share : shares) options.spec.mutable_parallel()->add_shares(share);
  for (const int size : micro_batch) options.spec.mutable_batch()->add_micro_batch(size);
  options.checkpoints = folder;
  options.config = Config(4);
  options.task = &Texts();
  return options;
}

std::vector<RankResult> Train(const WorldOptions& options) {
  std::vector<RankResult> results = TrainWorld(options);
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.fingerprint, results[0].fingerprint) << "replicas differ";
    EXPECT_EQ(result.losses, results[0].losses);
  }
  return results;
}

std::vector<SupervisedSlot> SlotsOf(const RankResult& result) {
  const auto slots = result.replica->slots().Records<SupervisedSlot>(result.replica->step());
  return {slots.begin(), slots.end()};
}

void ExpectSameSlots(const std::vector<SupervisedSlot>& a, const std::vector<SupervisedSlot>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].sample, b[i].sample) << "slot " << i;
    EXPECT_EQ(a[i].steps, b[i].steps) << "slot " << i;
    EXPECT_EQ(a[i].running, b[i].running) << "slot " << i;
  }
}

TEST(DeepSupervision, SplitInvarianceHoldsForSamplesThatTakeSeveralSteps) {
  constexpr int64_t kSteps = 14;
  const TestFolder folder;
  const std::vector<RankResult> one = Train(OptionsOf(kSteps, folder / "one"));
  ASSERT_EQ(one[0].losses.size(), kSteps);
  EXPECT_LT(one[0].losses.back(), 0.95 * one[0].losses.front()) << "it does not learn";
  struct Split {
    std::vector<int> shares, micro_batch;
  };
  int number = 0;
  for (const Split& split :
       {Split{{1}, {5}}, Split{{1, 1}, {8}}, Split{{10, 4, 2}, {3, 4, 1}}, Split{{9, 0, 7}, {4}}}) {
    const std::vector<RankResult> other =
        Train(OptionsOf(kSteps, folder / absl::StrCat(++number), split.shares, split.micro_batch));
    for (int64_t step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(other[0].losses[step], one[0].losses[step], 2e-4 * one[0].losses[step])
          << "split " << number << ", step " << step;
    }
    ExpectSameSlots(SlotsOf(one[0]), SlotsOf(other[0]));
  }
}

// A run that goes on elsewhere, by another plan and with other ranks, has what its slots kept.
TEST(DeepSupervision, SlotsGoOnWithAnyWorldFromACheckpoint) {
  constexpr int64_t kSteps = 12;
  const TestFolder folder;
  const std::vector<RankResult> straight = Train(OptionsOf(kSteps, folder / "straight"));
  const auto part = [&](std::vector<int> shares, int64_t until) {
    WorldOptions options = OptionsOf(kSteps, folder / "parts", std::move(shares), {4});
    if (until < kSteps) options.script = StopAfter(until, StopKeeps::kCheckpoint);
    return Train(options);
  };
  part({1, 1}, 5);
  const std::vector<RankResult> middle = part({3, 4, 9}, 7);  // samples take four steps
  EXPECT_EQ(middle[0].start.step, Step(5));
  const std::vector<SupervisedSlot> between = SlotsOf(middle[0]);
  EXPECT_TRUE(std::any_of(between.begin(), between.end(),
                          [](const SupervisedSlot& slot) { return slot.running != 0; }));
  const std::vector<RankResult> last = part({1}, kSteps);
  EXPECT_EQ(last[0].start.step, Step(7));
  for (size_t i = 0; i < last[0].losses.size(); ++i) {
    EXPECT_NEAR(last[0].losses[i], straight[0].losses[7 + i], 2e-4 * last[0].losses[i]);
  }
  ExpectSameSlots(SlotsOf(last[0]), SlotsOf(straight[0]));
}

TEST(DeepSupervision, SlotsGoOnFromMemoryAndFromOtherRanks) {
  constexpr int64_t kSteps = 12;
  for (const bool copies : {false, true}) {
    const TestFolder folder;
    const std::vector<RankResult> straight =
        Train(OptionsOf(kSteps, folder / "straight", {1, 1}, {4}));
    const auto part = [&](std::vector<int> shares, int64_t until) {
      WorldOptions options = OptionsOf(kSteps, folder / "parts", std::move(shares), {4});
      options.warm = folder / "warm";
      options.warm_copies = copies;
      if (until < kSteps) options.script = StopAfter(until, StopKeeps::kNothing);
      return Train(options);
    };
    part({1}, 3);
    {  // who ends gives the memory free
      const std::vector<RankResult> joined = part({1, 1}, 7);
      EXPECT_EQ(joined[0].start.origin, "warm state of step 3");
      EXPECT_TRUE(joined[1].start.received);
    }
    const std::vector<RankResult> last = part({1, 1}, kSteps);
    EXPECT_EQ(last[1].start.origin, "warm state of step 7");
    ExpectSameSlots(SlotsOf(last[0]), SlotsOf(straight[0]));
    for (int worker = 0; worker < 2; ++worker) {
      const auto left = ListSegments(folder / "warm", "studio");
      ASSERT_TRUE(left.ok()) << left.status();
      for (const RegisteredSegment& one : *left) RemoveSegment(folder / "warm", one.name);
    }
  }
}

// With one supervision step nothing stays, and the samples are those of the order.
TEST(DeepSupervision, WithOneStepEverySampleIsUsedOnce) {
  const TestFolder folder;
  WorldOptions options = OptionsOf(10, folder.path());
  options.config = Config(1);
  const std::vector<RankResult> results = Train(options);
  EXPECT_EQ(results[0].replica->slots().size().numbers, 0);
  const SampleOrder order = *SampleOrder::Create(OrderOptions(options.spec, Texts().training()));
  const std::vector<int64_t> samples = order.SamplesOfStep(Step(9));
  const std::vector<SupervisedSlot> slots = SlotsOf(results[0]);
  ASSERT_EQ(slots.size(), samples.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(slots[i].sample, samples[i]);
    EXPECT_EQ(slots[i].steps, 1);
    EXPECT_EQ(slots[i].running, 0);
  }
}

std::map<std::string, double> ByName(
    const google::protobuf::RepeatedPtrField<v1::TaskFigure>& figures) {
  std::map<std::string, double> made;
  for (const v1::TaskFigure& figure : figures) {
    EXPECT_TRUE(IsTaskFigure(figure.name())) << figure.name();
    made[figure.name()] = figure.value();
  }
  return made;
}

TEST(DeepSupervision, EveryRankReportsTheFiguresOfTheWholeStep) {
  const TestFolder folder;
  const std::vector<RankResult> results = Train(OptionsOf(8, folder.path(), {2, 1}, {4}));
  const std::vector<SupervisedSlot> slots = SlotsOf(results[0]);
  const SupervisionMetrics sums = MetricsOf(slots);
  ASSERT_GT(sums.count, 0) << "no slot has halted in the last step";
  const std::map<std::string, double> expected = {
      {"accuracy", sums.accuracy / sums.count},
      {"exact_accuracy", sums.exact_accuracy / sums.count},
      {"halt_accuracy", sums.halt_accuracy / sums.count},
      {"steps", sums.steps / sums.count},
      {"halt_loss", sums.halt_loss / static_cast<double>(slots.size())}};
  for (const RankResult& rank : results) {
    EXPECT_EQ(ByName(rank.client->steps().back().figures()), expected);
    EXPECT_EQ(ByName(rank.client->steps()[0].figures()).count("steps"), 0u) << "none has halted";
  }
}

TEST(DeepSupervision, EvaluationsRunAllStepsAndAreDividedAsAnyOther) {
  std::vector<double> losses;
  std::vector<std::map<std::string, double>> figures;
  for (const std::vector<int>& shares : {std::vector<int>{1}, {2, 1}}) {
    const TestFolder folder;
    WorldOptions options = OptionsOf(4, folder.path(), shares);
    options.validation = true;
    options.spec.mutable_evaluate()->set_every_steps(4);
    const auto evaluations = Train(options)[0].client->evaluations();
    ASSERT_FALSE(evaluations.empty());
    EXPECT_EQ(evaluations.back().tokens(), 24) << "samples";
    losses.push_back(evaluations.back().loss());
    figures.push_back(ByName(evaluations.back().figures()));
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-4 * losses[0]);
  ASSERT_EQ(figures[0].size(), 4u);
  EXPECT_GT(figures[0]["accuracy"], 0);
  for (const auto& [name, value] : figures[0]) {
    EXPECT_NEAR(figures[1][name], value, 1e-4) << name;
  }
}

int64_t BytesOf(const TokenBatch& batch) {
  size_t bytes = batch.inputs.nbytes() + batch.targets.nbytes() + batch.weights.nbytes();
  for (const torch::Tensor& one : batch.kept) bytes += one.nbytes();
  for (const torch::Tensor& one : batch.results) bytes += one.nbytes();
  return static_cast<int64_t>(bytes);
}

// What a pass takes is measured with it.
TEST(DeepSupervision, TargetsThatCountShareTheirSampleEvenly) {
  const Samples samples = Texts().training()->Read({0, 1, 2}).value();
  Transfers transfers(torch::kCPU);
  const TokenBatch batch = Texts().Batch(samples, {0, 3}, transfers);
  const torch::Tensor counts = batch.targets.ne(kIgnoredTarget).to(torch::kFloat);
  const torch::Tensor expected = counts / counts.sum(1, /*keepdim=*/true).clamp_min(1);
  EXPECT_TRUE(torch::equal(batch.weights, expected.flatten()));
}

TEST(DeepSupervision, WhatIsMadeUpIsAsLargeAsAPassThatGoesOn) {
  for (const int64_t steps : {1, 4}) {
    const DecoderConfig config = Config(steps);
    const DeepSupervision task(
        Kind::kText, kLength, TinyExamples(9), nullptr, /*seed=*/5,
        DeepSupervision::CarriedChannels(*config.recursion, config.hidden_size));
    v1::JobSpec spec;
    spec.mutable_train()->set_global_batch(3);
    SlotStates slots;
    ASSERT_TRUE(slots.Keep(task.Keeps(spec, config)).ok());
    const Samples samples =
        *task.Continue(Step(0), {0, 3}, *task.training()->Read({2, 5, 7}), slots);
    Transfers transfers{torch::kCPU};
    const TokenBatch read = task.Batch(samples, {0, 3}, transfers);
    const TokenBatch made_up = task.MadeUpBatch(3, kLength, torch::kCPU);
    EXPECT_EQ(BytesOf(made_up), BytesOf(read)) << "with " << steps << " supervision steps";
    EXPECT_EQ(made_up.kept.size(), steps == 1 ? 0u : 2u);
    EXPECT_EQ(made_up.results.size(), read.results.size());
  }
}

// What the model says of halting is replaced.
class ScriptedHalting : public testing::Test {
 protected:
  ScriptedHalting() : tiny_(Config(4)) {
    v1::JobSpec spec;
    spec.mutable_train()->set_global_batch(2);
    EXPECT_TRUE(slots_.Keep(Texts().Keeps(spec, tiny_.model->config())).ok());
  }

  // The samples that the two slots have; `fresh` are those of the order.
  std::vector<int64_t> Step2(int64_t step, std::vector<int64_t> fresh, std::vector<float> halting) {
    const Samples samples =
        *Texts().Continue(Step(step), {0, 2}, *Texts().training()->Read(std::move(fresh)), slots_);
    Transfers transfers{torch::kCPU};
    TokenBatch batch = Texts().Batch(samples, {0, samples.rows()}, transfers);
    batch.results[0].select(1, 3).copy_(torch::tensor(halting));
    batch.results[1].fill_(static_cast<double>(step + 1));
    Texts().Send(Step(step), samples, {0, samples.rows()}, batch.results, slots_, transfers);
    EXPECT_FALSE(batch.results[1].defined()) << "what was sent may be of a whole shard";
    Texts().Keep(*tiny_.model, Step(step), samples, {0, samples.rows()}, batch.results, slots_);
    return samples.ids;
  }
  std::vector<int64_t> StepsAfter(int64_t step) const {
    const auto slots = slots_.Records<SupervisedSlot>(Step(step + 1));
    return {slots[0].steps, slots[1].steps};
  }

  TinyTrm tiny_;
  SlotStates slots_;
};

TEST_F(ScriptedHalting, HaltedSlotsTakeTheNextSampleAndOthersKeepTheirs) {
  tiny_.model = std::make_unique<RecursiveModel>(
      [] {
        DecoderConfig config = Config(4);
        config.recursion->halt_exploration = 0;
        return config;
      }(),
      tiny_.parameters);
  EXPECT_EQ(Step2(0, {10, 11}, {1, -1}), (std::vector<int64_t>{10, 11}));
  EXPECT_EQ(Step2(1, {12, 13}, {-1, -1}), (std::vector<int64_t>{12, 11})) << "13 is dropped";
  EXPECT_EQ(StepsAfter(1), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(slots_.Numbers(Step(2))[1][5].item<double>(), 2) << "its state follows";
  EXPECT_EQ(Step2(2, {14, 15}, {-1, -1}), (std::vector<int64_t>{12, 11}));
  EXPECT_EQ(Step2(3, {16, 17}, {-1, -1}), (std::vector<int64_t>{12, 11})) << "the last for 11";
  EXPECT_EQ(slots_.Numbers(Step(4))[1][0].item<double>(), 0) << "what halts is of no sample";
  EXPECT_EQ(Step2(4, {18, 19}, {-1, 1}), (std::vector<int64_t>{12, 19}));
}

TEST_F(ScriptedHalting, WhatIsNoNumberIsGivenUp) {
  Step2(0, {10, 11}, {std::nanf(""), -1});
  EXPECT_EQ(Step2(1, {12, 13}, {-1, -1}), (std::vector<int64_t>{12, 11}));
}

// At the end of an epoch there are fewer samples than slots.
TEST_F(ScriptedHalting, SlotsWithoutASampleRest) {
  EXPECT_EQ(Step2(0, {10}, {-1}), (std::vector<int64_t>{10}));
  EXPECT_EQ(Step2(1, {}, {-1}), (std::vector<int64_t>{10}));
  EXPECT_EQ(StepsAfter(1), (std::vector<int64_t>{2, 0}));
}

// Who wants to halt at once is kept by exploration, in about as many slots as is asked for, and in
// the same ones whenever that is asked.
TEST_F(ScriptedHalting, ExplorationIsAFunctionOfSeedStepAndSlot) {
  std::vector<std::vector<int64_t>> kept;
  for (int run = 0; run < 2; ++run) {
    slots_.Reset();
    kept.emplace_back();
    for (int64_t step = 0; step < 60; ++step) {
      Step2(step, {2 * step, 2 * step + 1}, {1, 1});
      for (const SupervisedSlot& slot : slots_.Records<SupervisedSlot>(Step(step + 1))) {
        kept.back().push_back(slot.running);
      }
    }
  }
  EXPECT_EQ(kept[0], kept[1]);
  const auto stayed = std::accumulate(kept[0].begin(), kept[0].end(), int64_t{0});
  EXPECT_GT(stayed, 30);
  EXPECT_LT(stayed, 90);
}

TEST(DeepSupervision, MetricsAreOfSlotsThatHalted) {
  const std::vector<SupervisedSlot> slots = {
      {.steps = 3, .running = 0, .counted = 4, .right = 4, .loss = 1, .halt_loss = 2, .halting = 1},
      {.steps = 2, .running = 0, .counted = 4, .right = 1, .loss = 1, .halt_loss = 2, .halting = 1},
      {.steps = 1, .running = 1, .counted = 4, .right = 4, .loss = 1, .halt_loss = 2, .halting = 1},
      {}};
  const SupervisionMetrics metrics = MetricsOf(slots);
  EXPECT_EQ(metrics.count, 2);
  EXPECT_EQ(metrics.samples, 3);
  EXPECT_EQ(metrics.accuracy, 1.25);
  EXPECT_EQ(metrics.exact_accuracy, 1);
  EXPECT_EQ(metrics.halt_accuracy, 1);
  EXPECT_EQ(metrics.steps, 5);
  EXPECT_EQ(metrics.loss, 3);
  EXPECT_EQ(metrics.halt_loss, 6);
}

// One that lost a digit would else end the run when its turn comes, and blame a machine.
TEST(DeepSupervision, APuzzleWhoseAnswerIsNotAsLongIsRefusedBeforeTheFirstStep) {
  const TestFolder folder;
  const auto opened = [&folder](const std::string& last) {
    std::string rows;
    for (int i = 0; i < 40; ++i) {
      rows += absl::StrCat(R"({"prompt":"0)", 100 + i, R"(","completion":"1)", 100 + i, "\"}\n");
    }
    const PrepareOptions options{.inputs = {folder.Write("puzzles.jsonl", rows + last)},
                                 .output = folder / absl::StrCat("data", last.size()),
                                 .rows = RowOptions{.format = RowFormat::kPromptCompletion}};
    const auto prepared = PrepareData(PosixFileSystem(), *MakeByteTokenizer(), options);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    const auto dataset = Dataset::Open(options.output, {});
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    v1::JobSpec spec = OptionsOf(2, "").spec;
    spec.mutable_model()->set_preset("nano");
    return OpenTrm(spec, *dataset).status();
  };
  EXPECT_EQ(opened(""), absl::OkStatus());
  const absl::Status status = opened(R"({"prompt":"0123","completion":"123"})");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("a prompt of 4 tokens and a completion of 3"));
}

}  // namespace
}  // namespace espalier
