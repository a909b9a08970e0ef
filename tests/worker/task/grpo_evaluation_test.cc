// Evaluations of group relative policy optimisation: in parts, of which none is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/tiny_model.h"
#include "tests/worker/task/grpo_run.h"
#include "worker/collective/in_process.h"
#include "worker/state/checkpoint.h"
#include "worker/task/run_name.h"
#include "worker/task/test_progress.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kPrompts = 30;

// Two games, of which the model, whose completions are no guesses, solves none.
WordleMatch TwoGames() {
  const auto list = [] {
    return *WordList::Of({*WordleWord::Parse("CRANE"), *WordleWord::Parse("ALLEY")});
  };
  WordleMatch match{.vocabulary = {.guesses = list(), .secrets = list()},
                    .secrets = {*WordleWord::Parse("CRANE"), *WordleWord::Parse("ALLEY")},
                    .prompt = {}};
  match.prompt = [](const History&) { return std::vector<int32_t>{1, 2, 3}; };
  return match;
}

class GrpoEvaluation : public testing::Test {
 protected:
  GrpoEvaluation() {
    run_.options.spec.mutable_evaluate()->set_max_prompts(kPrompts);
    run_.fake.on_order = [this](const RolloutOrder& order) {
      asked_.push_back(order.prompts.size());
    };
  }
  // As another process has it.
  std::unique_ptr<Practice> Open(const std::string& folder = "checkpoints",
                                 uint64_t learns_from = 0) {
    const PracticePlace place{.context = context_,
                              .folder = folder_ / folder,
                              .writes = true,
                              .learns_from = learns_from};
    return *GrpoPractice::Create(run_.options.spec, prompts_, place,
                                 std::make_unique<FakeRollouts>(run_.fake));
  }
  Practice::Findings Whole() {
    const auto whole = Open("whole")->Evaluate(*model_.decoder, {.step = 3, .in_one_go = true});
    EXPECT_TRUE(whole.ok() && whole->has_value()) << whole.status();
    return **whole;
  }
  std::optional<Practice::Findings> Part(Practice& practice, int64_t step = 3) {
    const auto part = practice.Evaluate(*model_.decoder, {.step = step});
    EXPECT_TRUE(part.ok()) << part.status();
    return *part;
  }
  static void ExpectSame(const Practice::Findings& found, const Practice::Findings& whole) {
    EXPECT_EQ(found.loss, whole.loss);
    EXPECT_EQ(found.answers, whole.answers);
    ASSERT_EQ(found.figures.size(), whole.figures.size());
    for (size_t i = 0; i < whole.figures.size(); ++i) {
      EXPECT_EQ(found.figures[i].value, whole.figures[i].value) << whole.figures[i].name;
    }
  }

  const TestFolder folder_;
  GrpoRun run_ = RunOf(9, folder_.path());
  GrpoPrompts prompts_{{TinyPrompts(24)}, TinyPrompts(40), {}};
  std::vector<size_t> asked_;
  const std::vector<std::unique_ptr<Collective>> world_ = InProcessGroup(1, absl::Seconds(30));
  ProgressBoard board_;
  const RankContext context_{*world_[0], RealClock(), board_};
  const TinyModel model_{TinyConfig()};
};

// Else whoever pauses more often than an evaluation takes would never train on.
TEST_F(GrpoEvaluation, GoesOnWhereItWasCalledAway) {
  const Practice::Findings whole = Whole();
  EXPECT_THAT(asked_, ElementsAre(8, 16, 6));
  asked_.clear();
  const std::unique_ptr<Practice> broken = Open();
  RolloutAround around{.step = 3, .in_one_go = true};
  for (const size_t orders : {2, 4}) {  // the last of which it is called away from
    around.called_away = [&] { return asked_.size() == orders; };
    const auto none = broken->Evaluate(*model_.decoder, around);
    ASSERT_TRUE(none.ok()) << none.status();
    EXPECT_FALSE(none->has_value());
  }
  around.called_away = nullptr;
  const auto found = broken->Evaluate(*model_.decoder, around);
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
  EXPECT_THAT(asked_, ElementsAre(8, 16, 8, 14, 8, 6)) << "what was answered is kept";
  ExpectSame(**found, whole);
}

TEST_F(GrpoEvaluation, OfAnotherModelBeginsAtItsBeginning) {
  const auto asked_of = [this](int64_t step, uint64_t learns_from) {
    asked_.clear();
    const std::unique_ptr<Practice> practice = Open("checkpoints", learns_from);
    while (!Part(*practice, step)) {
    }
    return std::accumulate(asked_.begin(), asked_.end(), int64_t{0});
  };
  EXPECT_FALSE(Part(*Open()));
  EXPECT_EQ(asked_of(4, 0), kPrompts) << "of another step";
  EXPECT_EQ(asked_of(4, 0), 0) << "the same once more";
  EXPECT_EQ(asked_of(4, 5), kPrompts) << "a step that was made again with other completions";
  run_.train().set_seed(77);
  EXPECT_EQ(asked_of(4, 5), kPrompts) << "of another seed, in the same folder";
}

TEST_F(GrpoEvaluation, AModelIsKnownByAllThatItHasLearntFrom) {
  run_.fake.on_order = nullptr;
  SlotStates slots;
  const GrpoNumbers numbers(run_.options.spec.train());
  ASSERT_TRUE(
      slots.Keep({.slots = 16, .record_bytes = sizeof(GrpoSlot), .numbers = numbers.size()}).ok());
  const auto learnt = [&](Practice& practice, int64_t step) {
    EXPECT_TRUE(*practice.Prepare(Step(step), *model_.decoder, {}, slots));
    return practice.learns_from();
  };
  const std::unique_ptr<Practice> one = Open(), other = Open();
  const uint64_t first = learnt(*one, 0);
  EXPECT_EQ(learnt(*one, 0), first) << "a step that was not begun after all";
  EXPECT_EQ(learnt(*other, 0), first);
  const uint64_t second = learnt(*one, 1);
  EXPECT_NE(second, first);
  EXPECT_EQ(learnt(*Open("checkpoints", first), 1), second) << "a process goes on with it";
  run_.fake.reward = [](const RolloutPrompt& prompt, const std::vector<int32_t>& ids) {
    return 1 - SameParity(prompt, ids);
  };
  EXPECT_NE(learnt(*Open("checkpoints", first), 1), second) << "of the other advantages";
}

TEST_F(GrpoEvaluation, ReplacesAFileThatIsOfNoUse) {
  folder_.Write(
      "checkpoints/grpo.test.json",
      TestProgressToJson(
          {.of = TestName(run_.options.spec, "", "0"), .step = 3, .reach = 29, .so_far = "{}"}));
  const std::unique_ptr<Practice> practice = Open();
  EXPECT_FALSE(Part(*practice));
  EXPECT_EQ(practice->kept(), 8);
  EXPECT_FALSE(Part(*Open()));
  EXPECT_THAT(asked_, ElementsAre(8, 8));
}

TEST_F(GrpoEvaluation, InOneGoTellsHowFarItIs) {
  const std::unique_ptr<Practice> practice = Open();
  std::vector<int64_t> told;
  const auto found = practice->Evaluate(
      *model_.decoder,
      {.step = 3, .in_one_go = true, .got_on = [&] { told.push_back(practice->kept()); }});
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
  EXPECT_THAT(told, ElementsAre(8, 24));
}

// The coordinator takes what grows for progress, and fails no job that makes some.
TEST_F(GrpoEvaluation, LosesNothingOfItsPartsWithAProcess) {
  prompts_.games = TwoGames();
  const Practice::Findings whole = Whole();
  EXPECT_THAT(asked_, ElementsAre(8, 16, 6, 2, 2, 2, 2, 2, 2));
  asked_.clear();
  std::optional<Practice::Findings> found;
  std::vector<int64_t> kept;
  for (int process = 0; process < 20 && !found; ++process) {
    const std::unique_ptr<Practice> practice = Open();
    found = Part(*practice);
    kept.push_back(practice->kept());
  }
  ASSERT_TRUE(found);
  EXPECT_THAT(asked_, ElementsAre(8, 8, 8, 6, 2, 2, 2, 2, 2, 2)) << "an order each";
  EXPECT_THAT(kept, ElementsAre(8, 16, 24, 30, 32, 34, 36, 38, 40, 42));
  ExpectSame(*found, whole);
}

// A checkpoint that is ranked by its loss waits for all of it.
bool HasLoss(const std::string& folder) {
  const auto manifest = CheckCheckpoint(PosixFileSystem(), folder, CheckpointCheck::kSizes);
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return manifest.ok() && manifest->validation_loss.has_value();
}

TEST(GrpoCheckpoints, HaveTheLossOfAnEvaluationInParts) {
  const TestFolder folder;
  GrpoRun run = RunOf(4, folder.path());
  run.options.spec.mutable_evaluate()->set_every_steps(2);
  run.options.spec.mutable_checkpoint()->set_every_steps(1);
  run.options.spec.mutable_checkpoint()->set_keep_best(9);
  run.options.spec.mutable_checkpoint()->set_keep(9);
  run.options.validation = true;
  run.validation = 20;
  run.Train();
  for (const char* step : {"step-00000001", "step-00000002", "step-00000003", "step-00000004"}) {
    EXPECT_TRUE(HasLoss(folder / step)) << step;
  }
}

// Dies in the second order of an evaluation, as a machine does whose evaluations take longer than
// it lives.
class ShortLived final : public RolloutSource {
 public:
  explicit ShortLived(const FakeRollouts::Options& options) : fake_(options) {}
  absl::StatusOr<std::optional<Rollouts>> Sample(const Decoder& decoder, const RolloutOrder& order,
                                                 const RolloutAround& around) override {
    if (order.samples == 1 && ++evaluated_ == 2) return absl::UnavailableError("it is killed");
    return fake_.Sample(decoder, order, around);
  }

 private:
  FakeRollouts fake_;
  int evaluated_ = 0;
};

class GrpoKills : public testing::Test {
 protected:
  GrpoKills() {
    run_.options.spec.mutable_checkpoint()->set_every_steps(1);
    run_.options.validation = true;
    run_.options.task = task_.get();
  }
  // What the last process told that it had got to, as the coordinator counts it: step and kept.
  std::pair<int64_t, int64_t> Reached() {
    const std::vector<RankResult> results = TrainWorld(run_.options);
    outcome_ = results[0].outcome;
    const std::vector<v1::Practised> told = results[0].client->practised();
    EXPECT_FALSE(told.empty()) << outcome_.status();
    if (told.empty()) return {};
    return {told.back().step(), told.back().kept()};
  }

  const TestFolder folder_;
  GrpoRun run_ = RunOf(/*steps=*/4, folder_.path());
  const std::unique_ptr<Task> task_ =
      *Grpo::Create(run_.options.spec, {TinyPrompts(24), TinyPrompts(20), {}},
                    [this](const RolloutPlace&) -> absl::StatusOr<std::unique_ptr<RolloutSource>> {
                      return std::make_unique<ShortLived>(run_.fake);
                    });
  absl::StatusOr<v1::Outcome> outcome_ = absl::UnknownError("not run");
};

// A job fails of faults between which it gets on no further.
TEST_F(GrpoKills, ARunWhoseEvaluationsAreAllKilledEndsAllTheSame) {
  run_.options.spec.mutable_evaluate()->set_every_steps(2);
  std::pair<int64_t, int64_t> before;
  for (int start = 0; start < 20 && !outcome_.ok(); ++start) {
    const std::pair<int64_t, int64_t> now = Reached();
    EXPECT_GT(now, before);
    before = now;
  }
  EXPECT_TRUE(outcome_.ok()) << outcome_.status();
}

TEST_F(GrpoKills, WhatACheckpointWaitsForGetsOnToo) {
  run_.options.spec.mutable_checkpoint()->set_keep_best(9);
  EXPECT_EQ(Reached(), std::make_pair(int64_t{1}, int64_t{8}));
  EXPECT_EQ(Reached(), std::make_pair(int64_t{1}, int64_t{16}));
}

}  // namespace
}  // namespace espalier
