#include "worker/collective/partition.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace espalier {
namespace {

TEST(Partition, EqualPartsTileTheElementsAndDifferByAtMostOne) {
  for (int64_t n : {0, 1, 2, 7, 100, 1000003}) {
    for (int ranks = 1; ranks <= 7; ++ranks) {
      int64_t end = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range part = EqualPart(n, rank, ranks);
        EXPECT_EQ(part.begin, end);
        EXPECT_LE(std::abs(part.size() - n / ranks), 1);
        end = part.end;
      }
      EXPECT_EQ(end, n);
    }
  }
}

TEST(Partition, PartsOfExplicitEndsAreWhatLiesBetweenThem) {
  const PartEnds ends = {0, 5, 5, 9};
  EXPECT_EQ(PartOf(ends, 0), (Range{0, 0}));
  EXPECT_EQ(PartOf(ends, 1), (Range{0, 5}));
  EXPECT_EQ(PartOf(ends, 2), (Range{5, 5}));
  EXPECT_EQ(PartOf(ends, 3), (Range{5, 9}));
  EXPECT_EQ(EqualParts(7, 3), (PartEnds{3, 5, 7}));
  EXPECT_EQ(AllOf(7, /*owner=*/1, 3), (PartEnds{0, 7, 7}));
}

TEST(Partition, PartsCoverTheSpanOnceForEveryRank) {
  EXPECT_TRUE(AreParts({0, 5, 5, 9}, 9, 4));
  EXPECT_FALSE(AreParts({0, 5, 9}, 9, 4)) << "a rank without a part";
  EXPECT_FALSE(AreParts({0, 5, 4, 9}, 9, 4)) << "a part that ends before it begins";
  EXPECT_FALSE(AreParts({0, 5, 5, 8}, 9, 4)) << "elements of nobody";
  EXPECT_FALSE(AreParts({-1, 5, 5, 9}, 9, 4));
}

TEST(Partition, ChunksTileTheirRange) {
  for (int64_t n : {0, 1, 9, 10, 11, 105}) {
    const Range range{.begin = 3, .end = 3 + n};
    int64_t end = 3;
    for (int64_t i = 0; i < ChunkCount(n, 10); ++i) {
      EXPECT_EQ(ChunkOf(range, 10, i).begin, end);
      end = ChunkOf(range, 10, i).end;
    }
    EXPECT_EQ(end, range.end);
  }
}

}  // namespace
}  // namespace espalier
