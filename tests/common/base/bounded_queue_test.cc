#include "common/base/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace espalier {
namespace {

constexpr absl::Duration kNow = absl::ZeroDuration();
constexpr absl::Duration kLong = absl::Seconds(60);

TEST(BoundedQueue, ValuesComeOutInOrder) {
  BoundedQueue<int> queue(3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.Push(int{i}, kNow), PushResult::kPushed);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.Pop(kNow), i);
  EXPECT_EQ(queue.Pop(kNow), std::nullopt);
}

TEST(BoundedQueue, AFullQueueTakesNothingAndLeavesTheValue) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_EQ(queue.Push(std::make_unique<int>(1), kNow), PushResult::kPushed);
  auto second = std::make_unique<int>(2);
  EXPECT_EQ(queue.Push(std::move(second), kNow), PushResult::kTimedOut);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(queue.size(), 1u);
}

TEST(BoundedQueue, ClosingRefusesValuesAndEmptiesOut) {
  BoundedQueue<int> queue(2);
  EXPECT_EQ(queue.Push(7, kNow), PushResult::kPushed);
  queue.Close();
  EXPECT_EQ(queue.Push(8, kNow), PushResult::kClosed);
  EXPECT_FALSE(queue.finished());
  EXPECT_EQ(queue.Pop(kNow), 7);
  EXPECT_TRUE(queue.finished());
}

TEST(BoundedQueue, ClosingEndsTheWaitsOfBothSides) {
  BoundedQueue<int> full(1);
  BoundedQueue<int> empty(1);
  ASSERT_EQ(full.Push(1, kNow), PushResult::kPushed);
  std::thread producer([&] { EXPECT_EQ(full.Push(2, kLong), PushResult::kClosed); });
  std::thread consumer([&] { EXPECT_EQ(empty.Pop(kLong), std::nullopt); });
  full.Close();
  empty.Close();
  producer.join();
  consumer.join();
}

TEST(BoundedQueue, EveryValueArrivesOnceBetweenManyThreads) {
  constexpr int kThreads = 3;
  constexpr int kEach = 500;
  BoundedQueue<int> queue(4);
  std::vector<std::thread> producers;
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&queue, t] {
      for (int i = 0; i < kEach; ++i) queue.Push(t * kEach + i, kLong);
    });
  }
  std::set<int> seen;
  for (int i = 0; i < kThreads * kEach; ++i) seen.insert(queue.Pop(kLong).value());
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(seen.size(), size_t{kThreads * kEach});
  EXPECT_EQ(*seen.rbegin(), kThreads * kEach - 1);
}

}  // namespace
}  // namespace espalier
