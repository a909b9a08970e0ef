// Whatever ranks tell, nothing is lost or doubled, nothing that was begun moves, and no other
// division of what waits would end earlier.
#include "worker/rollout/rollout_queues.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/base/random.h"

namespace espalier {
namespace {

std::vector<int64_t> ItemsOf(const RolloutQueues& queues, size_t ranks) {
  std::vector<int64_t> items;
  for (size_t rank = 0; rank < ranks; ++rank) {
    items.insert(items.end(), queues.of(rank).begin(), queues.of(rank).end());
  }
  return items;
}

double EndOf(const RolloutLoad& load, int64_t items) {
  return load.seconds + static_cast<double>(items) / load.rate;
}

double LatestEnd(const std::vector<RolloutLoad>& loads, const std::vector<int64_t>& parts) {
  double latest = 0;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank] > 0) latest = std::max(latest, EndOf(loads[rank], parts[rank]));
  }
  return latest;
}

TEST(RolloutQueues, AreRunsByShares) {
  const RolloutQueues queues(9, std::vector<int64_t>{2, 0, 1});
  EXPECT_EQ(queues.of(0), (std::deque<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_TRUE(queues.of(1).empty());
  EXPECT_EQ(queues.of(2), (std::deque<int64_t>{6, 7, 8}));
}

TEST(RolloutQueues, LoseAndDoubleNothingInAnyCourse) {
  SplitMix64 random(3);
  for (int course = 0; course < 300; ++course) {
    const size_t ranks = 1 + random.Below(5);
    const auto items = static_cast<int64_t>(random.Below(60));
    std::vector<int64_t> shares(ranks, 1);
    for (int64_t& share : shares) share += static_cast<int64_t>(random.Below(4));
    RolloutQueues queues(items, shares), twin(items, shares);
    std::set<int64_t> begun;
    while (queues.waiting() > 0) {
      std::vector<RolloutLoad> loads(ranks);
      for (size_t rank = 0; rank < ranks; ++rank) {
        const auto& queue = queues.of(rank);
        loads[rank].begun = static_cast<int64_t>(random.Below(queue.size() + 1));
        loads[rank].rate = random.Below(4) == 0 ? 0 : 0.1 + 10 * random.Uniform();
        loads[rank].seconds = 20 * random.Uniform();
        loads[rank].part = random.Below(2) == 0 ? 1 : random.Uniform();
        loads[rank].largest_share = random.Below(2) == 0 ? 1 : random.Uniform();
        for (int64_t i = 0; i < loads[rank].begun; ++i) {
          EXPECT_TRUE(begun.insert(queue[static_cast<size_t>(i)]).second) << "begun twice";
        }
      }
      queues.Meet(loads);
      twin.Meet(loads);
      EXPECT_EQ(ItemsOf(queues, ranks), ItemsOf(twin, ranks)) << "ranks would differ";
      for (const int64_t item : ItemsOf(queues, ranks)) EXPECT_EQ(begun.count(item), 0U);
      ASSERT_EQ(begun.size() + static_cast<size_t>(queues.waiting()), static_cast<size_t>(items));
    }
    EXPECT_EQ(begun.size(), static_cast<size_t>(items));
  }
}

TEST(DivideWaiting, NoOtherDivisionEndsEarlier) {
  SplitMix64 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    const size_t ranks = 2 + random.Below(3);
    std::vector<RolloutLoad> loads(ranks);
    for (RolloutLoad& load : loads) {
      load.seconds = 10 * random.Uniform();
      load.rate = 0.2 + 3 * random.Uniform();
    }
    const auto waiting = static_cast<int64_t>(1 + random.Below(20));
    const std::vector<int64_t> parts =
        DivideWaiting(waiting, loads, std::vector<int64_t>(ranks, waiting));
    int64_t sum = 0;
    for (const int64_t part : parts) sum += part;
    EXPECT_EQ(sum, waiting);
    // Greedy is optimal, so no single move helps, and none of random divisions.
    for (int other = 0; other < 50; ++other) {
      std::vector<int64_t> drawn(ranks);
      for (int64_t i = 0; i < waiting; ++i) ++drawn[random.Below(ranks)];
      EXPECT_LE(LatestEnd(loads, parts), LatestEnd(loads, drawn) + 1e-9);
    }
  }
}

TEST(DivideWaiting, WhoHasNoShareGetsNothing) {
  RolloutQueues queues(6, std::vector<int64_t>{1, 0});
  queues.Meet(std::vector<RolloutLoad>{{.running = 0, .seconds = 100, .rate = 0.01}, {}});
  EXPECT_EQ(queues.of(0).size(), 6U);
}

// A course of ranks that are equally fast and begin all that they get: how many items each began.
std::vector<int64_t> Begun(int64_t items, std::vector<RolloutLoad> loads, int64_t at_once) {
  RolloutQueues queues(items, std::vector<int64_t>(loads.size(), 1));
  std::vector<int64_t> begun(loads.size());
  for (RolloutLoad& load : loads) load.rate = 1;
  queues.Meet(loads);
  while (queues.waiting() > 0) {
    for (size_t rank = 0; rank < loads.size(); ++rank) {
      const auto waits = static_cast<int64_t>(queues.of(rank).size());
      loads[rank].begun = std::min(waits, at_once);
      begun[rank] += loads[rank].begun;
    }
    queues.Meet(loads);
  }
  return begun;
}

TEST(RolloutQueues, WhoIsSparedDoesItsPartOfWhatItCould) {
  EXPECT_EQ(Begun(300, {{}, {.part = 0.5}}, 1000), (std::vector<int64_t>{200, 100}));
  EXPECT_EQ(Begun(300, {{}, {.part = 0}}, 1000), (std::vector<int64_t>{300, 0}));
}

TEST(RolloutQueues, NobodyHasMoreThanItsLargestShareHoweverFastItIs) {
  EXPECT_EQ(Begun(300, {{}, {.largest_share = 0.1}}, 1000), (std::vector<int64_t>{270, 30}));
  EXPECT_EQ(Begun(300, {{}, {.largest_share = 0.1}}, 4)[1], 30) << "though it is ready for more";
  EXPECT_EQ(Begun(4, {{}, {.largest_share = 0.1}}, 4)[1], 1) << "none at all would be no share";
}

TEST(RolloutQueues, WhatHasNoPlaceWithinTheLimitsIsDoneAllTheSame) {
  const std::vector<int64_t> begun =
      Begun(100, {{.largest_share = 0.25}, {.largest_share = 0.25}}, 1000);
  EXPECT_EQ(begun[0] + begun[1], 100);
  EXPECT_EQ(begun[0], 50);
  EXPECT_EQ(Begun(100, {{.part = 0}}, 1000), std::vector<int64_t>{100});
}

TEST(RolloutQueues, MeetSoonerTheSoonerSomebodyIsIdle) {
  RolloutQueues queues(100, std::vector<int64_t>{1, 1});
  const std::vector<RolloutLoad> slow{{.rate = 1}, {.rate = 1}};
  const std::vector<RolloutLoad> fast{{.rate = 1}, {.seconds = 0.1, .rate = 400}};
  queues.Meet(slow);
  EXPECT_GT(UntilNextMeeting(queues, slow), UntilNextMeeting(queues, fast));
}

TEST(RolloutQueues, WhoHasNothingHurriesNobody) {
  RolloutQueues queues(1, std::vector<int64_t>{1, 1});
  const std::vector<RolloutLoad> loads = {{.begun = 1, .running = 1, .seconds = 4, .rate = 1}, {}};
  queues.Meet(loads);
  ASSERT_EQ(queues.waiting(), 0);
  EXPECT_GT(UntilNextMeeting(queues, loads), absl::Milliseconds(100));
}

}  // namespace
}  // namespace espalier
