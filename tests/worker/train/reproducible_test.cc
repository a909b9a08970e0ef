// train.reproducible: however a step is divided, the parameters and losses are the same bits.
#include <gtest/gtest.h>

#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"

namespace espalier {
namespace {

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
  options.script = [](int rank, ScriptedClient& client) {
    if (rank != 0) return;
    client.on_report = [](ScriptedClient& to, const v1::AttachRequest& message) {
      if (!message.has_step() || message.step().step() != 6) return;
      v1::Directive stop;
      stop.set_number(1);
      stop.set_run_state(v1::RUN_STATE_STOP);
      stop.set_checkpoint_before_stop(true);
      to.Set(stop);
    };
  };
  EXPECT_EQ(*TrainWorld(options)[0].outcome, v1::OUTCOME_STOPPED);
  options.script = {};
  options.ranks = 2;
  options.spec.mutable_parallel()->add_shares(5);
  options.spec.mutable_parallel()->add_shares(11);
  const std::vector<RankResult> resumed = TrainWorld(options);
  EXPECT_EQ(resumed[0].fingerprint, Train(ReproducibleSpec(), {1, {}}, GetParam()).fingerprint);
}

}  // namespace
}  // namespace espalier
