// Fine-tuning on rows that examples share, and on rows of their own: the same losses on one rank
// and on two of uneven shares, the same bits in a reproducible run, and those of an undisturbed run
// after a resume within an epoch.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "nlohmann/json.hpp"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "tests/worker/train/train_alike.h"
#include "worker/data/dataset.h"
#include "worker/data/packed_table.h"
#include "worker/data/prepare.h"
#include "worker/task/next_token.h"
#include "worker/task/open_task.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {
namespace {

struct Kind {
  const char* name;
  bool packed, lora;
};

std::string NameOf(const testing::TestParamInfo<Kind>& info) { return info.param.name; }

class FineTuning : public testing::TestWithParam<Kind> {
 protected:
  FineTuning()
      : examples_(TinyExamples(300)),
        packed_(std::make_shared<const PackedTable>(examples_, 1)),
        task_(GetParam().packed ? std::shared_ptr<const SampleTable>(packed_) : examples_,
              TinyExamples(20)) {}

  WorldOptions World(const std::vector<int>& shares, int64_t steps,
                     const std::string& folder) const {
    WorldOptions options;
    options.ranks = static_cast<int>(shares.size());
    options.spec = TinySpec(steps);
    options.spec.mutable_model()->set_dropout(0.1);
    v1::TrainSpec& train = *options.spec.mutable_train();
    train.set_task(v1::TASK_SFT);
    train.mutable_schedule()->set_learning_rate(GetParam().lora ? 1e-2 : 3e-3);
    if (GetParam().lora) {
      train.mutable_lora()->set_rank(4);
      train.mutable_lora()->set_dropout(0.1);
    }
    options.spec.mutable_data()->set_packing(GetParam().packed);
    for (const int share : shares) options.spec.mutable_parallel()->add_shares(share);
    options.checkpoints = folder;
    options.validation = true;
    options.task = &task_;
    return options;
  }
  const std::shared_ptr<const ExampleRows> examples_;
  const std::shared_ptr<const PackedTable> packed_;
  const NextToken task_;
};

INSTANTIATE_TEST_SUITE_P(Of, FineTuning,
                         testing::Values(Kind{"Apart", false, false}, Kind{"Packed", true, false},
                                         Kind{"ApartLora", false, true},
                                         Kind{"PackedLora", true, true}),
                         NameOf);

TEST_P(FineTuning, TwoRanksOfUnevenSharesTrainWhatOneDoes) {
  constexpr int64_t kSteps = 50;
  const TestFolder one, two;
  const std::vector<double> expected = TrainAlike(World({1}, kSteps, one.path()))[0].losses;
  WorldOptions uneven = World({3, 1}, kSteps, two.path());
  uneven.spec.mutable_batch()->add_micro_batch(5);
  uneven.spec.mutable_batch()->add_micro_batch(3);
  ASSERT_EQ(expected.size(), kSteps);
  EXPECT_LT(expected.back(), 0.95 * expected.front()) << "it does not learn";
  ExpectNearly(TrainAlike(uneven)[0].losses, expected);
}

TEST_P(FineTuning, AReproducibleRunHasTheSameBitsOnAnyDivision) {
  uint64_t expected = 0;
  std::vector<double> losses;
  for (const std::vector<int>& shares : std::vector<std::vector<int>>{{1}, {3, 1}, {1, 0, 15}}) {
    const TestFolder folder;
    WorldOptions options = World(shares, 12, folder.path());
    options.spec.mutable_train()->set_reproducible(true);
    const std::vector<RankResult> results = TrainAlike(options);
    if (losses.empty()) losses = results[0].losses;
    if (expected == 0) expected = results[0].fingerprint;
    EXPECT_EQ(results[0].losses, losses);
    EXPECT_EQ(results[0].fingerprint, expected);
  }
}

// Within the second epoch: rows are drawn anew, of which some are used.
TEST_P(FineTuning, ARunThatIsResumedWithinAnEpochHasTheBitsOfAnUndisturbedOne) {
  const TestFolder whole, halves;
  const auto world = [&](const TestFolder& folder) {
    WorldOptions options = World({1, 1}, 30, folder.path());
    options.spec.mutable_train()->set_epochs(3);
    options.spec.mutable_batch()->add_micro_batch(4);
    return options;
  };
  const int64_t of_epoch = (task_.training()->size() + 15) / 16;
  const uint64_t expected = TrainAlike(world(whole))[0].fingerprint;
  WorldOptions first = world(halves);
  first.script = StopAfter(of_epoch + of_epoch / 2, StopKeeps::kCheckpoint);
  TrainAlike(first);
  EXPECT_EQ(TrainAlike(world(halves))[0].fingerprint, expected);
}

using PackedFineTuning = FineTuning;
INSTANTIATE_TEST_SUITE_P(Of, PackedFineTuning, testing::Values(Kind{"Packed", true, false}),
                         NameOf);

TEST_P(PackedFineTuning, IsNotResumedWithoutPacking) {
  const TestFolder folder;
  TrainAlike(World({1}, 2, folder.path()));
  WorldOptions other = World({1}, 4, folder.path());
  other.spec.mutable_data()->set_packing(false);
  const absl::Status refused = TrainWorld(other)[0].outcome.status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "packing")) << refused;
}

// Two ranks log which examples they used, not which rows.
TEST_P(PackedFineTuning, AnEpochUsesEveryExampleOnceAndCountsItsTokens) {
  const TestFolder folder;
  const int64_t of_epoch = (packed_->size() + 15) / 16;
  WorldOptions options = World({3, 1}, of_epoch, folder.path());
  options.spec.mutable_train()->set_epochs(1);
  options.sample_log_files = [](int) { return &PosixFileSystem(); };
  const std::vector<RankResult> results = TrainAlike(options);
  std::vector<int64_t> all;
  for (int64_t id = 0; id < examples_->size(); ++id) all.push_back(id);
  int64_t tokens = 0;
  for (const v1::StepReport& step : results[0].client->steps()) tokens += step.tokens();
  EXPECT_EQ(tokens, examples_->Read(all)->LossTokens({0, examples_->size()}));
  std::map<int64_t, int> uses;
  const std::vector<std::string> logs = *PosixFileSystem().List(folder / "samples");
  EXPECT_EQ(logs.size(), 2u);
  for (const std::string& name : logs) {
    std::ifstream log(folder / ("samples/" + name));
    for (std::string line; std::getline(log, line);) {
      const nlohmann::json step = nlohmann::json::parse(line);
      for (const int64_t id : step["samples"]) ++uses[id];
    }
  }
  EXPECT_EQ(uses.size(), all.size());
  for (const auto& [id, times] : uses) EXPECT_EQ(times, 1) << id;
}

// From a file of texts, any of whose tokens may count, to losses.
TEST(PackedTexts, AFileOfThemTrainsOnUnevenRanksAsOnOne) {
  constexpr int64_t kSteps = 20, kTexts = 200;
  const TestFolder folder, one, two;
  std::string rows;
  for (int64_t i = 0; i < kTexts; ++i) {
    std::string text(static_cast<size_t>(1 + i * 7 % 25), static_cast<char>('a' + i % 5));
    rows += nlohmann::json{{"text", text}}.dump() + "\n";
  }
  const PrepareOptions options{.inputs = {folder.Write("texts.jsonl", rows)},
                               .output = folder / "data",
                               .rows = RowOptions{},
                               .validation_fraction = 0.1};
  const auto prepared = PrepareData(PosixFileSystem(), *MakeByteTokenizer(), options);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const auto dataset = Dataset::Open(options.output, {});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  v1::JobSpec spec = TinySpec(kSteps);
  spec.mutable_train()->set_task(v1::TASK_SFT);
  spec.mutable_train()->mutable_schedule()->set_learning_rate(3e-3);
  spec.mutable_data()->set_packing(true);
  const auto task = OpenTask(spec, *dataset);
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_LT((*task)->training()->size(), kTexts / 2) << "rows have several texts each";
  WorldOptions world{.spec = spec, .checkpoints = one.path(), .task = task->get()};
  world.config = TinyConfig();
  world.config->vocab_size = dataset->manifest().vocab_size;
  const std::vector<double> expected = TrainAlike(world)[0].losses;
  ASSERT_EQ(expected.size(), kSteps);
  EXPECT_LT(expected.back(), 0.95 * expected.front()) << "it does not learn";
  world.ranks = 2;
  for (const int share : {3, 1}) world.spec.mutable_parallel()->add_shares(share);
  world.checkpoints = two.path();
  ExpectNearly(TrainAlike(world)[0].losses, expected);
}

}  // namespace
}  // namespace espalier
