// Every item is in one row, no row holds more than it has room for, and little room is left.
#include "common/base/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/random.h"

namespace espalier {
namespace {

using testing::ElementsAre;

int64_t Sum(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

// Of every kind: equal, tiny, as long as a row.
std::vector<int64_t> SomeLengths(SplitMix64& random, int64_t room) {
  std::vector<int64_t> lengths(random.Below(300));
  const uint64_t longest = 1 + random.Below(static_cast<uint64_t>(room));
  for (int64_t& length : lengths) length = static_cast<int64_t>(1 + random.Below(longest));
  return lengths;
}

// As conversations are: most are short, a few are long, and some are cut to the length of a row.
std::vector<int64_t> SkewedLengths(int64_t count, int64_t room) {
  SplitMix64 random(4);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) {
    const double normal = std::sqrt(-2 * std::log(1 - random.Uniform())) *
                          std::cos(6.283185307179586 * random.Uniform());
    lengths.push_back(std::clamp<int64_t>(std::llround(250 * std::exp(normal)), 2, room));
  }
  return lengths;
}

TEST(Packing, TheLongestComeFirstIntoTheFullestRow) {
  const PackedRows packed = PackLongestFirst({5, 3, 3, 2, 7}, 10);
  ASSERT_EQ(packed.rows(), 2);
  EXPECT_THAT(packed.Row(0), ElementsAre(4, 1));
  EXPECT_THAT(packed.Row(1), ElementsAre(0, 2, 3));
}

TEST(Packing, EveryItemIsInOneRowAndNoRowIsOverFull) {
  SplitMix64 random(2);
  for (int round = 0; round < 300; ++round) {
    const auto room = static_cast<int64_t>(1 + random.Below(200));
    const std::vector<int64_t> lengths = SomeLengths(random, room);
    const PackedRows packed = PackLongestFirst(lengths, room);
    std::vector<int64_t> used = packed.items;
    std::sort(used.begin(), used.end());
    for (size_t i = 0; i < used.size(); ++i) ASSERT_EQ(used[i], static_cast<int64_t>(i));
    ASSERT_EQ(used.size(), lengths.size());
    for (int64_t row = 0; row < packed.rows(); ++row) {
      int64_t tokens = 0;
      for (const int64_t item : packed.Row(row)) tokens += lengths[static_cast<size_t>(item)];
      ASSERT_LE(tokens, room);
      ASSERT_GT(tokens, 0);
    }
    // What two rows hold has not room in one.
    ASSERT_LE(packed.rows(), 2 * ((Sum(lengths) + room - 1) / room));
  }
}

TEST(Packing, HowManyRowsThereAreFollowsFromTheLengthsInAnyOrder) {
  SplitMix64 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> lengths = SomeLengths(random, 100);
    const int64_t rows = PackLongestFirst(lengths, 100).rows();
    for (size_t i = lengths.size(); i > 1; --i) std::swap(lengths[i - 1], lengths[random.Below(i)]);
    EXPECT_EQ(PackLongestFirst(lengths, 100).rows(), rows);
  }
}

TEST(Packing, LittleRoomIsLeft) {
  for (const int64_t count : {200, 2000, 20000}) {
    const std::vector<int64_t> lengths = SkewedLengths(count, 2049);
    const int64_t rows = PackLongestFirst(lengths, 2049).rows();
    const double fill = static_cast<double>(Sum(lengths)) / static_cast<double>(2049 * rows);
    EXPECT_GT(fill, count < 1000 ? 0.95 : 0.99) << count;
  }
}

TEST(Packing, NothingTakesNoRow) { EXPECT_EQ(PackLongestFirst({}, 10).rows(), 0); }

}  // namespace
}  // namespace espalier
