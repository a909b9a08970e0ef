// What others do to the files of a run of rft, and kills that come too often, cost time and nothing
// else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/tiny_model.h"
#include "tests/worker/support/training_world.h"
#include "worker/rollout/rollout_engine.h"
#include "worker/task/rft.h"
#include "worker/task/rft_practice.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPrompts = 150, kSteps = 6;

enum class Accepts { kRight, kEvenSizes, kNothing };

// Accepts a completion with a digit or a letter of the record in it; nothing where it is empty.
class CharacterVerifier final : public Verifier {
 public:
  explicit CharacterVerifier(Accepts accepts) : accepts_(accepts) {}
  absl::StatusOr<std::vector<Judgement>> Judge(absl::Span<const Completion> completions,
                                               const TrainingMoment&) override {
    std::vector<Judgement> judgements;
    for (const Completion& one : completions) {
      const auto record = nlohmann::json::parse(one.record.begin(), one.record.end());
      const std::string wanted = record["answer"];
      const bool may = accepts_ == Accepts::kRight ||
                       (accepts_ == Accepts::kEvenSizes && one.text.size() % 2 == 0);
      const bool right = may && one.text.find_first_of(wanted) != absl::string_view::npos;
      Judgement& judgement = judgements.emplace_back();
      judgement.Add("format", one.text.empty() ? 0 : 0.1);
      if (!right) judgement.invalid = "wrong";
    }
    return judgements;
  }

 private:
  const Accepts accepts_;
};

// What happens to a rank's orders, and what was made of them.
struct Fate {
  int lost_at = -1;             // the order at which it is lost; below 0: never
  bool lost_last = false;       // at the one behind the last step
  size_t longest = 1e6;         // prompts; the ranks are called away from longer orders
  int64_t lives_for = 1000000;  // completions, before it is killed
  std::function<void(int order)> before = nullptr;  // each order
  Accepts accepts = Accepts::kRight;
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
    if (fate_.before) fate_.before(orders_++);
    if (fate_.lost_last && around.step == kSteps) return absl::UnavailableError("it is lost");
    if (fate_.lost_at-- == 0) return absl::UnavailableError("the rank is lost");
    if (order.prompts.size() > fate_.longest) return std::nullopt;
    auto made = source_->Sample(decoder, order, around);
    if (made.ok() && *made) fate_.lives_for -= (*made)->figures.samples;
    if (fate_.lives_for < 0) return absl::UnavailableError("the rank is killed");
    if (fate_.made != nullptr && made.ok() && *made) *fate_.made += (*made)->figures.samples;
    return made;
  }

 private:
  std::unique_ptr<RolloutSource> source_;
  Fate fate_;
  int orders_ = 0;
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

// Of what a source is opened for.
template <typename Place>
const RankContext& ContextOf(const Place& place) {
  if constexpr (std::is_same_v<Place, RankContext>) {
    return place;
  } else {
    return place.context;
  }
}

std::vector<RankResult> TrainRft(WorldOptions options, const Fate& fate = {}) {
  RftInputs inputs{.spec = options.spec,
                   .training = Prompts(kPrompts, 40),
                   .validation = Prompts(20, 100),
                   .tokenizer = MakeByteTokenizer(),
                   .data_hash = "made up",
                   .open_source = nullptr};
  const std::shared_ptr<const Tokenizer> tokenizer = inputs.tokenizer;
  inputs.open_source = [tokenizer,
                        fate](const auto& place) -> absl::StatusOr<std::unique_ptr<RolloutSource>> {
    auto engine = std::make_unique<RolloutEngine>(
        ContextOf(place), *tokenizer, std::make_unique<CharacterVerifier>(fate.accepts),
        RolloutEngine::Options{.limits = {.max_new_tokens = 14}});
    Fate own = fate;
    if (ContextOf(place).collective.rank() != Rank(0)) own.made = nullptr;
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

// Nobody knows beforehand how long an order takes, and nothing of one that is not ended is kept.
TEST(Rft, GetsOnWhenEveryOrderOfItIsKilledAfterAWhile) {
  const TestFolder folder;
  const WorldOptions options = OptionsOf(folder / "killed", 1);
  absl::StatusOr<v1::Outcome> outcome = absl::UnknownError("not run");
  for (int start = 0; start < 40 && !outcome.ok(); ++start) {
    outcome = TrainRft(options, {.lives_for = 40})[0].outcome;
  }
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  FingerprintOf(TrainRft(OptionsOf(folder / "whole", 1)));
  EXPECT_EQ(ReadText(folder / "killed/0/rft.json"), ReadText(folder / "whole/0/rft.json"));
}

class RftFiles : public testing::Test {
 protected:
  // Kills a run in the midst of the test behind its last step, which a first kill had left to a
  // process whose orders are small again.
  void KillInLastTest(const WorldOptions& options) {
    EXPECT_FALSE(TrainRft(options, {.lost_last = true})[0].outcome.ok());
    const std::vector<RankResult> killed = TrainRft(options, {.lost_at = 1});
    EXPECT_FALSE(killed[0].outcome.ok());
    const std::vector<v1::Practised> told = killed[0].client->practised();
    ASSERT_FALSE(told.empty()) << "that it got on, or the job would fail of its kills";
    EXPECT_EQ(told.back().step(), kSteps);
    EXPECT_EQ(told.back().kept(), kFirstOrder);
  }
  static constexpr int64_t kFirstOrder = 8, kTested = 20;
  std::string Progress(const std::string& of) const {
    return folder_ / absl::StrCat(of, "/", kRftProgressName);
  }
  // The completions of a run that sampled apart from others, and further.
  void SampleOtherwise() {
    FingerprintOf(TrainRft(OptionsOf(folder_ / "other", 1), {.accepts = Accepts::kEvenSizes}));
  }
  const TestFolder folder_;
};

// A laptop slept in an order, while others sampled on into the folder that they share.
TEST_F(RftFiles, ASleeperDoesNotReplaceWhatOthersHaveSampled) {
  FingerprintOf(TrainRft(OptionsOf(folder_ / "whole", 1)));
  const std::string complete = ReadText(Progress("whole/0"));
  const WorldOptions options = OptionsOf(folder_ / "slept", 1);
  const auto status =
      TrainRft(options, {.before =
                             [&](int order) {
                               if (order == 3) folder_.Write("slept/0/rft.progress.json", complete);
                             }})[0]
          .outcome.status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("others go on with the run"));
  EXPECT_EQ(ReadText(Progress("slept/0")), complete);
  FingerprintOf(TrainRft(options));
  EXPECT_EQ(ReadText(folder_ / "slept/0/rft.json"), ReadText(folder_ / "whole/0/rft.json"));
}

TEST_F(RftFiles, ASleeperWritesNothingIntoAFolderThatIsAnothers) {
  const WorldOptions options = OptionsOf(folder_ / "slept", 1);
  std::string before;
  const auto status =
      TrainRft(options, {.before =
                             [&](int order) {
                               if (order != 3) return;
                               before = ReadText(Progress("slept/0"));
                               folder_.Write("slept/0/.writer", "generation 2 of job nano-1\n");
                             }})[0]
          .outcome.status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("generation 2 of job nano-1"));
  ASSERT_FALSE(before.empty());
  EXPECT_EQ(ReadText(Progress("slept/0")), before);
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "slept/0")) {
    EXPECT_THAT(entry.path().filename().string(), testing::Not(HasSubstr(".writing-")));
  }
}

// Node 1 sampled, and died before the first step; node 0 sampled anew, and trained.
TEST_F(RftFiles, ARankThatSampledOtherwiseDoesNotChangeWhatIsLearnt) {
  SampleOtherwise();
  const std::string other = ReadText(Progress("other/0"));
  for (const bool warm : {false, true}) {
    const std::string name = warm ? "warm" : "cold";
    WorldOptions options = OptionsOf(folder_ / name, 1);
    if (warm) options.warm = folder_ / "memory";
    options.script = StopAfter(3, warm ? StopKeeps::kNothing : StopKeeps::kCheckpoint);
    FingerprintOf(TrainRft(options));
    const std::string trained = ReadText(Progress(name + "/0"));
    ASSERT_LT(RftProgressFromJson(trained)->reach(), RftProgressFromJson(other)->reach());
    folder_.Write(name + "/1/rft.progress.json", other);
    options.ranks = 2;
    options.script = nullptr;
    const std::vector<RankResult> joined = TrainRft(options);
    FingerprintOf(joined);
    EXPECT_EQ(joined[0].start.step, Step(3));
    EXPECT_EQ(ReadText(Progress(name + "/1")), trained);
    EXPECT_EQ(ReadText(folder_ / (name + "/1/rft.json")),
              ReadText(folder_ / (name + "/0/rft.json")));
  }
}

// Rather than that it goes on with others.
TEST_F(RftFiles, ARunWaitsForTheCompletionsThatItHasLearntFrom) {
  SampleOtherwise();
  WorldOptions options = OptionsOf(folder_ / "trained", 1);
  options.script = StopAfter(3, StopKeeps::kCheckpoint);
  FingerprintOf(TrainRft(options));
  const std::string trained = ReadText(Progress("trained/0"));
  folder_.Write("trained/0/rft.progress.json", ReadText(Progress("other/0")));
  options.script = nullptr;
  const auto status = TrainRft(options)[0].outcome.status();
  EXPECT_TRUE(IsOfTheirNodes(status)) << status;
  folder_.Write("trained/0/rft.progress.json", trained);
  FingerprintOf(TrainRft(options));
}

// A job is submitted again with a setting mistyped, and once more with it put back; an upgrade that
// adds a setting is as the first of these.
// The last orders, which found nothing, did not come to this folder.
TEST_F(RftFiles, AFileWithTheRowsServesThoughItSaysThatSomePromptsAreNotDone) {
  WorldOptions options = OptionsOf(folder_ / "late", 1);
  options.script = StopAfter(3, StopKeeps::kCheckpoint);
  FingerprintOf(TrainRft(options));
  RftProgress progress = *RftProgressFromJson(ReadText(Progress("late/0")));
  std::set<int64_t> without;
  for (int64_t prompt = 0; prompt < progress.prompts; ++prompt) without.insert(prompt);
  for (const RftRow& row : progress.rows) without.erase(row.prompt);
  ASSERT_FALSE(without.empty());
  progress.pending.push_back({.prompt = *without.begin(), .made = 1});
  folder_.Write("late/0/rft.progress.json", RftProgressToJson(progress));
  options.script = nullptr;
  const std::vector<RankResult> results = TrainRft(options);
  FingerprintOf(results);
  EXPECT_EQ(results[0].start.step, Step(3));
}

TEST_F(RftFiles, OtherSettingsTakeNothingAwayOnceStepsHaveLearntFromIt) {
  WorldOptions options = OptionsOf(folder_ / "again", 1);
  options.script = StopAfter(3, StopKeeps::kCheckpoint);
  FingerprintOf(TrainRft(options));
  const std::string trained = ReadText(Progress("again/0"));
  WorldOptions mistyped = options;
  mistyped.spec.mutable_train()->mutable_rollout()->set_temperature(0.07);
  mistyped.script = StopAfter(4, StopKeeps::kCheckpoint);
  FingerprintOf(TrainRft(mistyped));
  options.script = nullptr;
  const std::vector<RankResult> back = TrainRft(options);
  FingerprintOf(back);
  EXPECT_EQ(back[0].start.step, Step(4));
  EXPECT_TRUE(ReadText(Progress("again/0")) == trained);
}

double AccuracyOf(const RankResult& result) {
  const std::vector<v1::EvaluationReport> told = result.client->evaluations();
  return told.empty() ? -1 : told.back().figures(0).value();
}

// Its last steps are made again, to the same end.
TEST_F(RftFiles, TheLastTestIsGoneOnWith) {
  const double wanted = AccuracyOf(TrainRft(OptionsOf(folder_ / "whole", 1))[0]);
  const auto after_of = [&](const std::string& of) {
    return nlohmann::json::parse(ReadText(folder_ / (of + "/rft-report.json")))["after"];
  };
  for (const int ranks : {1, 2}) {
    const std::string name = absl::StrCat(ranks);
    const WorldOptions options = OptionsOf(folder_ / name, ranks);
    KillInLastTest(options);
    if (ranks > 1) std::filesystem::remove(folder_ / (name + "/0/rft.test.json"));
    int64_t made = 0;
    const std::vector<RankResult> rest = TrainRft(options, {.made = &made});
    FingerprintOf(rest);
    EXPECT_EQ(made, kTested - kFirstOrder) << ranks;
    if (ranks == 1) {
      EXPECT_EQ(AccuracyOf(rest[0]), wanted);
      EXPECT_EQ(after_of("1/0"), after_of("whole/0"));
    }
    EXPECT_EQ(after_of(name + "/0")["answers"], kTested);
    // As after a kill between the test and the checkpoint.
    int64_t again = 0;
    EXPECT_EQ(AccuracyOf(TrainRft(options, {.made = &again})[0]), AccuracyOf(rest[0]));
    EXPECT_EQ(again, 0);
  }
}

TEST_F(RftFiles, ATestOfAnotherModelIsNotGoneOnWith) {
  WorldOptions options = OptionsOf(folder_ / "faster", 1);
  KillInLastTest(options);
  options.spec.mutable_train()->mutable_schedule()->set_learning_rate(0.01);
  int64_t made = 0;
  FingerprintOf(TrainRft(options, {.made = &made}));
  EXPECT_EQ(made, kTested);
}

// Others may start from what it says that it keeps.
TEST_F(RftFiles, ARankTellsOnlyOfWhatItsOwnFolderHas) {
  constexpr int kFull = 4;  // orders
  const std::string blocked = folder_.Write("full/1", "a file where the folder should be");
  const auto make_room = [&](int order) {
    if (order == kFull && std::filesystem::is_regular_file(blocked)) {
      std::filesystem::remove(blocked);
    }
  };
  const auto ranks = TrainRft(OptionsOf(folder_ / "full", 2), {.before = make_room});
  FingerprintOf(ranks);
  for (int order = 0; order < kFull; ++order) {
    EXPECT_GT(ranks[0].client->practised().at(order).kept(), 0) << order;
    EXPECT_EQ(ranks[1].client->practised().at(order).kept(), 0) << order;
    EXPECT_EQ(ranks[0].client->practised().at(order).error(), "") << order;
    EXPECT_THAT(ranks[1].client->practised().at(order).error(), HasSubstr("full/1")) << order;
  }
}

// A disk that is full when the generation begins, and is not a minute later.
TEST_F(RftFiles, AFolderThatTakesNothingAtFirstHasThemLater) {
  folder_.Write("late/1", "a file where the folder should be");
  const std::string blocked = folder_ / "late/1";
  const auto make_room = [&](int order) {
    if (order == 2 && std::filesystem::is_regular_file(blocked)) std::filesystem::remove(blocked);
  };
  FingerprintOf(TrainRft(OptionsOf(folder_ / "late", 2), {.before = make_room}));
  ASSERT_TRUE(std::filesystem::exists(Progress("late/1")));
  EXPECT_TRUE(ReadText(Progress("late/1")) == ReadText(Progress("late/0")));
  EXPECT_TRUE(ReadText(folder_ / "late/1/rft.json") == ReadText(folder_ / "late/0/rft.json"));
}

}  // namespace
}  // namespace espalier
