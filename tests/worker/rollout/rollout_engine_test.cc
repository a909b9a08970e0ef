// What is sampled is a function of the order alone: of no rank, no speed and no division.
#include "worker/rollout/rollout_engine.h"

#include <gmock/gmock.h>

#include <atomic>

#include "tests/worker/rollout/sampling_world.h"
#include "worker/generation/batch_generator.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST(RolloutEngine, RanksSpeedsAndSharesChangeNotABit) {
  const RolloutOrder order = SomeOrder(9, 4);
  const std::vector<Rollout> alone = AllOf(Sample({}, order));
  ASSERT_EQ(alone.size(), 36U);
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(alone[i].prompt, static_cast<int64_t>(i / 4));
    EXPECT_EQ(alone[i].sample, static_cast<int64_t>(i % 4));
    EXPECT_EQ(alone[i].judgement.component("step"), 4);
  }
  ExpectEqual(AllOf(Sample({.slow_down = {1, 6}}, order)), alone);
  ExpectEqual(AllOf(Sample({.slow_down = {3, 1, 2}}, order)), alone);
  ExpectEqual(AllOf(Sample({.slow_down = {1, 1}, .shares = {1, 0}}, order)), alone);
  ExpectEqual(AllOf(Sample({.slow_down = {1, 1}, .rank_limits = {{}, {.part = 0.2}}}, order)),
              alone);
  ExpectEqual(AllOf(Sample({.limits = {.max_new_tokens = 24, .rows = 1}}, order)), alone);
}

TEST(RolloutEngine, SamplesOfAPromptAndStepsDiffer) {
  RolloutOrder order = SomeOrder(2, 3);
  const std::vector<Rollout> first = AllOf(Sample({}, order));
  EXPECT_NE(first[0].ids, first[1].ids);
  ++order.moment.step;
  EXPECT_NE(AllOf(Sample({}, order))[0].ids, first[0].ids);
}

// A machine that is much slower than its share says leaves what it has not begun to the others.
TEST(RolloutEngine, WhatASlowRankHasNotBegunMoves) {
  const std::vector<SampledRank> ranks =
      Sample({.slow_down = {1, 40}, .limits = {.max_new_tokens = 40, .rows = 2}}, SomeOrder(30, 2));
  ASSERT_EQ(AllOf(ranks).size(), 60U);
  EXPECT_EQ(ranks[0].judged + ranks[1].judged, 60) << "each is judged once, where it was sampled";
  EXPECT_GT(ranks[0].judged, 40);
}

TEST(RolloutEngine, ARankSamplesNoMoreThanItsLimitsAllow) {
  SamplingWorld world{.slow_down = {8, 1},
                      .limits = {.max_new_tokens = 24, .rows = 4},
                      .rank_limits = {{}, {.largest_share = 0.1}}};
  EXPECT_EQ(Sample(world, SomeOrder(30, 2))[1].judged, 6) << "though it is faster";
  world.slow_down = {1, 1};
  world.rank_limits = {{}, {.part = 0.01}};  // whatever else the machine does, far from a half
  EXPECT_LT(Sample(world, SomeOrder(30, 2))[1].judged, 30);
}

// All of it is begun at once, so nothing is left to move.
TEST(RolloutEngine, AnOrderIsDividedByHowFastTheRanksSampledTheLastOne) {
  SamplingWorld world{.slow_down = {1, 40}, .limits = {.max_new_tokens = 24, .rows = 100}};
  const RolloutOrder order = SomeOrder(30, 2);
  EXPECT_EQ(Sample(world, order)[1].judged, 30);
  world.times = 2;
  const std::vector<SampledRank> ranks = Sample(world, order);
  ASSERT_EQ(AllOf(ranks).size(), 60U);
  EXPECT_LT(ranks[1].judged, 15);
}

// Also while it has ended nothing of this order, or had no item of it at first.
TEST(RolloutEngine, ASlowRankIsKnownUntilItIsMeasuredAnew) {
  SamplingWorld world{.slow_down = {1, 60}, .limits = {.max_new_tokens = 24, .rows = 4}};
  world.times = 2;
  const std::vector<SampledRank> ranks = Sample(world, SomeOrder(30, 2));
  ASSERT_EQ(AllOf(ranks).size(), 60U);
  EXPECT_LT(ranks[1].judged, 4);
}

// So that a prompt can be asked again, and for no more than is wanted.
TEST(RolloutEngine, APromptMayHaveSamplesOfItsOwn) {
  RolloutOrder order = SomeOrder(3, 5);
  const std::vector<Rollout> all = AllOf(Sample({}, order));
  order.prompts[0].first = 2;
  order.prompts[0].samples = 3;
  order.prompts[2].samples = 1;
  const std::vector<Rollout> some = AllOf(Sample({.slow_down = {1, 3}}, order));
  ExpectEqual(some, {all[2], all[3], all[4], all[5], all[6], all[7], all[8], all[9], all[10]});
}

TEST(RolloutEngine, EndsAtAStopTextWhichBelongsToTheCompletion) {
  const RolloutOrder order = SomeOrder(6, 2);
  const std::vector<Rollout> whole = AllOf(Sample({}, order));
  std::string stop;
  for (const Rollout& one : whole) {  // two bytes that one of them writes
    for (size_t i = 4; stop.empty() && i + 1 < one.ids.size(); ++i) {
      const int32_t a = one.ids[i], b = one.ids[i + 1];
      if (a > 32 && a < 127 && b > 32 && b < 127)
        stop = {static_cast<char>(a), static_cast<char>(b)};
    }
  }
  ASSERT_EQ(stop.size(), 2U);
  const std::vector<Rollout> cut = AllOf(
      Sample({.limits = {.max_new_tokens = 24, .stop = {"nowhere", stop}, .rows = 5}}, order));
  int stopped = 0;
  for (size_t i = 0; i < cut.size(); ++i) {
    const size_t at = whole[i].text.find(stop);
    if (at == std::string::npos) {
      EXPECT_EQ(cut[i].ids, whole[i].ids);
      continue;
    }
    ++stopped;
    EXPECT_TRUE(cut[i].stopped);
    EXPECT_EQ(cut[i].text, whole[i].text.substr(0, at + 2));
    EXPECT_EQ(cut[i].ids.back(), static_cast<int32_t>(stop[1]));
  }
  EXPECT_GT(stopped, 0);
}

TEST(RolloutEngine, TheEndOfTextBelongsToTheIdsAndNotToTheText) {
  RolloutOrder order = SomeOrder(40, 4);
  int ended = 0;
  for (const Rollout& one : AllOf(Sample({}, order))) {
    const bool end = one.ids.back() == 256;
    EXPECT_EQ(one.stopped, end);
    EXPECT_TRUE(end || one.ids.size() == 24U) << one.ids.size();
    ended += end ? 1 : 0;
  }
  EXPECT_GT(ended, 0);
}

TEST(RolloutEngine, APromptWithLittleRoomGetsWhatThereIs) {
  const std::vector<Rollout> short_ones =
      AllOf(Sample({.limits = {.max_new_tokens = 24, .positions = 9, .rows = 5}}, SomeOrder(5, 1)));
  for (const Rollout& one : short_ones) {
    const int64_t room = 9 - (1 + one.prompt % 5);
    EXPECT_LE(static_cast<int64_t>(one.ids.size()), room);
    EXPECT_TRUE(one.stopped || static_cast<int64_t>(one.ids.size()) == room);
  }
  const auto refused =
      Sample({.slow_down = {1, 1}, .limits = {.positions = 5}}, SomeOrder(5, 1))[1].rollouts;
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("prompt 14: "));
}

TEST(RolloutEngine, AllStopWhenOneIsCalledAway) {
  const auto ranks = Sample(
      {.slow_down = {1, 1}, .called_away = [](int rank) { return rank == 0; }}, SomeOrder(20, 4));
  for (const SampledRank& rank : ranks) {
    ASSERT_TRUE(rank.rollouts.ok()) << rank.rollouts.status();
    EXPECT_FALSE(rank.rollouts->has_value());
  }
}

// What is judged may take seconds each.
TEST(RolloutEngine, AStopWaitsForWhatTheVerifierHasInHandAlone) {
  std::atomic<int64_t> judged = 0;
  const auto ranks = Sample({.called_away = [&](int) { return judged > 0; },
                             .judged_at_once = 3,
                             .judges =
                                 [&](int64_t) {
                                   ++judged;
                                   RealClock().Sleep(absl::Milliseconds(100));
                                 }},
                            SomeOrder(10, 2));
  ASSERT_TRUE(ranks[0].rollouts.ok()) << ranks[0].rollouts.status();
  EXPECT_FALSE(ranks[0].rollouts->has_value());
  EXPECT_EQ(judged, 3);
}

// Rank 0 alone is told to pause, and may have nothing in hand.
TEST(RolloutEngine, AStopEndsTheWaitForASilentVerifierOnAnyRank) {
  for (const int silent : {0, 1}) {
    std::atomic<bool> hangs = false;
    const auto ranks = Sample({.slow_down = {1, 1},
                               .called_away = [&](int rank) { return rank == 0 && hangs; },
                               .hangs = [&](int rank) { return rank == silent && (hangs = true); }},
                              SomeOrder(10, 2));
    for (const SampledRank& rank : ranks) {
      ASSERT_TRUE(rank.rollouts.ok()) << rank.rollouts.status();
      EXPECT_FALSE(rank.rollouts->has_value());
    }
  }
}

TEST(RolloutEngine, AfterAStopTheSameIsSampledAndJudged) {
  const RolloutOrder order = SomeOrder(10, 2);
  std::atomic<int> calls = 0;
  std::atomic<bool> wanted = false;
  const auto ranks =
      Sample({.slow_down = {1, 1},
              .called_away = [&](int rank) { return rank == 0 && wanted.exchange(false); },
              .hangs = [&](int rank) { return rank == 1 && ++calls == 1 && (wanted = true); },
              .times = 2},
             order);
  EXPECT_GT(calls, 1);
  ExpectEqual(AllOf(ranks), AllOf(Sample({}, order)));
}

TEST(RolloutEngine, WhatIsJudgedInAMomentIsJudgedManyAtATime) {
  const auto ranks = Sample({.judged_at_once = 1}, SomeOrder(10, 4));
  ASSERT_EQ(AllOf(ranks).size(), 40U);
  EXPECT_LT(ranks[0].judge_calls, 40) << "1, 2, 4 and so on: each alone would be one a call";
}

// A turn of a large model on a slow machine is longer than a peer may be silent.
TEST(RolloutEngine, EveryLayerIsASignOfLife) {
  std::atomic<int64_t> layers = 0;
  const auto ranks = Sample({.worked = [&](int64_t) { ++layers; }}, SomeOrder(4, 1));
  int64_t longest = 0;
  for (const Rollout& one : AllOf(ranks)) {
    longest = std::max(longest, static_cast<int64_t>(one.ids.size()));
  }
  // Four prompts, and steps of all of them.
  EXPECT_GE(layers, ByteConfig().layers * (4 + longest - 1));
}

TEST(RolloutEngine, ALostRankIsAnErrorAndTheNextWorldSamplesTheSame) {
  const RolloutOrder order = SomeOrder(8, 2);
  const std::vector<Rollout> wanted = AllOf(Sample({}, order));
  const auto lost = Sample({.slow_down = {1, 1, 1},
                            .failure_timeout = absl::Seconds(1),
                            .before =
                                [](int rank, Collective& collective) {
                                  if (rank == 1) collective.Abort(absl::UnavailableError("lost"));
                                }},
                           order);
  for (const SampledRank& rank : lost) EXPECT_FALSE(rank.rollouts.ok());
  ExpectEqual(AllOf(Sample({.slow_down = {1, 1}}, order)), wanted);
}

TEST(RolloutEngine, ARecordThatCannotBeJudgedFailsAllRanksAlike) {
  RolloutOrder order = SomeOrder(6, 1);
  order.prompts[5].record.clear();
  const auto ranks = Sample({.slow_down = {1, 1}}, order);
  for (const SampledRank& rank : ranks) {
    EXPECT_EQ(rank.rollouts.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(rank.rollouts.status().message()), HasSubstr("a record that is empty"));
  }
}

// Else all would take the rank for lost, and its node would be asked again and again.
TEST(RolloutEngine, AProgramThatCannotJudgeIsAFaultOfItsNode) {
  RolloutOrder order = SomeOrder(6, 1);
  order.prompts[5].record = "gone";
  for (const SampledRank& rank : Sample({.slow_down = {1, 1}}, order)) {
    EXPECT_EQ(rank.rollouts.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_FALSE(FailedRanks(rank.rollouts.status()).empty());
    EXPECT_FALSE(IsOfTheirNodes(rank.rollouts.status())) << "it has never judged";
  }
  // It did where the job has got on, so that it may again.
  for (const SampledRank& rank : Sample({.slow_down = {1, 1}, .step = 3}, order)) {
    EXPECT_EQ(rank.rollouts.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_FALSE(FailedRanks(rank.rollouts.status()).empty());
    EXPECT_TRUE(IsOfTheirNodes(rank.rollouts.status()));
  }
  // What no program could judge is the data's all the same.
  order.prompts[5].record.clear();
  EXPECT_FALSE(IsOfTheirNodes(Sample({.step = 3}, order)[0].rollouts.status()));
}

}  // namespace
}  // namespace espalier
