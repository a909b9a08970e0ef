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

namespace espalier {
namespace {

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

// Of a rank: lost when it is asked for the `fails_at`-th order.
class LostSource final : public RolloutSource {
 public:
  LostSource(std::unique_ptr<RolloutSource> source, int fails_at)
      : source_(std::move(source)), left_(fails_at) {}
  absl::StatusOr<std::optional<Rollouts>> Sample(const Decoder& decoder, const RolloutOrder& order,
                                                 const RolloutAround& around) override {
    if (left_-- == 0) return absl::UnavailableError("the rank is lost");
    return source_->Sample(decoder, order, around);
  }

 private:
  std::unique_ptr<RolloutSource> source_;
  int left_;
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

// `fails_at`: the order at which a rank is lost; below 0: none is.
std::vector<RankResult> TrainRft(WorldOptions options, int fails_at = -1, bool accepts = true) {
  RftInputs inputs{.spec = options.spec,
                   .training = Prompts(kPrompts, 40),
                   .validation = Prompts(20, 100),
                   .tokenizer = MakeByteTokenizer(),
                   .data_hash = "made up",
                   .open_source = nullptr};
  const std::shared_ptr<const Tokenizer> tokenizer = inputs.tokenizer;
  inputs.open_source =
      [tokenizer, fails_at,
       accepts](const RankContext& context) -> absl::StatusOr<std::unique_ptr<RolloutSource>> {
    auto engine = std::make_unique<RolloutEngine>(
        context, *tokenizer, std::make_unique<CharacterVerifier>(accepts),
        RolloutEngine::Options{.limits = {.max_new_tokens = 14}});
    return std::make_unique<LostSource>(std::move(engine), fails_at);
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

TEST(Rft, KeepsTheFirstAcceptedCompletionOfEachPromptAndTellsOfItself) {
  const TestFolder folder;
  const std::vector<RankResult> results = TrainRft(OptionsOf(folder.path(), 1));
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
  double rollout = 0;
  for (const v1::StepReport& step : results[0].client->steps()) rollout += step.rollout_seconds();
  EXPECT_GT(rollout, 0);
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

// Orders: 0 the test of the model as it began, 1 to 3 blocks of prompts, 4 the test at the end.
TEST(Rft, GoesOnWithWhatItHadFromEachPhase) {
  const TestFolder folder;
  const uint64_t wanted = FingerprintOf(TrainRft(OptionsOf(folder / "whole", 1)));
  const std::string rows = ReadText(folder / "whole/0/rft.json");
  for (const int fails_at : {0, 1, 3, 4}) {
    const WorldOptions options = OptionsOf(folder / absl::StrCat(fails_at), 1);
    EXPECT_FALSE(TrainRft(options, fails_at)[0].outcome.ok());
    const auto kept =
        RftProgressFromJson(ReadText(folder / absl::StrCat(fails_at, "/0/", kRftProgressName)));
    EXPECT_EQ(kept.ok(), fails_at > 0) << fails_at;
    if (kept.ok()) {
      EXPECT_EQ(kept->prompts, std::min<int64_t>(kPrompts, 64 * (fails_at - 1)));
    }
    EXPECT_EQ(FingerprintOf(TrainRft(options)), wanted) << fails_at;
    EXPECT_EQ(ReadText(folder / absl::StrCat(fails_at, "/0/rft.json")), rows) << fails_at;
  }
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
  // Without what it learns from it cannot.
  WorldOptions bare = OptionsOf(folder / "bare", 1);
  bare.script = StopAfter(3, StopKeeps::kCheckpoint);
  FingerprintOf(TrainRft(bare));
  std::filesystem::remove(folder / absl::StrCat("bare/0/", kRftProgressName));
  bare.script = nullptr;
  const auto refused = TrainRft(bare)[0].outcome.status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("rft.progress.json"));
}

TEST(Rft, ARankThatComesAnewTakesWhatAnotherHas) {
  const TestFolder folder;
  const WorldOptions two = OptionsOf(folder / "two", 2);
  EXPECT_FALSE(TrainRft(two, 2)[0].outcome.ok());
  const std::string kept = absl::StrCat("two/0/", kRftProgressName);
  std::filesystem::remove(folder / kept);
  EXPECT_FALSE(TrainRft(two, 0)[0].outcome.ok());  // before it samples anything
  const auto taken = RftProgressFromJson(ReadText(folder / kept));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->prompts, 64);
  FingerprintOf(TrainRft(two));
  TrainRft(OptionsOf(folder / "one", 1));
  EXPECT_EQ(ReadText(folder / "two/0/rft.json"), ReadText(folder / "one/0/rft.json"));
}

TEST(Rft, NothingAcceptedIsSaidWithWhatToDo) {
  const TestFolder folder;
  const auto status =
      TrainRft(OptionsOf(folder.path(), 1), /*fails_at=*/-1, /*accepts=*/false)[0].outcome.status();
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

// Paths begin with the home folder of a node's user.
TEST(RftRunName, IsTheSameOnAllNodes) {
  const auto job = [](const std::string& home, const std::string& model) {
    v1::JobSpec spec;
    spec.mutable_model()->set_from(home + model);
    spec.mutable_train()->mutable_lora()->set_from(home + "/adapter");
    spec.mutable_train()->mutable_verifier()->set_folder(home + "/judge");
    return spec;
  };
  EXPECT_EQ(RftRunName(job("/home/a", "/model"), "data"),
            RftRunName(job("/Users/b", "/model"), "data"));
  EXPECT_NE(RftRunName(job("/home/a", "/model"), "data"),
            RftRunName(job("/home/a", "/other"), "data"));
}

TEST(RftProgress, ComesBackAsItWasOrNotAtAll) {
  RftProgress progress{.run = "r", .before = RftTest{3, 0.25, 0.5}, .prompts = 7, .rows = {}};
  progress.rows = {{.prompt = 2, .sample = 1, .ids = {1, 256}, .text = "a\n\"b"}};
  progress.sample_seconds = 0.1;
  const std::string json = RftProgressToJson(progress);
  const auto back = RftProgressFromJson(json);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, progress);
  for (size_t at = 0; at < json.size(); at += 7) {
    EXPECT_FALSE(RftProgressFromJson(json.substr(0, at)).ok()) << at;
    std::string altered = json;
    altered[at] = altered[at] == '7' ? '8' : '7';
    EXPECT_FALSE(RftProgressFromJson(altered).ok()) << at;
  }
}

}  // namespace
}  // namespace espalier
