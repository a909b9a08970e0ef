// Plans of machines that are not to compute all that they could.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "coordinator/planner/planner.h"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

PlannedRank Rank(const std::string& node, double largest_share = 1, double part = 1) {
  return {.node = NodeName(node),
          .largest_share = largest_share,
          .part = part,
          .spared = part < 1 ? "runs on its battery" : ""};
}

PlannedRank Measured(PlannedRank rank, int64_t sequences, double seconds) {
  for (int i = 0; i < 20; ++i) rank.speed.Add(sequences, seconds);
  return rank;
}

TEST(Limits, ALargestShareIsOfTheBatchAndTheOthersTakeTheRest) {
  const ShardPlan plan = FirstPlan(12, {Rank("a", 0.25), Rank("b"), Rank("c")});
  EXPECT_THAT(plan.sequences, ElementsAre(3, 5, 4));
  EXPECT_THAT(FirstPlan(12, {Rank("a", 0.4), Rank("b"), Rank("c")}).sequences,
              ElementsAre(4, 4, 4));
  EXPECT_THAT(plan.reason, HasSubstr("; a 0.25 of the batch at most (largest_share)"));
}

TEST(Limits, WhoIsSparedGetsItsPartOfWhatItWouldGet) {
  EXPECT_THAT(FirstPlan(12, {Rank("a", 1, 0.5), Rank("b")}).sequences, ElementsAre(3, 9));
  EXPECT_THAT(FirstPlan(12, {Rank("a", 1, 0.01), Rank("b")}).sequences, ElementsAre(1, 11))
      << "one that computes nothing shows no speed";
  EXPECT_THAT(FirstPlan(12, {Rank("a", 1, 0.5), Rank("b")}).reason,
              HasSubstr("; a runs on its battery: 0.5 of its share"));
}

TEST(Limits, WhatHasNoPlaceWithinThemIsComputedAllTheSame) {
  const ShardPlan alone = FirstPlan(12, {Rank("a", 0.3)});
  EXPECT_THAT(alone.sequences, ElementsAre(12));
  EXPECT_THAT(alone.reason, HasSubstr("room for 3 of 12 sequences, so that they are passed by the "
                                      "other 9"));
  EXPECT_THAT(FirstPlan(12, {Rank("a", 1, 0.5), Rank("b", 1, 0.5)}).sequences, ElementsAre(6, 6));
  // The spared one gives way first, up to its largest share.
  EXPECT_THAT(FirstPlan(20, {Rank("a", 0.5, 0.2), Rank("b", 0.6)}).sequences, ElementsAre(8, 12));
  EXPECT_THAT(FirstPlan(20, {Rank("a", 0.3, 0.5), Rank("b", 0.3)}).sequences, ElementsAre(10, 10));
}

TEST(Limits, AnyLimitsDivideTheWholeBatch) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<> any(0.01, 1.2);
  for (int round = 0; round < 2000; ++round) {
    const auto batch = static_cast<int32_t>(1 + random() % 40);
    std::vector<PlannedRank> ranks;
    for (size_t i = 0; i <= random() % 6; ++i) {
      ranks.push_back(Rank("n", std::min(1.0, any(random)), std::min(1.0, any(random))));
      if (random() % 2 == 0) ranks.back() = Measured(ranks.back(), 4, any(random));
    }
    const ShardPlan plan = FirstPlan(batch, ranks);
    ASSERT_EQ(std::accumulate(plan.sequences.begin(), plan.sequences.end(), 0), batch);
    PlanWatch watch;
    if (const auto next = Reconsider(plan.sequences, ranks, watch)) {
      ASSERT_EQ(std::accumulate(next->sequences.begin(), next->sequences.end(), 0), batch);
    }
  }
}

TEST(Limits, APlanThatPassesOneMovesAtOnceAndComesBackWhenItIsNoMore) {
  std::vector<PlannedRank> ranks{Measured(Rank("a"), 16, 1.6), Measured(Rank("b"), 16, 1.6)};
  PlanWatch watch;
  EXPECT_FALSE(Reconsider({16, 16}, ranks, watch).has_value());
  ranks[1].part = 0.5;
  ranks[1].spared = "is used by somebody";
  const std::optional<ShardPlan> less = Reconsider({16, 16}, ranks, watch);
  ASSERT_TRUE(less.has_value());
  EXPECT_THAT(less->sequences, ElementsAre(24, 8));
  EXPECT_EQ(less->reason, "b is used by somebody: 0.5 of its share");
  EXPECT_FALSE(Reconsider({24, 8}, ranks, watch).has_value());
  EXPECT_FALSE(Reconsider({23, 9}, ranks, watch).has_value()) << "what is measured wavers";
  ranks[1].part = 1;
  std::optional<ShardPlan> back;
  for (int look = 0; look < 3 && !back; ++look) back = Reconsider({24, 8}, ranks, watch);
  ASSERT_TRUE(back.has_value());
  EXPECT_THAT(back->sequences, ElementsAre(16, 16));
}

}  // namespace
}  // namespace espalier
