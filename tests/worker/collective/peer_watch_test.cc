#include "worker/collective/peer_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kStart = absl::Seconds(100);
absl::Duration At(int seconds) { return kStart + absl::Seconds(seconds); }

PeerWatch Watch() {
  return PeerWatch({.rank = 0, .ranks = 3, .failure_timeout = absl::Seconds(10)}, kStart);
}
PeerWatch::Wait WaitFor(const std::set<int>& peers, absl::Duration moved_at = kStart) {
  return {.operation = 5, .peers = peers, .moved_at = moved_at};
}

TEST(PeerWatch, AWaitWithoutAnyProgressEndsAfterTheTimeout) {
  const PeerWatch watch = Watch();
  EXPECT_TRUE(watch.CheckWait(WaitFor({1, 2}), At(10)).ok());
  EXPECT_EQ(watch.CheckWait(WaitFor({1, 2}), At(11)).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(PeerWatch, MessagesThatMovePutTheDeadlineOff) {
  EXPECT_TRUE(Watch().CheckWait(WaitFor({1}, /*moved_at=*/At(5)), At(15)).ok());
}

TEST(PeerWatch, ProgressIsLiveness_AGrowingCounterPutsTheDeadlineOff) {
  PeerWatch watch = Watch();
  watch.Heard(2, {.work = 1}, At(8));
  EXPECT_TRUE(watch.CheckWait(WaitFor({1}), At(18)).ok()) << "rank 1 may itself wait for rank 2";
  EXPECT_FALSE(watch.CheckWait(WaitFor({1}), At(19)).ok());
}

TEST(PeerWatch, ProgressIsLiveness_AMereSignOfLifeDoesNot) {
  PeerWatch watch = Watch();
  for (int second = 1; second <= 11; ++second) watch.Heard(1, {}, At(second));
  EXPECT_FALSE(watch.CheckWait(WaitFor({1}), At(11)).ok());
}

TEST(PeerWatch, TheMessageTellsSilentAbsentAndWaitingPeersApart) {
  PeerWatch watch({.rank = 0, .ranks = 4, .failure_timeout = absl::Seconds(10)}, kStart);
  watch.Heard(1, {.work = 0, .operations = 5}, At(1));
  watch.Heard(2, {.work = 0, .operations = 4}, At(1));
  watch.Heard(1, {.work = 0, .operations = 5}, At(12));
  watch.Heard(2, {.work = 0, .operations = 4}, At(12));
  const absl::Status status = watch.CheckWait(WaitFor({1, 2, 3}), At(12));
  EXPECT_THAT(SilentPeers(status), testing::ElementsAre(3));
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("operation 5"));
  EXPECT_THAT(message, HasSubstr("silent: rank 3"));
  EXPECT_THAT(message, HasSubstr("not come to it, nor working: rank 2"));
  EXPECT_THAT(message, HasSubstr("waiting in it as well: rank 1"));
}

}  // namespace
}  // namespace espalier
