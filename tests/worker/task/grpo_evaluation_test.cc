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
  std::unique_ptr<Practice> Open(const std::string& folder = "checkpoints") {
    const PracticePlace place{.context = context_, .folder = folder_ / folder, .writes = true};
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
  EXPECT_FALSE(Part(*Open()));
  asked_.clear();
  const std::unique_ptr<Practice> next = Open();
  while (!Part(*next, 4)) {
  }
  EXPECT_EQ(std::accumulate(asked_.begin(), asked_.end(), size_t{0}), kPrompts);
  run_.train().set_seed(77);
  asked_.clear();
  const std::unique_ptr<Practice> other = Open();
  while (!Part(*other, 4)) {
  }
  EXPECT_EQ(std::accumulate(asked_.begin(), asked_.end(), size_t{0}), kPrompts)
      << "of another seed, in the same folder";
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

TEST(GrpoKills, ARunWhoseEvaluationsAreAllKilledEndsAllTheSame) {
  constexpr int64_t kSteps = 4;
  const TestFolder folder;
  GrpoRun run = RunOf(kSteps, folder / "killed");
  run.options.spec.mutable_evaluate()->set_every_steps(2);
  run.options.spec.mutable_checkpoint()->set_every_steps(1);
  run.options.validation = true;
  const auto task =
      *Grpo::Create(run.options.spec, {TinyPrompts(24), TinyPrompts(20), {}},
                    [&](const RolloutPlace&) -> absl::StatusOr<std::unique_ptr<RolloutSource>> {
                      return std::make_unique<ShortLived>(run.fake);
                    });
  run.options.task = task.get();
  std::pair<int64_t, int64_t> reached;
  absl::StatusOr<v1::Outcome> outcome = absl::UnknownError("not run");
  for (int start = 0; start < 20 && !outcome.ok(); ++start) {
    const std::vector<RankResult> results = TrainWorld(run.options);
    outcome = results[0].outcome;
    const std::vector<v1::Practised> told = results[0].client->practised();
    ASSERT_FALSE(told.empty()) << outcome.status();
    const std::pair<int64_t, int64_t> now = {told.back().step(), told.back().kept()};
    EXPECT_GT(now, reached) << "as the coordinator counts faults, the job would fail";
    reached = now;
  }
  EXPECT_TRUE(outcome.ok()) << outcome.status();
}

}  // namespace
}  // namespace espalier
