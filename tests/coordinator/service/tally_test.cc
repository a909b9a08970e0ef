#include "coordinator/service/tally.h"

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace espalier {
namespace {

double Sum(const WorkerTally& tally) {
  double sum = 0;
  for (int i = 0; i < kGoodputAccountCount; ++i)
    sum += tally.seconds(static_cast<GoodputAccount>(i));
  return sum;
}

v1::StepReport Step(double compute, double exchange) {
  v1::StepReport step;
  step.set_compute_seconds(compute);
  step.set_exchange_wait_seconds(exchange);
  step.set_exchange_bytes(100);
  return step;
}

TEST(WorkerTally, BooksAStepToItsAccounts) {
  WorkerTally tally;
  tally.Started(absl::Seconds(10));
  tally.Reported(Step(2, 1), absl::Seconds(13));
  EXPECT_EQ(tally.seconds(GoodputAccount::kCompute), 2);
  EXPECT_EQ(tally.seconds(GoodputAccount::kExchangeWait), 1);
  EXPECT_EQ(tally.exchange_bytes(), 100);
}

TEST(WorkerTally, BooksWhatIsSampledAndJudgedApart) {
  WorkerTally tally;
  tally.Started(absl::Seconds(0));
  v1::StepReport step = Step(2, 1);
  step.set_rollout_seconds(5);
  step.set_reward_seconds(0.5);
  tally.Reported(step, absl::Seconds(9));
  EXPECT_EQ(tally.seconds(GoodputAccount::kRollout), 5);
  EXPECT_EQ(tally.seconds(GoodputAccount::kReward), 0.5);
  EXPECT_EQ(tally.seconds(GoodputAccount::kCompute), 2);
  EXPECT_EQ(tally.seconds(GoodputAccount::kIdle), 0);
}

TEST(WorkerTally, UnexplainedTimeIsIdle) {
  WorkerTally tally;
  tally.Started(absl::Seconds(0));
  tally.Reported(Step(2, 0), absl::Seconds(10));
  EXPECT_EQ(tally.seconds(GoodputAccount::kIdle), 7)
      << "ten seconds, less two, less the slack of one";
}

TEST(WorkerTally, FromLossToTheNextStepIsRecovering) {
  WorkerTally tally;
  tally.Started(absl::Seconds(0));
  tally.Reported(Step(1, 0), absl::Seconds(1));
  tally.Lost(absl::Seconds(3));
  tally.Started(absl::Seconds(5));
  tally.Reported(Step(1, 0), absl::Seconds(8));
  EXPECT_EQ(tally.seconds(GoodputAccount::kRecovering), 2 + 4);
  EXPECT_EQ(Sum(tally), 8);
}

TEST(WorkerTally, StoppedTimeDoesNotCount) {
  WorkerTally tally;
  tally.Started(absl::Seconds(0));
  tally.Reported(Step(1, 0), absl::Seconds(1));
  tally.Stopped(absl::Seconds(1));
  tally.Started(absl::Seconds(100));
  tally.Reported(Step(1, 0), absl::Seconds(101));
  EXPECT_EQ(Sum(tally), 2);
}

// Reports that arrive early and late, losses and restarts: no second is lost or counted twice.
TEST(WorkerTally, TheSumIsTheWallTime) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SplitMix64 random(seed);
    WorkerTally tally;
    double worked = 0;
    tally.Started(absl::ZeroDuration());
    for (int i = 0; i < 100; ++i) {
      const double step = random.Uniform();
      worked += step;
      const double arrival = worked + 0.2 * random.Uniform();
      if (random.Below(10) == 0) {
        tally.Lost(absl::Seconds(arrival));  // and this step is never reported
        continue;
      }
      tally.Reported(Step(0.7 * step, 0.3 * step), absl::Seconds(arrival));
      ASSERT_NEAR(Sum(tally), worked, 1.5) << "seed " << seed << " report " << i;
    }
  }
}

}  // namespace
}  // namespace espalier
