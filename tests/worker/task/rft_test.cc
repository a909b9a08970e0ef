// rft as a run has it: what it learns from is a function of the job alone, through ranks, faults
// and new beginnings in each of its phases.
#include "worker/task/rft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "common/config/job_file.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/tiny_model.h"
#include "tests/worker/support/training_world.h"
#include "worker/rollout/rollout_engine.h"
#include "worker/task/rft_practice.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kPrompts = 150, kSteps = 6;

// Accepts a completion with a digit or a letter of the record in it; nothing where it is empty.
class CharacterVerifier final : public Verifier {
 public:
  explicit CharacterVerifier(bool accepts) : accepts_(accepts) {}
  absl::StatusOr<std::vector<Judgement>> Judge(absl::Span<const Completion> completions,
                                               const TrainingMoment&) override {
    std::vector<Judgement> judgements;
    for (const Completion& one : completions) {
      const auto record = nlohmann::json::parse(one.record.begin(), one.record.end());
      const std::string wanted = record["answer"];
      const bool right = accepts_ && one.text.find_first_of(wanted) != absl::string_view::npos;
      Judgement& judgement = judgements.emplace_back();
      judgement.Add("format", one.text.empty() ? 0 : 0.1);
      if (!right) judgement.invalid = "wrong";
    }
    return judgements;
  }

 private:
  const bool accepts_;
};

// What happens to a rank's orders, and what was made of them.
struct Fate {
  int lost_at = -1;        // the order at which it is lost; below 0: never
  bool lost_last = false;  // at the one behind the last step
  size_t longest = 1e6;    // prompts; the ranks are called away from longer orders
  bool accepts = true;
  int64_t* made = nullptr;  // counts completions of rank 0
};

class FatedSource final : public RolloutSource {
 public:
  FatedSource(std::unique_ptr<RolloutSource> source, const Fate& fate)
      : source_(std::move(source)), fate_(fate) {}
  absl::StatusOr<std::optional<Rollouts>> Sample(const Decoder& decoder, const RolloutOrder& order,
                                                 const RolloutAround& around) override {
    EXPECT_TRUE(around.worked) << "layers are signs of life";
    EXPECT_TRUE(around.free_memory);
    if (fate_.lost_last && around.step == kSteps) return absl::UnavailableError("it is lost");
    if (fate_.lost_at-- == 0) return absl::UnavailableError("the rank is lost");
    if (order.prompts.size() > fate_.longest) return std::nullopt;
    auto made = source_->Sample(decoder, order, around);
    if (fate_.made != nullptr && made.ok() && *made) *fate_.made += (*made)->figures.samples;
    return made;
  }

 private:
  std::unique_ptr<RolloutSource> source_;
  Fate fate_;
};

std::shared_ptr<const PromptTable> Prompts(int64_t count, int first) {
  std::vector<PromptTable::Row> rows;
  for (int64_t i = 0; i < count; ++i) {
    PromptTable::Row row;
    for (int64_t j = 0; j < 2 + i % 3; ++j)
      row.ids.push_back(static_cast<int32_t>(first + (i + j) % 60));
    const char* const letters = i % 7 == 3 ? "q" : "aeiou0123456789";
    row.record = nlohmann::json{{"question", absl::StrCat("q", i)}, {"answer", letters}}.dump();
    rows.push_back(std::move(row));
  }
  return std::make_shared<const PromptTable>(std::move(rows));
}

WorldOptions OptionsOf(const std::string& folder, int ranks) {
  WorldOptions options;
  options.ranks = ranks;
  options.spec = TinySpec(kSteps);
  v1::TrainSpec& train = *options.spec.mutable_train();
  train.set_task(v1::TASK_RFT);
  FillJobDefaults(options.spec);
  train.mutable_rollout()->set_samples(5);
  train.mutable_rollout()->set_max_new_tokens(14);
  train.mutable_verifier()->set_kind("units");
  options.spec.mutable_batch()->add_micro_batch(16);
  options.spec.mutable_checkpoint()->set_every_steps(2);
  options.checkpoints = folder;
  options.own_folders = true;
  options.validation = true;
  options.config = TinyModelConfig();
  options.config->vocab_size = 257;
  return options;
}

std::vector<RankResult> TrainRft(WorldOptions options, const Fate& fate = {}) {
  RftInputs inputs{.spec = options.spec,
                   .training = Prompts(kPrompts, 40),
                   .validation = Prompts(20, 100),
                   .tokenizer = MakeByteTokenizer(),
                   .data_hash = "made up",
                   .open_source = nullptr};
  const std::shared_ptr<const Tokenizer> tokenizer = inputs.tokenizer;
  inputs.open_source =
      [tokenizer,
       fate](const RolloutPlace& place) -> absl::StatusOr<std::unique_ptr<RolloutSource>> {
    auto engine = std::make_unique<RolloutEngine>(
        place.context, *tokenizer, std::make_unique<CharacterVerifier>(fate.accepts),
        RolloutEngine::Options{.limits = {.max_new_tokens = 14}});
    Fate own = fate;
    if (place.context.collective.rank() != Rank(0)) own.made = nullptr;
    return std::make_unique<FatedSource>(std::move(engine), own);
  };
  const Rft task(std::move(inputs));
  options.task = &task;
  return TrainWorld(options);
}

uint64_t FingerprintOf(const std::vector<RankResult>& results) {
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.fingerprint, results[0].fingerprint);
  }
  return results[0].fingerprint;
}

class RftOnDevices : public testing::TestWithParam<torch::Device> {};

std::vector<torch::Device> Devices() {
  std::vector<torch::Device> devices = {torch::kCPU};
  if (HasCuda()) devices.emplace_back(torch::kCUDA);
  return devices;
}
INSTANTIATE_TEST_SUITE_P(All, RftOnDevices, testing::ValuesIn(Devices()),
                         [](const auto& info) { return info.param.str(); });

TEST_P(RftOnDevices, KeepTheFirstAcceptedCompletionOfEachPromptAndTellOfIt) {
  const TestFolder folder;
  WorldOptions options = OptionsOf(folder.path(), 1);
  options.device = GetParam();
  const std::vector<RankResult> results = TrainRft(options);
  FingerprintOf(results);
  const auto rows = nlohmann::json::parse(ReadText(folder / "0/rft.json"));
  EXPECT_GT(rows.size(), 60U);
  EXPECT_LT(rows.size(), 150U) << "hardly anything has a q";
  for (const auto& row : rows) {
    const std::string answer = row[1], text = row[2];
    EXPECT_NE(text.find_first_of(answer), std::string::npos) << row;
    EXPECT_EQ(row[0].get<std::string>()[0], 'q');
  }
  const auto report = nlohmann::json::parse(ReadText(folder / "0/rft-report.json"));
  EXPECT_EQ(report["prompts"], kPrompts);
  EXPECT_EQ(report["rows"], rows.size());
  EXPECT_EQ(report["before"]["answers"], 20);
  EXPECT_EQ(report["after"]["answers"], 20);
  EXPECT_GT(report["tokens_per_second"]["sample"], 0);
  EXPECT_GT(report["tokens_per_second"]["fine_tune"], 0);
  for (const char* phase : {"sample", "verify", "fine_tune", "test"}) {
    EXPECT_GT(report["seconds"][phase], 0) << phase;
  }
  const std::vector<v1::EvaluationReport> told = results[0].client->evaluations();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].figures(0).name(), "accuracy");
  EXPECT_EQ(told[0].figures(0).value(), report["after"]["accuracy"].get<double>());
}

// Else hours of sampling would be booked to nothing, and lost with a kill.
TEST(Rft, TellsOfItsSamplingWhileItSamples) {
  const TestFolder folder;
  const std::vector<RankResult> results = TrainRft(OptionsOf(folder.path(), 2));
  FingerprintOf(results);
  for (const RankResult& rank : results) {
    double rollout = 0;
    int64_t kept = 0;
    for (const v1::Practised& told : rank.client->practised()) {
      if (told.step() > 0) break;
      rollout += told.accounts().rollout_seconds();
      EXPECT_GT(told.kept(), kept);
      kept = told.kept();
    }
    EXPECT_GT(rollout, 0);
    EXPECT_GT(kept, kPrompts);
    EXPECT_EQ(rank.client->steps()[0].rollout_seconds(), 0) << "it has been told";
    EXPECT_GT(rank.client->practised().back().accounts().evaluate_seconds(), 0);
  }
}

TEST(Rft, TwoRanksLearnFromWhatOneLearnsFrom) {
  const TestFolder folder;
  const std::vector<RankResult> one = TrainRft(OptionsOf(folder / "one", 1));
  const std::vector<RankResult> two = TrainRft(OptionsOf(folder / "two", 2));
  FingerprintOf(one);
  FingerprintOf(two);
  const std::string rows = ReadText(folder / "one/0/rft.json");
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(ReadText(folder / "two/0/rft.json"), rows);
  EXPECT_EQ(ReadText(folder / "two/1/rft.json"), rows) << "each machine keeps a copy";
  ASSERT_EQ(one[0].losses.size(), static_cast<size_t>(kSteps));
  for (int64_t step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(two[0].losses[step], one[0].losses[step], 1e-4 * one[0].losses[step]);
  }
}

// Orders: 0 and 1 the test of the model as it began, then completions of prompts, the last ones the
// test at the end.
TEST(Rft, GoesOnWithWhatItHadFromEachPhase) {
  const TestFolder folder;
  int64_t all = 0;
  const uint64_t wanted = FingerprintOf(TrainRft(OptionsOf(folder / "whole", 1), {.made = &all}));
  const std::string rows = ReadText(folder / "whole/0/rft.json");
  int64_t reached = 0;
  for (const int lost_at : {0, 1, 2, 5}) {
    const std::string name = absl::StrCat(lost_at);
    const WorldOptions options = OptionsOf(folder / name, 1);
    EXPECT_FALSE(TrainRft(options, {.lost_at = lost_at})[0].outcome.ok());
    const auto kept =
        RftProgressFromJson(ReadText(folder / absl::StrCat(name, "/0/", kRftProgressName)));
    EXPECT_EQ(kept.ok(), lost_at > 0) << lost_at;
    if (kept.ok()) {
      EXPECT_GT(kept->reach(), reached);
      reached = kept->reach();
    }
    int64_t made = 0;
    EXPECT_EQ(FingerprintOf(TrainRft(options, {.made = &made})), wanted) << lost_at;
    EXPECT_EQ(made, all - reached) << "what was there is not made again";
    EXPECT_EQ(ReadText(folder / absl::StrCat(name, "/0/rft.json")), rows) << lost_at;
  }
  EXPECT_GT(reached, 20 + kPrompts - 1);
}

// Who pauses more often than an order takes would never get any further.
TEST(Rft, GetsOnInOrdersThatBecomeSmaller) {
  const TestFolder folder;
  const std::vector<RankResult> results = TrainRft(OptionsOf(folder / "away", 2), {.longest = 20});
  FingerprintOf(results);
  FingerprintOf(TrainRft(OptionsOf(folder / "whole", 2)));
  EXPECT_EQ(ReadText(folder / "away/1/rft.json"), ReadText(folder / "whole/0/rft.json"));
}

// Its steps are in memory, so that nothing is left to be done before the test.
TEST(Rft, ReportsWhatCameOfItThoughItWasKilledBeforeTheLastTest) {
  const TestFolder folder;
  WorldOptions options = OptionsOf(folder.path(), 1);
  options.warm = folder / "warm";
  EXPECT_FALSE(TrainRft(options, {.lost_last = true})[0].outcome.ok());
  std::filesystem::remove(folder / "0/rft.json");
  ::testing::internal::CaptureStderr();
  const std::vector<RankResult> rest = TrainRft(options);
  const std::string log = ::testing::internal::GetCapturedStderr();
  FingerprintOf(rest);
  ASSERT_EQ(rest[0].start.step, Step(kSteps));
  const auto report = nlohmann::json::parse(ReadText(folder / "0/rft-report.json"));
  EXPECT_EQ(report["before"]["answers"], 20);
  EXPECT_EQ(report["after"]["answers"], 20);
  EXPECT_FALSE(ReadText(folder / "0/rft.json").empty());
  EXPECT_THAT(log, HasSubstr("test: accuracy"));
}

TEST(Rft, GoesOnFromACheckpointOfItsFineTuning) {
  const TestFolder folder;
  const uint64_t wanted = FingerprintOf(TrainRft(OptionsOf(folder / "whole", 1)));
  WorldOptions options = OptionsOf(folder / "stopped", 1);
  options.script = StopAfter(3, StopKeeps::kCheckpoint);
  FingerprintOf(TrainRft(options));
  options.script = nullptr;
  const std::vector<RankResult> rest = TrainRft(options);
  EXPECT_EQ(rest[0].start.step, Step(3));
  EXPECT_EQ(FingerprintOf(rest), wanted);
  // Without what it learns from it waits for a node that has it.
  WorldOptions bare = OptionsOf(folder / "bare", 1);
  bare.script = StopAfter(3, StopKeeps::kCheckpoint);
  FingerprintOf(TrainRft(bare));
  std::filesystem::remove(folder / absl::StrCat("bare/0/", kRftProgressName));
  bare.script = nullptr;
  const auto refused = TrainRft(bare)[0].outcome.status();
  EXPECT_TRUE(IsOfTheirNodes(refused)) << refused;
  EXPECT_THAT(FailedRanks(refused), ElementsAre(0));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("rft.progress.json"));
}

// Whoever is lost: any node that goes on from the newest state has what the next steps learn from.
TEST(Rft, EveryFolderHasWhatItLearnsFromWhoeverWritesCheckpoints) {
  const TestFolder folder;
  WorldOptions options = OptionsOf(folder.path(), 3);
  options.spec.mutable_checkpoint()->set_copies(1);
  options.script = StopAfter(3, StopKeeps::kCheckpoint);
  FingerprintOf(TrainRft(options));
  const std::string progress = ReadText(folder / absl::StrCat("0/", kRftProgressName));
  EXPECT_EQ(ReadText(folder / absl::StrCat("2/", kRftProgressName)), progress);
  // One that joins takes both.
  std::filesystem::remove_all(folder / "1");
  options.script = nullptr;
  FingerprintOf(TrainRft(options));
  EXPECT_EQ(ReadText(folder / absl::StrCat("1/", kRftProgressName)), progress);
  EXPECT_EQ(ReadText(folder / "1/rft.json"), ReadText(folder / "0/rft.json"));
}

// A disk that is full all the while it samples, and a little longer.
TEST(Rft, GoesOnInMemoryAndBeginsItsStepsOnlyWithWhatIsKept) {
  const TestFolder folder;
  const std::string way = folder / absl::StrCat("0/", kRftProgressName);
  std::filesystem::create_directories(way + "/in the way");
  WorldOptions options = OptionsOf(folder.path(), 1);
  int told = 0;
  bool early = false;
  options.script = [&](int, ScriptedClient& client) {
    client.on_report = [&](ScriptedClient&, const v1::AttachRequest& message) {
      early = early || (message.has_step() && std::filesystem::is_directory(way));
      if (!message.has_practised() || message.practised().accounts().rollout_seconds() > 0) return;
      if (++told == 2) std::filesystem::remove_all(way);
    };
  };
  const std::vector<RankResult> results = TrainRft(options);
  FingerprintOf(results);
  EXPECT_FALSE(early) << "a step is committed that nobody could go on from";
  const auto kept = RftProgressFromJson(ReadText(way));
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->done(), kPrompts);
  EXPECT_EQ(results[0].client->practised()[0].kept(), 0) << "nothing was";
}

TEST(Rft, ARankThatComesAnewTakesWhatAnotherHas) {
  const TestFolder folder;
  const WorldOptions two = OptionsOf(folder / "two", 2);
  EXPECT_FALSE(TrainRft(two, {.lost_at = 3})[0].outcome.ok());
  const std::string kept = absl::StrCat("two/0/", kRftProgressName);
  std::filesystem::remove(folder / kept);
  EXPECT_FALSE(TrainRft(two, {.lost_at = 0})[0].outcome.ok());  // before it samples anything
  const auto taken = RftProgressFromJson(ReadText(folder / kept));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_GT(taken->samples, 0);
  FingerprintOf(TrainRft(two));
  TrainRft(OptionsOf(folder / "one", 1));
  EXPECT_EQ(ReadText(folder / "two/0/rft.json"), ReadText(folder / "one/0/rft.json"));
}

TEST(Rft, NothingAcceptedIsSaidWithWhatToDo) {
  const TestFolder folder;
  const auto status = TrainRft(OptionsOf(folder.path(), 1), {.accepts = false})[0].outcome.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("of 750 completions of 150 prompts none was accepted"));
}

TEST(RftTable, SaysThatCompletionsComeFirst) {
  const RftTable table({.samples = 3, .sequence_length = 8, .end_of_text = 256});
  EXPECT_EQ(table.Read({0}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(RftTable, CountsItsRowsRoundAndRound) {
  const std::shared_ptr<const PromptTable> prompts = Prompts(5, 40);
  RftTable table({.samples = 5, .sequence_length = 8, .end_of_text = 256});
  ASSERT_TRUE(table
                  .Fill(*prompts, {{.prompt = 1, .sample = 0, .ids = {7, 256}, .text = "x"},
                                   {.prompt = 3, .sample = 0, .ids = {8}, .text = "y"}})
                  .ok());
  const auto samples = table.Read({0, 1, 2, 3, 4});
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_EQ(samples->ids, (std::vector<int64_t>{0, 1, 2, 3, 4}));
  for (const int64_t row : {0, 2, 4}) EXPECT_EQ(samples->tokens[row * 9 + 3], 7) << row;
  // The completion and its end count, nothing of the prompt.
  EXPECT_EQ(samples->LossTokens({0, 1}), 2);
  EXPECT_EQ(samples->LossTokens({1, 2}), 2) << "an end that was not sampled is put there";
  EXPECT_EQ(table.mean_length(), (3 + 2 + 2 + 2) / 2.0);
}

}  // namespace
}  // namespace espalier
