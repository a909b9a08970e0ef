// First plans, and when they move: a small world of ranks that take as long as their machines do.
#include "coordinator/planner/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

PlannedRank Rank(const std::string& node, double relative_speed = 1) {
  return {.node = NodeName(node), .relative_speed = relative_speed};
}

SpeedModel Measured(int64_t sequences, double seconds) {
  SpeedModel model;
  for (int i = 0; i < 20; ++i) model.Add(sequences, seconds);
  return model;
}

// Machines that take true seconds for their part of each step, and the planner beside them.
struct Lab {
  int32_t batch = 32;
  std::vector<PlannedRank> ranks;
  std::vector<StepTime> truth;
  ShardPlan plan;
  PlanWatch watch;
  int moves = 0;

  void Begin() { plan = FirstPlan(batch, ranks); }
  void Step(const std::function<double()>& noise = [] { return 1.0; }) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      ranks[i].speed.Add(plan.sequences[i], truth[i].Seconds(plan.sequences[i]) * noise());
    }
    std::optional<ShardPlan> next = Reconsider(plan.sequences, ranks, watch);
    if (!next) return;
    ++moves;
    plan = *std::move(next);
    EXPECT_EQ(std::accumulate(plan.sequences.begin(), plan.sequences.end(), 0), batch);
  }
  // How much later the latest is than the mean, in truth.
  double Imbalance() const {
    std::vector<Runner> runners;
    for (const StepTime& time : truth) runners.push_back({.time = time});
    return LatestFinish(plan.sequences, runners) / MeanFinish(plan.sequences, runners) - 1;
  }
};

TEST(FirstPlan, IsEvenAmongEquals) {
  const ShardPlan plan = FirstPlan(8, {Rank("a"), Rank("b"), Rank("c")});
  EXPECT_THAT(plan.sequences, ElementsAre(3, 3, 2));
  EXPECT_EQ(plan.reason, "even: 8 sequences over 3 ranks");
}

TEST(FirstPlan, FollowsRelativeSpeedUntilMeasured) {
  const ShardPlan plan = FirstPlan(32, {Rank("studio", 1), Rank("macbook", 0.6)});
  EXPECT_THAT(plan.sequences, ElementsAre(20, 12));
  EXPECT_EQ(plan.reason, "relative_speed, until measured: studio 1, macbook 0.6");
}

TEST(FirstPlan, FollowsWhatWasMeasuredBefore) {
  std::vector<PlannedRank> ranks = {Rank("studio"), Rank("macbook")};
  ranks[0].speed = Measured(16, 1.6);
  ranks[1].speed = Measured(16, 3.2);
  const ShardPlan plan = FirstPlan(30, ranks);
  EXPECT_THAT(plan.sequences, ElementsAre(20, 10));
  EXPECT_THAT(plan.reason, HasSubstr("measured before: studio 0 s + 0.1 s a sequence, macbook"));
}

// A newcomer is taken to be to the measured ones as its relative speed is.
TEST(FirstPlan, ComparesANewcomerWithTheMeasured) {
  std::vector<PlannedRank> ranks = {Rank("old", 2), Rank("new", 1)};
  ranks[0].speed = Measured(10, 5);
  EXPECT_THAT(FirstPlan(30, ranks).sequences, ElementsAre(20, 10));
}

TEST(FirstPlan, BearsSpeedsThatAreNone) {
  EXPECT_THAT(FirstPlan(4, {Rank("a", 0), Rank("b", -3)}).sequences, ElementsAre(2, 2));
  EXPECT_THAT(FirstPlan(1, {Rank("a"), Rank("b")}).sequences, ElementsAre(1, 0));
}

TEST(Planner, ARankThatTurnsSlowIsRelieved) {
  Lab lab{.ranks = {Rank("a"), Rank("b")}, .truth = {{0.2, 0.1}, {0.2, 0.1}}};
  lab.Begin();
  for (int i = 0; i < 20; ++i) lab.Step();
  EXPECT_EQ(lab.moves, 0);
  lab.truth[1] = {0.4, 0.2};
  lab.Step();
  EXPECT_EQ(lab.moves, 0) << "one slow step is no reason";
  lab.Step();
  EXPECT_EQ(lab.moves, 1);
  for (int i = 0; i < 3; ++i) lab.Step();
  EXPECT_LT(lab.Imbalance(), 0.05);
  EXPECT_LE(lab.moves, 3);
}

TEST(Planner, AProfileThatLiesByTenIsSeenThrough) {
  Lab lab{.batch = 64, .ranks = {Rank("a", 10), Rank("b", 1)}, .truth = {{0.5, 0.1}, {0.5, 0.1}}};
  lab.Begin();
  EXPECT_THAT(lab.plan.sequences, ElementsAre(59, 5));
  for (int i = 0; i < 5; ++i) lab.Step();
  EXPECT_LT(lab.Imbalance(), 0.05);
}

TEST(Planner, AnyClusterIsBalancedWithinEightSteps) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<> any(0, 1);
  for (int trial = 0; trial < 300; ++trial) {
    Lab lab{.batch = 512};
    for (size_t i = 0, count = 2 + random() % 6; i < count; ++i) {
      lab.ranks.push_back(Rank(std::string(1, static_cast<char>('a' + i)), 0.2 + any(random)));
      lab.truth.push_back({any(random), 0.02 + 0.1 * any(random)});
    }
    lab.Begin();
    for (int i = 0; i < 8; ++i) lab.Step();
    EXPECT_LT(lab.Imbalance(), 0.05) << trial;
  }
}

TEST(Planner, NoiseMovesNothing) {
  for (int seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<> noise(0.95, 1.05);
    Lab lab{.batch = 1024, .ranks = {Rank("a"), Rank("b")}, .truth = {{0, 0.1}, {0, 0.1}}};
    lab.Begin();
    for (int i = 0; i < 200; ++i) lab.Step([&] { return noise(random); });
    EXPECT_EQ(lab.moves, 0) << seed;
  }
}

// Two machines that share a processor with something else, say.
TEST(Planner, SpeedsThatDoNotStayAreNotChased) {
  Lab lab;
  lab.ranks = {Rank("studio"), Rank("macbook")};
  lab.truth = {{0, 0.01}, {0, 0.01}};
  lab.Begin();
  for (int step = 0; step < 400; ++step) {
    const bool first = step / 5 % 2 == 0;
    lab.truth = {{0, first ? 0.03 : 0.01}, {0, first ? 0.01 : 0.03}};
    lab.Step();
  }
  EXPECT_LE(lab.moves, 12);
  EXPECT_GE(lab.moves, 2) << "it was tried";
}

// Waits are in time where steps are short.
TEST(Planner, SpeedsThatDoNotStayAreNotChasedByShortStepsEither) {
  Lab lab;
  lab.batch = 8;
  lab.ranks = {Rank("studio"), Rank("macbook")};
  const int steps_a_minute = 4000;
  const int minutes = 10;
  for (int step = 0; step < minutes * steps_a_minute; ++step) {
    const bool first = step / 50 % 2 == 0;
    lab.truth = {{0, first ? 0.006 : 0.003}, {0, first ? 0.003 : 0.006}};
    if (step == 0) lab.Begin();
    lab.Step();
  }
  EXPECT_LE(lab.moves, 4 * minutes);
}

TEST(Planner, AGainOfTwoPerCentWaitsForASecondLook) {
  Lab lab{.batch = 1000, .ranks = {Rank("a"), Rank("b")}, .truth = {{0, 0.1}, {0, 0.1}}};
  lab.Begin();
  for (int i = 0; i < 40; ++i) lab.Step();
  for (PlannedRank& rank : lab.ranks) EXPECT_LT(rank.speed.Uncertainty(), 0.002);
  lab.ranks[1].speed = Measured(500, 55.0);  // 10 % slower, a gain of 5 %
  lab.truth[1].per_sequence = 0.11;
  lab.Step();
  EXPECT_EQ(lab.moves, 0);
  lab.Step();
  EXPECT_EQ(lab.moves, 1);
  EXPECT_THAT(lab.plan.reason, HasSubstr("a step takes 52.4 s in place of 55 s"));
}

TEST(Planner, AGainOfLessThanTwoPerCentIsLeft) {
  Lab lab{.batch = 1000, .ranks = {Rank("a"), Rank("b")}, .truth = {{0, 0.1}, {0, 0.1035}}};
  lab.Begin();
  for (int i = 0; i < 200; ++i) lab.Step();
  EXPECT_EQ(lab.moves, 0);
}

// What cannot be divided better is left, however late a rank is.
TEST(Planner, ABatchOfOneSequenceARankStays) {
  Lab lab{.batch = 2, .ranks = {Rank("a"), Rank("b")}, .truth = {{0, 1}, {0, 10}}};
  lab.Begin();
  for (int i = 0; i < 20; ++i) lab.Step();
  EXPECT_EQ(lab.moves, 0);
}

TEST(Planner, WaitsUntilEveryRankIsMeasured) {
  std::vector<PlannedRank> ranks = {Rank("a"), Rank("b")};
  ranks[0].speed = Measured(4, 40);
  PlanWatch watch;
  const std::vector<int32_t> sequences = {4, 4};
  EXPECT_FALSE(Reconsider(sequences, ranks, watch).has_value());
  ranks[1].speed = Measured(4, 4);
  EXPECT_TRUE(Reconsider(sequences, ranks, watch).has_value());
}

TEST(Planner, NamesTheFirstFewOfManyRanks) {
  std::vector<PlannedRank> ranks(10, Rank("a"));
  const std::vector<int32_t> sequences(10, 3);
  EXPECT_EQ(SharesText(sequences, ranks), "a 3, a 3, a 3, a 3, a 3, a 3, a 3, a 3 and 2 more");
}

}  // namespace
}  // namespace espalier
