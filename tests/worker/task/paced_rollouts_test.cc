// Orders that follow each other: how large they are.
#include "worker/task/paced_rollouts.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(PacedRollouts, TakeAsLongAsIsWanted) {
  const OrderBounds bounds{.least = 16, .most = 512, .wanted_seconds = 60};
  EXPECT_EQ(NextOrderSize(bounds, 64, 64, 40), 96);
  EXPECT_EQ(NextOrderSize(bounds, 64, 64, 1), 128) << "twice as many at most";
  EXPECT_EQ(NextOrderSize(bounds, 64, 3, 1), 128) << "there were no more";
  EXPECT_EQ(NextOrderSize(bounds, 400, 400, 0), 512);
  EXPECT_EQ(NextOrderSize(bounds, 64, 64, 600), 16);
}

}  // namespace
}  // namespace espalier
