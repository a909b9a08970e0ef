// What is divided adds up, whatever the shares are.
#include "common/base/shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "common/base/random.h"

namespace espalier {
namespace {

using testing::ElementsAre;

TEST(Shares, TheLargestFractionsGetWhatIsLeftOver) {
  EXPECT_THAT(DivideByShares(9, {3, 5}), ElementsAre(3, 6));
  EXPECT_THAT(DivideByShares(8, {0, 2, 1}), ElementsAre(0, 5, 3));
  EXPECT_THAT(DivideByShares(8, {3, 1}), ElementsAre(6, 2));
}

TEST(Shares, OfEqualFractionsTheFirst) {
  EXPECT_THAT(DivideByShares(8, {1, 1, 1}), ElementsAre(3, 3, 2));
  EXPECT_THAT(DivideByShares(2, {1, 1, 1}), ElementsAre(1, 1, 0));
}

TEST(Shares, TheTotalIsDividedExactlyAndNoShareMeansNothing) {
  SplitMix64 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::vector<int64_t> shares(1 + random.Below(8));
    for (int64_t& share : shares) share = static_cast<int64_t>(random.Below(1000));
    shares.back() += 1;
    const auto total = static_cast<int64_t>(random.Below(1 << 20));
    const auto sum = std::accumulate(shares.begin(), shares.end(), int64_t{0});
    const std::vector<int64_t> parts = DivideByShares(total, shares);
    ASSERT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), total);
    for (size_t r = 0; r < parts.size(); ++r) {
      ASSERT_GE(parts[r], total * shares[r] / sum);
      ASSERT_LE(parts[r], total * shares[r] / sum + (shares[r] == 0 ? 0 : 1));
    }
  }
}

}  // namespace
}  // namespace espalier
