// train.reproducible: however a step is divided, the parameters and losses are the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/shared_segment.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "worker/sync/together.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Division {
  int ranks;
  std::vector<int> shares;
};

v1::JobSpec ReproducibleSpec() {
  v1::JobSpec spec = TinySpec(12);
  spec.mutable_train()->set_reproducible(true);
  spec.mutable_model()->set_dropout(0.1);
  spec.mutable_evaluate()->set_every_steps(4);
  return spec;
}

struct Trained {
  uint64_t fingerprint = 0;
  std::vector<double> losses;
  std::vector<double> evaluations;
  friend bool operator==(const Trained&, const Trained&) = default;
};

Trained Train(v1::JobSpec spec, const Division& division, bool tied) {
  const TestFolder folder;
  WorldOptions options;
  options.ranks = division.ranks;
  options.tied = tied;
  options.validation = true;
  options.spec = std::move(spec);
  for (const int share : division.shares) options.spec.mutable_parallel()->add_shares(share);
  options.checkpoints = folder.path();
  Trained trained;
  for (const RankResult& result : TrainWorld(options)) {
    EXPECT_TRUE(result.outcome.ok()) << result.outcome.status();
    if (trained.fingerprint != 0) {
      EXPECT_EQ(result.fingerprint, trained.fingerprint);
    }
    trained.fingerprint = result.fingerprint;
    if (trained.losses.empty()) trained.losses = result.losses;
    for (const v1::EvaluationReport& one : result.client->evaluations()) {
      trained.evaluations.push_back(one.loss());
    }
  }
  EXPECT_EQ(trained.losses.size(), 12u);
  EXPECT_FALSE(trained.evaluations.empty());
  return trained;
}

// With a tied embedding, and with one of its own.
class Reproducible : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Tables, Reproducible, testing::Bool(),
                         [](const auto& info) { return info.param ? "Tied" : "Untied"; });

TEST_P(Reproducible, EveryDivisionOfAStepGivesTheSameBits) {
  const Trained alone = Train(ReproducibleSpec(), {1, {}}, GetParam());
  EXPECT_EQ(Train(ReproducibleSpec(), {2, {}}, GetParam()), alone);
  EXPECT_EQ(Train(ReproducibleSpec(), {2, {13, 3}}, GetParam()), alone);
  EXPECT_EQ(Train(ReproducibleSpec(), {3, {1, 0, 15}}, GetParam()), alone);
  EXPECT_EQ(Train(ReproducibleSpec(), {5, {}}, GetParam()), alone);
}

TEST_P(Reproducible, LearnsWhatAnyOtherRunDoes) {
  const Trained exact = Train(ReproducibleSpec(), {2, {}}, GetParam());
  v1::JobSpec plain = ReproducibleSpec();
  plain.mutable_train()->set_reproducible(false);
  const Trained usual = Train(plain, {2, {}}, GetParam());
  EXPECT_NE(exact.fingerprint, usual.fingerprint) << "nothing was reproducible";
  for (size_t step = 0; step < exact.losses.size(); ++step) {
    EXPECT_NEAR(exact.losses[step], usual.losses[step], 1e-4 * usual.losses[step]) << step;
  }
}

TEST_P(Reproducible, AnEmbeddingThatIsFrozenTakesNoPart) {
  v1::JobSpec spec = ReproducibleSpec();
  spec.mutable_train()->add_freeze("model.embed_tokens.weight");
  EXPECT_EQ(Train(spec, {3, {}}, GetParam()), Train(spec, {1, {}}, GetParam()));
}

// A generation of three, then one of two over other shares, from its checkpoint.
TEST_P(Reproducible, ARunThatWentOnElsewhereHasTheBitsOfAnUndisturbedOne) {
  const TestFolder folder;
  WorldOptions options;
  options.tied = GetParam();
  options.validation = true;
  options.spec = ReproducibleSpec();
  options.checkpoints = folder.path();
  options.ranks = 3;
  options.script = StopAfter(7, StopKeeps::kCheckpoint);
  EXPECT_EQ(*TrainWorld(options)[0].outcome, v1::OUTCOME_STOPPED);
  options.script = {};
  options.ranks = 2;
  options.spec.mutable_parallel()->add_shares(5);
  options.spec.mutable_parallel()->add_shares(11);
  const std::vector<RankResult> resumed = TrainWorld(options);
  EXPECT_EQ(resumed[0].fingerprint, Train(ReproducibleSpec(), {1, {}}, GetParam()).fingerprint);
}

// Libraries of another version, or another processor, say, on all ranks or on some.
class ComputedOtherwise : public testing::Test {
 protected:
  ~ComputedOtherwise() override {
    const auto listed = ListSegments(folder_ / "warm", "studio");
    if (!listed.ok()) return;
    for (const RegisteredSegment& one : *listed) RemoveSegment(folder_ / "warm", one.name);
  }
  WorldOptions By(const std::vector<std::string>& kinds) const {
    WorldOptions options;
    options.spec = ReproducibleSpec();
    options.ranks = static_cast<int>(kinds.size());
    options.computed_by = [kinds](int rank) { return kinds[static_cast<size_t>(rank)]; };
    options.checkpoints = folder_ / "checkpoints";
    return options;
  }
  // Trains it by these up to step 6; keeps that as a checkpoint, or in memory.
  void TrainHalf(WorldOptions options) const {
    options.script =
        StopAfter(6, options.warm.empty() ? StopKeeps::kCheckpoint : StopKeeps::kNothing);
    EXPECT_EQ(*TrainWorld(options)[0].outcome, v1::OUTCOME_STOPPED);
  }

  const TestFolder folder_;
};

TEST_F(ComputedOtherwise, ACheckpointAndMemoryWaitForOneThatComputesAsBefore) {
  for (const bool in_memory : {false, true}) {
    const auto with = [&](const std::vector<std::string>& kinds) {
      WorldOptions options = By(kinds);
      if (in_memory) options.warm = folder_ / "warm";
      options.checkpoints = folder_ / (in_memory ? "none" : "some");
      return options;
    };
    TrainHalf(with({"one thread", "one thread"}));
    for (const RankResult& result : TrainWorld(with({"two threads", "two threads"}))) {
      const absl::Status& status = result.outcome.status();
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("step 6 was computed by one thread, but rank 0 computes by two"));
      EXPECT_THAT(FailedRanks(status), ElementsAre(0, 1));
      EXPECT_TRUE(IsOfTheirNodes(status));
    }
    const std::vector<RankResult> as_before = TrainWorld(with({"one thread", "one thread"}));
    ASSERT_TRUE(as_before[0].outcome.ok()) << as_before[0].outcome.status();
    EXPECT_EQ(as_before[0].start.step, Step(6)) << "nothing was lost by it";
  }
}

TEST_F(ComputedOtherwise, TheRankThatDiffersFromTheStateIsNamed) {
  TrainHalf(By({"one thread"}));
  for (const RankResult& result : TrainWorld(By({"two threads", "one thread"}))) {
    EXPECT_THAT(FailedRanks(result.outcome.status()), ElementsAre(0));
    EXPECT_TRUE(IsOfTheirNodes(result.outcome.status()));
  }
}

TEST_F(ComputedOtherwise, ARunThatBeginsIsRefusedOnUnlikeRanks) {
  for (const RankResult& result : TrainWorld(By({"two threads", "one thread"}))) {
    EXPECT_EQ(result.outcome.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(FailedRanks(result.outcome.status()), ElementsAre(1));
    EXPECT_FALSE(IsOfTheirNodes(result.outcome.status())) << "nothing says which are wanted";
  }
}

TEST_F(ComputedOtherwise, AJobThatNeedNotBeReproducibleGoesOn) {
  TrainHalf(By({"one thread"}));
  WorldOptions plain = By({"two threads"});
  plain.computed_by = nullptr;
  plain.spec.mutable_train()->set_reproducible(false);
  EXPECT_EQ(*TrainWorld(plain)[0].outcome, v1::OUTCOME_COMPLETED);
}

}  // namespace
}  // namespace espalier
