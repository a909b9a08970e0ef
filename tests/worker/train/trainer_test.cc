// The step, on worlds of threads: the invariants of splitting, agreement and skipping.
#include "worker/train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"

namespace espalier {
namespace {

struct Split {
  const char* name;
  std::vector<int> shares;       // per rank
  std::vector<int> micro_batch;  // per rank
};

WorldOptions OptionsOf(const Split& split, int64_t steps, const std::string& folder) {
  WorldOptions options;
  options.ranks = static_cast<int>(split.shares.size());
  options.spec = TinySpec(steps);
  options.spec.mutable_parallel()->clear_shares();
  for (const int share : split.shares) options.spec.mutable_parallel()->add_shares(share);
  options.spec.mutable_batch()->clear_micro_batch();
  for (const int size : split.micro_batch) options.spec.mutable_batch()->add_micro_batch(size);
  options.checkpoints = folder;
  return options;
}

std::vector<double> LossesOf(const Split& split, int64_t steps, double dropout = 0) {
  const TestFolder folder;
  WorldOptions options = OptionsOf(split, steps, folder.path());
  options.spec.mutable_model()->set_dropout(dropout);
  const std::vector<RankResult> results = TrainWorld(options);
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.outcome.ok()) << split.name << ": " << result.outcome.status();
    EXPECT_EQ(result.fingerprint, results[0].fingerprint) << split.name << ": replicas differ";
    EXPECT_EQ(result.losses, results[0].losses) << split.name;
  }
  return results[0].losses;
}

// `learnt`: the share of the first loss that the last one must be below.
void ExpectSplitInvariance(double dropout, double learnt) {
  constexpr int64_t kSteps = 50;
  const std::vector<double> expected = LossesOf({"one rank, one pass", {1}, {16}}, kSteps, dropout);
  ASSERT_EQ(expected.size(), kSteps);
  EXPECT_LT(expected.back(), learnt * expected.front()) << "it does not learn";
  const Split splits[] = {
      {"one rank, three passes", {1}, {7}},
      {"two ranks", {1, 1}, {8}},
      {"three ranks, uneven shards and micro-batches", {10, 4, 2}, {3, 4, 1}},
      {"three ranks, one of them with an empty shard", {9, 0, 7}, {4, 4, 2}},
  };
  for (const Split& split : splits) {
    const std::vector<double> losses = LossesOf(split, kSteps, dropout);
    ASSERT_EQ(losses.size(), kSteps) << split.name;
    for (int64_t step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(losses[step], expected[step], 1e-5 * expected[step])
          << split.name << ", step " << step;
    }
  }
}

TEST(SplitInvariance, RanksShardsAndMicroBatchesChangeRoundingOnly) {
  ExpectSplitInvariance(/*dropout=*/0, /*learnt=*/0.6);
}

TEST(SplitInvariance, DropoutDropsTheSameValuesInEverySplit) {
  ExpectSplitInvariance(/*dropout=*/0.2, /*learnt=*/0.8);
}

TEST(Determinism, TheSameSplitGivesTheSameBits) {
  const Split split{"uneven", {5, 11}, {2, 4}};
  EXPECT_EQ(LossesOf(split, 12), LossesOf(split, 12));
}

// Two ranks train with the job changed; their replicas stay equal.
RankResult TrainTwo(int64_t steps, const std::function<void(v1::JobSpec&)>& change) {
  const TestFolder folder;
  WorldOptions options = OptionsOf({"two ranks", {1, 1}, {4}}, steps, folder.path());
  change(options.spec);
  std::vector<RankResult> results = TrainWorld(options);
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.fingerprint, results[0].fingerprint);
  }
  return std::move(results[0]);
}

TEST(Precision, Bf16LearnsAsFp32Does) {
  constexpr int64_t kSteps = 50;
  const std::vector<double> exact = TrainTwo(kSteps, [](v1::JobSpec&) {}).losses;
  const auto in_bf16 = [](v1::JobSpec& spec) {
    spec.mutable_train()->set_precision(v1::PRECISION_BF16);
  };
  const std::vector<double> losses = TrainTwo(kSteps, in_bf16).losses;
  ASSERT_EQ(losses.size(), kSteps);
  EXPECT_NE(losses, exact) << "it computed in fp32";
  for (int64_t step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(losses[step], exact[step], 0.02 * exact[step]) << "step " << step;
  }
}

TEST(Moments, OfEightBitsLearnAsFp32Does) {
  constexpr int64_t kSteps = 50;
  const std::vector<double> exact = TrainTwo(kSteps, [](v1::JobSpec&) {}).losses;
  const auto in_8_bits = [](v1::JobSpec& spec) {
    spec.mutable_train()->mutable_optimizer()->set_moments(v1::MOMENT_TYPE_INT8);
  };
  const std::vector<double> losses = TrainTwo(kSteps, in_8_bits).losses;
  ASSERT_EQ(losses.size(), kSteps);
  EXPECT_NE(losses, exact) << "they were kept in fp32";
  for (int64_t step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(losses[step], exact[step], 0.02 * exact[step]) << "step " << step;
  }
}

TEST(Recompute, ChangesNoBitOfTheTrainedModel) {
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    const auto train = [precision](const char* recompute) {
      return TrainTwo(6,
                      [&](v1::JobSpec& spec) {
                        spec.mutable_train()->set_precision(precision);
                        spec.mutable_model()->set_dropout(0.1);
                        spec.mutable_train()->clear_recompute();
                        spec.mutable_train()->add_recompute(recompute);
                      })
          .fingerprint;
    };
    const uint64_t kept = train("none");
    EXPECT_EQ(train("all"), kept);
    EXPECT_EQ(train("alternate"), kept);
    EXPECT_EQ(train("1"), kept);
  }
}

// A collective as it is, but for the arrivals that it claims: after each operation 100 bytes more
// from the other rank, in 2 seconds more.
class CountingCollective : public Collective {
 public:
  explicit CountingCollective(Collective& inner) : inner_(inner) {}
  Rank rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  Ticket Start(const Operation& operation) override { return inner_.Start(operation); }
  absl::Status Wait(Ticket ticket) override { return inner_.Wait(ticket); }
  absl::Status Quiesce() override { return inner_.Quiesce(); }
  void Abort(absl::Status reason) override { inner_.Abort(std::move(reason)); }
  CollectiveStats stats() const override {
    CollectiveStats stats = inner_.stats();
    stats.arrivals.resize(world_size());
    const int64_t other = 1 - rank().value();
    stats.arrivals[other] = {100 * stats.completed, 2.0 * static_cast<double>(stats.completed)};
    return stats;
  }

 private:
  Collective& inner_;
};

TEST(StepReport, CarriesWhatHasArrivedFromEachPeerSinceTheLast) {
  const TestFolder folder;
  WorldOptions options = OptionsOf({"two ranks", {1, 1}, {8}}, 4, folder.path());
  options.wrap_collective = [](Collective& collective) {
    return std::make_unique<CountingCollective>(collective);
  };
  const std::vector<RankResult> results = TrainWorld(options);
  for (size_t rank = 0; rank < results.size(); ++rank) {
    ASSERT_TRUE(results[rank].outcome.ok()) << results[rank].outcome.status();
    const std::vector<v1::StepReport> steps = results[rank].client->steps();
    ASSERT_EQ(steps.size(), 4U);
    for (size_t i = 1; i < steps.size(); ++i) {
      ASSERT_EQ(steps[i].arrivals_size(), 1) << "nothing arrives from oneself";
      const v1::PeerArrivals& arrivals = steps[i].arrivals(0);
      EXPECT_EQ(arrivals.rank(), static_cast<int32_t>(1 - rank));
      EXPECT_GT(arrivals.bytes(), 0);
      // Every step has the same operations.
      EXPECT_EQ(arrivals.bytes(), steps[1].arrivals(0).bytes());
      EXPECT_DOUBLE_EQ(arrivals.seconds(), static_cast<double>(arrivals.bytes()) / 50);
    }
  }
}

// As from a slow disk.
class LateSamples : public SampleSource {
 public:
  explicit LateSamples(std::unique_ptr<SampleSource> source) : source_(std::move(source)) {}
  absl::StatusOr<std::shared_ptr<const Samples>> Fetch(Step step, SlotRange range) override {
    absl::SleepFor(absl::Milliseconds(500));
    return source_->Fetch(step, range);
  }

 private:
  std::unique_ptr<SampleSource> source_;
};

// Or the one machine would be taken for slow for the other's disk.
TEST(StepReport, WaitingForAnotherRanksSamplesIsNoComputing) {
  const TestFolder folder;
  WorldOptions options = OptionsOf({"two ranks", {1, 1}, {8}}, 4, folder.path());
  options.wrap = [](int rank, Replica&,
                    std::unique_ptr<SampleSource> source) -> std::unique_ptr<SampleSource> {
    if (rank != 1) return source;
    return std::make_unique<LateSamples>(std::move(source));
  };
  const std::vector<RankResult> results = TrainWorld(options);
  double computed = 0, waited = 0;
  for (const v1::StepReport& step : results[0].client->steps()) {
    computed += step.compute_seconds();
    waited += step.exchange_wait_seconds();
  }
  EXPECT_GT(waited, 1.0) << "of 2 s";
  EXPECT_LT(computed, waited);
}

// Adds one NaN to a rank's gradient at one step.
class PoisonedSamples : public SampleSource {
 public:
  PoisonedSamples(std::unique_ptr<SampleSource> source, Replica& replica, std::vector<int64_t> at)
      : source_(std::move(source)), replica_(replica), at_(std::move(at)) {}
  absl::StatusOr<std::shared_ptr<const Samples>> Fetch(Step step, SlotRange range) override {
    if (std::count(at_.begin(), at_.end(), step.value()) > 0) {
      replica_.parameters().flat_gradient().Only()[7].fill_(
          std::numeric_limits<float>::quiet_NaN());
    }
    return source_->Fetch(step, range);
  }

 private:
  std::unique_ptr<SampleSource> source_;
  Replica& replica_;
  std::vector<int64_t> at_;
};

WorldOptions Poisoned(const std::string& folder, std::vector<int64_t> at) {
  WorldOptions options = OptionsOf({"two ranks", {1, 1}, {8}}, 8, folder);
  options.wrap = [at](int rank, Replica& replica, std::unique_ptr<SampleSource> source) {
    return std::make_unique<PoisonedSamples>(std::move(source), replica,
                                             rank == 1 ? at : std::vector<int64_t>{});
  };
  return options;
}

TEST(NonFinite, AllRanksSkipTheUpdateOfARankThatIsNotFinite) {
  const TestFolder folder;
  const std::vector<RankResult> results = TrainWorld(Poisoned(folder.path(), {3}));
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    const std::vector<v1::StepReport> steps = result.client->steps();
    ASSERT_EQ(steps.size(), 8u);
    for (const v1::StepReport& step : steps) EXPECT_EQ(step.skipped(), step.step() == 3);
    EXPECT_EQ(result.replica->counters().skipped, 1);
    EXPECT_EQ(result.replica->counters().updates, 7);
    EXPECT_EQ(result.fingerprint, results[0].fingerprint);
  }
}

TEST(NonFinite, FailsTheJobWhenThePolicySaysSoOrItDoesNotEnd) {
  const TestFolder folder;
  WorldOptions fail = Poisoned(folder.path(), {3});
  fail.spec.mutable_health()->set_non_finite(v1::NON_FINITE_POLICY_FAIL);
  WorldOptions endless = Poisoned(folder.path(), {2, 3, 4, 5, 6});
  endless.spec.mutable_health()->set_max_skipped_steps(3);
  for (const WorldOptions& options : {fail, endless}) {
    for (const RankResult& result : TrainWorld(options)) {
      EXPECT_EQ(result.outcome.status().code(), absl::StatusCode::kFailedPrecondition)
          << result.outcome.status();
      EXPECT_EQ(result.replica->step().value(),
                options.spec.health().max_skipped_steps() == 3 ? 5 : 3);
    }
  }
}

TEST(Evaluation, DoesNotDependOnTheNumberOfRanks) {
  std::vector<double> losses;
  for (const std::vector<int>& shares : {std::vector<int>{1}, {1, 1}, {1, 1, 1}}) {
    const TestFolder folder;
    WorldOptions options = OptionsOf({"even", shares, {8}}, 4, folder.path());
    options.validation = true;
    options.spec.mutable_evaluate()->set_every_steps(2);
    const std::vector<RankResult> results = TrainWorld(options);
    const std::vector<v1::EvaluationReport> reports = results[0].client->evaluations();
    ASSERT_EQ(reports.size(), 2u);
    EXPECT_EQ(reports[0].step(), 2);
    EXPECT_EQ(reports[1].step(), 4);
    EXPECT_EQ(reports[1].tokens(), 32 * 250);
    losses.push_back(reports[1].loss());
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-5 * losses[0]);
  EXPECT_NEAR(losses[2], losses[0], 1e-5 * losses[0]);
}

}  // namespace
}  // namespace espalier
