#include "worker/collective/partition.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(Partition, PiecesTileTheElementsAndDifferByAtMostOne) {
  for (int64_t n : {0, 1, 2, 7, 100, 1000003}) {
    for (int ranks = 1; ranks <= 7; ++ranks) {
      int64_t end = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range piece = PieceOf(n, rank, ranks);
        EXPECT_EQ(piece.begin, end);
        EXPECT_LE(std::abs(piece.size() - n / ranks), 1);
        end = piece.end;
      }
      EXPECT_EQ(end, n);
    }
  }
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
