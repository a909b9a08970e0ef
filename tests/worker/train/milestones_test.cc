// Evaluations and checkpoints that come between steps: what is asked of the ranks meanwhile is not
// kept waiting.
#include "worker/train/milestones.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <utility>

#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "worker/state/checkpoint.h"
#include "worker/task/next_token.h"

namespace espalier {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::Not;

constexpr int64_t kLength = 32, kSequences = 64;

std::shared_ptr<const SampleTable> Text(int64_t sequences) {
  std::vector<int64_t> tokens(sequences * kLength + 1);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i * i + 3 * i) % 47;
  return std::make_shared<WindowTable>(std::make_shared<VectorTokenRow>(std::move(tokens)),
                                       kLength);
}

// The same table, which tells how many rows each read is of.
class ToldTable : public SampleTable {
 public:
  ToldTable(std::shared_ptr<const SampleTable> table, std::function<void(int64_t rows)> told)
      : table_(std::move(table)), told_(std::move(told)) {}
  int64_t size() const override { return table_->size(); }
  int64_t sequence_length() const override { return table_->sequence_length(); }
  int64_t Length(int64_t id) const override { return table_->Length(id); }
  absl::StatusOr<Samples> Read(std::vector<int64_t> ids) const override {
    told_(static_cast<int64_t>(ids.size()));
    return table_->Read(std::move(ids));
  }

 private:
  const std::shared_ptr<const SampleTable> table_;
  const std::function<void(int64_t)> told_;
};

std::optional<double> LossOfCheckpoint(const std::string& folder) {
  const auto manifest = CheckCheckpoint(PosixFileSystem(), folder, CheckpointCheck::kSizes);
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return manifest.ok() ? manifest->validation_loss : std::nullopt;
}

v1::Directive Make(int64_t number, v1::RunState state) {
  v1::Directive directive;
  directive.set_number(number);
  directive.set_run_state(state);
  directive.set_checkpoint_before_stop(state == v1::RUN_STATE_STOP);
  return directive;
}

// Two ranks that evaluate in passes of one sequence; only rank 0 hears the coordinator.
class BetweenSteps : public testing::Test {
 protected:
  WorldOptions Options(int64_t steps, int64_t evaluate_every) {
    WorldOptions options;
    options.ranks = 2;
    options.spec = TinySpec(steps);
    options.spec.mutable_batch()->add_micro_batch(1);
    options.spec.mutable_evaluate()->set_every_steps(evaluate_every);
    options.checkpoints = folder_.path();
    options.validation = true;
    options.task = &task_;
    options.script = [this](int rank, ScriptedClient& client) {
      if (rank != 0) return;
      first_ = &client;
      client.on_report = [this](ScriptedClient&, const v1::AttachRequest& message) {
        if (message.has_step()) told_.push_back(message.step().step());
        if (message.has_evaluation()) told_.push_back(-message.evaluation().step());
        if (on_report_) on_report_(message);
      };
    };
    return options;
  }
  ~BetweenSteps() override {
    const auto listed = ListSegments(folder_ / "warm", "studio");
    if (!listed.ok()) return;
    for (const RegisteredSegment& one : *listed) RemoveSegment(folder_ / "warm", one.name);
  }
  // Trains until a stop that comes in the middle of an evaluation.
  void BreakOff(const WorldOptions& options,
                const v1::Directive& stop = Make(1, v1::RUN_STATE_STOP)) {
    on_read_ = [&] { first_->Set(stop); };
    for (const RankResult& result : TrainWorld(options)) {
      ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
      EXPECT_EQ(*result.outcome, v1::OUTCOME_STOPPED);
    }
    EXPECT_LT(reads(), break_at_ + kSequences / 2) << "it went on to its end";
    on_read_ = nullptr;
    told_.clear();
    absl::MutexLock lock(&mutex_);
    rows_.clear();
  }
  int64_t reads() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(rows_.size());
  }

  const TestFolder folder_;
  ScriptedClient* first_ = nullptr;
  std::function<void(const v1::AttachRequest&)> on_report_;
  int64_t break_at_ = 10;          // reads of the validation split
  std::function<void()> on_read_;  // that one
  std::vector<int64_t> told_;      // by rank 0: steps, and minus those of evaluations
  mutable absl::Mutex mutex_;
  std::vector<int64_t> rows_;  // of each read of the validation split, of either rank
  const NextToken task_{Text(250),
                        std::make_shared<ToldTable>(Text(kSequences), [this](int64_t rows) {
                          absl::MutexLock lock(&mutex_);
                          rows_.push_back(rows);
                          if (static_cast<int64_t>(rows_.size()) != break_at_) return;
                          if (on_read_) on_read_();
                        })};
};

TEST_F(BetweenSteps, AStopWithACheckpointWaitsForNoEvaluation) {
  WorldOptions options = Options(50, /*evaluate_every=*/0);
  options.spec.mutable_checkpoint()->set_keep_best(1);
  on_report_ = [this](const v1::AttachRequest& message) {
    const bool asks = message.has_step() && message.step().step() == 4;
    if (asks) first_->Set(Make(1, v1::RUN_STATE_STOP));
  };
  for (const RankResult& result : TrainWorld(options)) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(*result.outcome, v1::OUTCOME_STOPPED);
  }
  EXPECT_THAT(Names(folder_.path()), Contains("step-00000005"));
  EXPECT_EQ(reads(), 0);
}

// The learning rate of the step that follows depends on it.
TEST_F(BetweenSteps, AnEvaluationThatAStopBrokeOffIsMadeBeforeTheNextStep) {
  WorldOptions options = Options(6, /*evaluate_every=*/3);
  options.spec.mutable_evaluate()->set_min_delta(100);  // no evaluation is a gain
  options.spec.mutable_train()->mutable_schedule()->set_plateau_patience(1);
  BreakOff(options);
  EXPECT_THAT(Names(folder_.path()), Contains("step-00000003"));
  const std::vector<RankResult> resumed = TrainWorld(options);
  ASSERT_TRUE(resumed[0].outcome.ok()) << resumed[0].outcome.status();
  EXPECT_THAT(told_, ElementsAre(-3, 3, 4, 5, -6));
  const TestFolder other;
  options.checkpoints = other.path();
  EXPECT_EQ(resumed[0].fingerprint, TrainWorld(options)[0].fingerprint);
}

TEST_F(BetweenSteps, AnEvaluationThatAPauseBrokeOffIsMadeAfterIt) {
  on_read_ = [this] { first_->Set(Make(1, v1::RUN_STATE_PAUSE)); };
  on_report_ = [this](const v1::AttachRequest& message) {
    if (!message.has_ack() || message.ack().number() != 1) return;
    EXPECT_LT(reads(), kSequences / 2);
    first_->Set(Make(2, v1::RUN_STATE_RUN));
  };
  for (const RankResult& result : TrainWorld(Options(4, /*evaluate_every=*/3))) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(*result.outcome, v1::OUTCOME_COMPLETED);
  }
  EXPECT_THAT(told_, ElementsAre(0, 1, 2, -3, 3, -4));
}

// Of which a worker knows nothing when it begins.
TEST_F(BetweenSteps, AnEvaluationIsMadeUpForInPassesOfTheSizeThatFits) {
  WorldOptions options = Options(4, /*evaluate_every=*/3);
  BreakOff(options);
  options.spec.mutable_batch()->clear_micro_batch();
  const std::vector<RankResult> resumed = TrainWorld(options);
  ASSERT_TRUE(resumed[0].outcome.ok()) << resumed[0].outcome.status();
  EXPECT_THAT(rows_, Each(Gt(1)));
}

// A stop's checkpoint on one machine lacks it, and the memory of all has it.
TEST_F(BetweenSteps, AnEvaluationThatWasMadeUpForIsNotMadeAgain) {
  WorldOptions options = Options(6, /*evaluate_every=*/3);
  options.spec.mutable_checkpoint()->set_copies(1);
  options.own_folders = true;
  options.warm = folder_ / "warm";
  BreakOff(options);
  on_report_ = [this](const v1::AttachRequest& message) {
    v1::Directive stop = Make(2, v1::RUN_STATE_STOP);
    stop.set_checkpoint_before_stop(false);
    if (message.has_evaluation()) first_->Set(stop);
  };
  TrainWorld(options);
  EXPECT_THAT(told_, ElementsAre(-3));
  told_.clear();
  on_report_ = nullptr;
  for (const RankResult& result : TrainWorld(options)) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.start.origin, "warm state of step 3");
  }
  EXPECT_THAT(told_, ElementsAre(3, 4, 5, -6));
}

// The second of them is made at a boundary, for a checkpoint that is asked for there.
class InABoundary : public BetweenSteps {
 protected:
  // Evaluates after every third step; a stop breaks off the evaluation of step 6, and the next
  // world is asked for a checkpoint as it begins.
  std::vector<RankResult> TrainBrokenOff(WorldOptions options) {
    break_at_ = kSequences + 10;
    BreakOff(options);
    options.script = [script = options.script](int rank, ScriptedClient& client) {
      script(rank, client);
      v1::Directive directive = Make(1, v1::RUN_STATE_RUN);
      directive.set_checkpoint_request(1);
      if (rank == 0) client.Set(directive);
    };
    return TrainWorld(options);
  }
  // No evaluation but the first is a gain.
  WorldOptions Options() {
    WorldOptions options = BetweenSteps::Options(9, /*evaluate_every=*/3);
    options.spec.mutable_evaluate()->set_min_delta(100);
    options.spec.mutable_checkpoint()->set_keep_best(1);
    return options;
  }
};

TEST_F(InABoundary, AnEvaluationLowersTheRateOfTheVeryNextStep) {
  WorldOptions options = Options();
  options.spec.mutable_train()->mutable_schedule()->set_plateau_patience(1);
  const std::vector<RankResult> resumed = TrainBrokenOff(options);
  ASSERT_TRUE(resumed[0].outcome.ok()) << resumed[0].outcome.status();
  EXPECT_THAT(told_, ElementsAre(-6, 6, 7, 8, -9));
  const TestFolder other;
  options.checkpoints = other.path();
  const std::vector<RankResult> undisturbed = TrainWorld(options);
  EXPECT_EQ(resumed[0].client->steps()[0].learning_rate(),
            undisturbed[0].client->steps()[6].learning_rate());
  EXPECT_EQ(resumed[0].fingerprint, undisturbed[0].fingerprint);
}

TEST_F(InABoundary, AnEvaluationThatEndsTheJobIsFollowedByNoStep) {
  WorldOptions options = Options();
  options.spec.mutable_evaluate()->set_patience(1);
  for (const RankResult& result : TrainBrokenOff(options)) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(*result.outcome, v1::OUTCOME_COMPLETED);
    EXPECT_EQ(result.replica->step(), Step(6));
  }
  EXPECT_THAT(told_, ElementsAre(-6));
}

// It is ranked by its loss.
TEST_F(BetweenSteps, ACheckpointDueWithAnEvaluationThatAPauseBrokeOffIsMadeAfterBoth) {
  WorldOptions options = Options(6, /*evaluate_every=*/4);
  options.spec.mutable_checkpoint()->set_every_steps(4);
  options.spec.mutable_checkpoint()->set_keep_best(1);
  on_read_ = [this] { first_->Set(Make(1, v1::RUN_STATE_PAUSE)); };
  on_report_ = [this](const v1::AttachRequest& message) {
    if (message.has_ack() && message.ack().number() == 1) first_->Set(Make(2, v1::RUN_STATE_RUN));
  };
  for (const RankResult& result : TrainWorld(options)) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(*result.outcome, v1::OUTCOME_COMPLETED);
  }
  EXPECT_THAT(told_, ElementsAre(0, 1, 2, 3, -4, 4, 5, -6));
  EXPECT_TRUE(LossOfCheckpoint(folder_ / "step-00000004"));
}

TEST_F(BetweenSteps, ACheckpointAskedForInThePauseOfAnEvaluationGetsItsLoss) {
  WorldOptions options = Options(6, /*evaluate_every=*/4);
  options.spec.mutable_checkpoint()->set_every_steps(4);
  options.spec.mutable_checkpoint()->set_keep_best(1);
  on_read_ = [this] {
    v1::Directive pause = Make(1, v1::RUN_STATE_PAUSE);
    pause.set_checkpoint_request(1);
    first_->Set(pause);
  };
  bool lossless = false;
  on_report_ = [&](const v1::AttachRequest& message) {
    if (!message.has_checkpoint() || message.checkpoint().step() != 4 || lossless) return;
    lossless = !LossOfCheckpoint(folder_ / "step-00000004");
    v1::Directive run = Make(2, v1::RUN_STATE_RUN);
    run.set_checkpoint_request(1);
    first_->Set(run);
  };
  for (const RankResult& result : TrainWorld(options)) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
  }
  EXPECT_TRUE(lossless) << "the evaluation was over before the pause";
  EXPECT_TRUE(LossOfCheckpoint(folder_ / "step-00000004"));
}

TEST_F(BetweenSteps, ACheckpointDueWithAnEvaluationThatAStopBrokeOffIsMadeByTheNextWorld) {
  WorldOptions options = Options(6, /*evaluate_every=*/4);
  options.spec.mutable_checkpoint()->set_every_steps(4);
  options.spec.mutable_checkpoint()->set_keep_best(1);
  options.warm = folder_ / "warm";
  v1::Directive stop = Make(1, v1::RUN_STATE_STOP);
  stop.set_checkpoint_before_stop(false);
  BreakOff(options, stop);
  EXPECT_THAT(Names(folder_.path()), Not(Contains("step-00000004")));
  for (const RankResult& result : TrainWorld(options)) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.start.origin, "warm state of step 4");
  }
  EXPECT_THAT(told_, ElementsAre(-4, 4, 5, -6));
  EXPECT_TRUE(LossOfCheckpoint(folder_ / "step-00000004"));
}

TEST_F(BetweenSteps, TheLastEvaluationIsBrokenOffLikeAnyOther) {
  const WorldOptions options = Options(3, /*evaluate_every=*/0);
  BreakOff(options);
  EXPECT_THAT(Names(folder_.path()), Contains("step-00000003"));
  const std::vector<RankResult> resumed = TrainWorld(options);
  ASSERT_TRUE(resumed[0].outcome.ok()) << resumed[0].outcome.status();
  EXPECT_EQ(*resumed[0].outcome, v1::OUTCOME_COMPLETED);
  EXPECT_THAT(told_, ElementsAre(-3));
}

// A file lies where the checkpoint is to go. What was called off once says nothing of what fails
// after it.
TEST_F(BetweenSteps, ALastCheckpointIsTriedAgainAlsoAfterAStopThatWasCalledOff) {
  const std::string in_the_way = folder_.Write("step-00000003", "in the way");
  on_read_ = [this] { first_->Set(Make(1, v1::RUN_STATE_STOP)); };
  int failures = 0;
  on_report_ = [&](const v1::AttachRequest& message) {
    if (!message.has_checkpoint() || message.checkpoint().error().empty()) return;
    if (++failures == 1) first_->Set(Make(2, v1::RUN_STATE_RUN));
    if (failures == 2) std::filesystem::remove(in_the_way);
  };
  for (const RankResult& result : TrainWorld(Options(3, /*evaluate_every=*/0))) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(*result.outcome, v1::OUTCOME_COMPLETED);
  }
  EXPECT_EQ(failures, 2);
  EXPECT_THAT(told_, ElementsAre(0, 1, 2, -3));
  EXPECT_TRUE(LossOfCheckpoint(folder_ / "step-00000003"));
}

}  // namespace
}  // namespace espalier
