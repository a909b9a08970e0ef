// Plans that do not depend on measurements: common/base/shares.h applied to a job.
#include "coordinator/planner/shard_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier {
namespace {

using testing::ElementsAre;

v1::JobSpec SpecOf(int32_t batch, const std::vector<int32_t>& shares) {
  v1::JobSpec spec;
  spec.mutable_train()->set_global_batch(batch);
  for (const int32_t share : shares) spec.mutable_parallel()->add_shares(share);
  return spec;
}

std::vector<int32_t> Plan(int32_t ranks, const v1::JobSpec& spec) {
  return FixedPlan({.number = 1, .ranks = ranks, .spec = spec}).sequences;
}

TEST(FixedPlan, IsEvenWithoutShares) {
  EXPECT_THAT(Plan(3, SpecOf(8, {})), ElementsAre(3, 3, 2));
  EXPECT_THAT(Plan(3, SpecOf(2, {})), ElementsAre(1, 1, 0));
  EXPECT_THAT(Plan(1, SpecOf(7, {})), ElementsAre(7));
}

TEST(FixedPlan, FollowsShares) {
  EXPECT_THAT(Plan(2, SpecOf(8, {3, 1})), ElementsAre(6, 2));
  EXPECT_THAT(Plan(3, SpecOf(8, {0, 2, 1})), ElementsAre(0, 5, 3));
}

TEST(FixedPlan, ARankWithoutShareGetsNothingOfTheRemainder) {
  EXPECT_THAT(Plan(3, SpecOf(9, {0, 1, 1})), ElementsAre(0, 5, 4));
}

TEST(FixedPlan, HoldsFromTheFirstStepOn) {
  const v1::JobSpec spec = SpecOf(8, {});
  const ShardPlan plan = FixedPlan({.number = 4, .ranks = 2, .spec = spec});
  EXPECT_EQ(plan.number, 4);
  EXPECT_EQ(plan.from_step, Step(0));
  EXPECT_EQ(plan.reason, "even: 8 sequences over 2 ranks");
}

TEST(FixedPlan, IsWhatSharesOrTheJobAskFor) {
  EXPECT_TRUE(PlansBySpeed(SpecOf(8, {})));
  EXPECT_FALSE(PlansBySpeed(SpecOf(8, {1, 2})));
  v1::JobSpec spec = SpecOf(8, {});
  spec.mutable_parallel()->set_plan(v1::PLAN_MODE_FIXED);
  EXPECT_FALSE(PlansBySpeed(spec));
  spec.mutable_parallel()->set_plan(v1::PLAN_MODE_MEASURED);
  EXPECT_TRUE(PlansBySpeed(spec));
}

TEST(FixedPlan, OnlyItMayLeaveRanksWithoutSequences) {
  v1::JobSpec spec = SpecOf(2, {});
  EXPECT_EQ(CheckShares(spec, 3).message(),
            "train.global_batch is 2 sequences for 3 ranks, so that some would have nothing to do; "
            "raise it, or take fewer nodes");
  spec.mutable_parallel()->set_plan(v1::PLAN_MODE_FIXED);
  EXPECT_TRUE(CheckShares(spec, 3).ok());
}

TEST(FixedPlan, SharesMustFitTheRanks) {
  EXPECT_TRUE(CheckShares(SpecOf(8, {}), 3).ok());
  EXPECT_TRUE(CheckShares(SpecOf(8, {1, 0, 2}), 3).ok());
  EXPECT_EQ(CheckShares(SpecOf(8, {1, 2}), 3).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckShares(SpecOf(8, {0, 0, 0}), 3).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
