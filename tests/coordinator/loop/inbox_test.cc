#include "coordinator/loop/inbox.h"

#include <gtest/gtest.h>

#include <thread>

namespace espalier {
namespace {

OperatorCall Call() {
  return {v1::PauseRequest(), [](absl::StatusOr<Answer>) {}};
}

TEST(Inbox, GivesEverythingInOrder) {
  Inbox inbox({});
  for (int64_t stream = 1; stream <= 3; ++stream)
    ASSERT_TRUE(inbox.Put(StreamClosed{StreamId(stream)}));
  EXPECT_EQ(inbox.depth(), 3u);
  const std::vector<Input> taken = inbox.Take(absl::InfiniteDuration());
  ASSERT_EQ(taken.size(), 3u);
  EXPECT_EQ(std::get<StreamClosed>(taken[2]).stream, StreamId(3));
  EXPECT_TRUE(inbox.Take(absl::ZeroDuration()).empty());
}

TEST(Inbox, TellsHowLongAgoEachOfTheTakenCame) {
  Inbox inbox({});
  inbox.Put(StreamClosed{StreamId(1)});
  inbox.Put(StreamClosed{StreamId(2)});
  inbox.Take(absl::ZeroDuration());
  inbox.Put(StreamClosed{StreamId(3)});
  const std::vector<absl::Duration> ages = inbox.AgesOfTaken();
  ASSERT_EQ(ages.size(), 2u) << "the third still waits";
  EXPECT_GE(ages[0], ages[1]);
  EXPECT_GE(ages[1], absl::ZeroDuration());
  inbox.Take(absl::ZeroDuration());
  EXPECT_EQ(inbox.AgesOfTaken().size(), 1u);
}

TEST(Inbox, BoundsCallsButNeverLosesAStream) {
  Inbox inbox({.calls_max = 2});
  EXPECT_TRUE(inbox.Put(Call()));
  EXPECT_TRUE(inbox.Put(Call()));
  EXPECT_FALSE(inbox.Put(Call()));
  EXPECT_TRUE(inbox.Put(StreamClosed{StreamId(1)}));
  EXPECT_EQ(inbox.rejected(), 1);
  inbox.Take(absl::ZeroDuration());
  EXPECT_TRUE(inbox.Put(Call())) << "there is room again";
}

TEST(Inbox, ClosedItTakesNothingAndWakesWhoWaits) {
  Inbox inbox({});
  std::thread waiter([&] { EXPECT_TRUE(inbox.Take(absl::Minutes(10)).empty()); });
  inbox.Close();
  waiter.join();
  EXPECT_FALSE(inbox.Put(StreamClosed{StreamId(1)}));
}

TEST(Inbox, AWakeIsNotLostWhenNobodyWaits) {
  Inbox inbox({});
  inbox.Wake();
  EXPECT_TRUE(inbox.Take(absl::Minutes(10)).empty());
}

TEST(Inbox, ManyThreadsMayPut) {
  Inbox inbox({});
  constexpr int kThreads = 4, kEach = 500;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int n = 1; n <= kEach; ++n) inbox.Put(StreamClosed{StreamId(n)});
    });
  }
  size_t taken = 0;
  while (taken < kThreads * kEach) taken += inbox.Take(absl::Minutes(1)).size();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, static_cast<size_t>(kThreads * kEach));
}

}  // namespace
}  // namespace espalier
