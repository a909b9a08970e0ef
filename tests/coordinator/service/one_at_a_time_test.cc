#include "coordinator/service/one_at_a_time.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace espalier {
namespace {

TEST(OneAtATime, WorkThatAsksForMoreIsRunAgainAndNotWithinItself) {
  OneAtATime turns;
  int depth = 0;
  int runs = 0;
  std::function<void()> work = [&] {
    EXPECT_EQ(++depth, 1) << "never within itself";
    if (++runs < 3) turns.Run(work);
    --depth;
  };
  turns.Run(work);
  EXPECT_EQ(runs, 3);
}

TEST(OneAtATime, WhatWasAskedForByAnyThreadIsDoneByOneAtATime) {
  constexpr int kThreads = 4;
  constexpr int kAsked = 2000;
  OneAtATime turns;
  std::atomic<int> asked{0};
  std::atomic<int> inside{0};
  int seen = 0;  // by the work alone
  const auto work = [&] {
    EXPECT_EQ(++inside, 1);
    seen = asked;
    --inside;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < kAsked; ++n) {
        ++asked;
        turns.Run(work);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen, kThreads * kAsked) << "no request is forgotten";
}

}  // namespace
}  // namespace espalier
