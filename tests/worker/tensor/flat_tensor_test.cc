// A flat tensor is one row of numbered elements wherever its arenas begin.
#include "worker/tensor/flat_tensor.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

using Ends = std::vector<int64_t>;

TEST(ArenaEnds, KeepPartsWholeAndArenasBelowTheLimit) {
  EXPECT_EQ(ArenaEnds(Ends{3, 5, 9, 10, 16}, 6), (Ends{5, 10, 16}));
  EXPECT_EQ(ArenaEnds(Ends{3, 5, 9}, 100), Ends{9});
  EXPECT_EQ(ArenaEnds(Ends{2, 12, 13}, 4), (Ends{2, 12, 13})) << "a larger part stands alone";
  EXPECT_TRUE(ArenaEnds(Ends{}, 4).empty());
}

TEST(PrefixEnds, AreThoseOfTheFirstElements) {
  EXPECT_EQ(PrefixEnds(Ends{5, 10, 16}, 16), (Ends{5, 10, 16}));
  EXPECT_EQ(PrefixEnds(Ends{5, 10, 16}, 10), (Ends{5, 10}));
  EXPECT_EQ(PrefixEnds(Ends{5, 10, 16}, 7), (Ends{5, 7}));
  EXPECT_TRUE(PrefixEnds(Ends{5, 10, 16}, 0).empty());
}

TEST(FlatTensor, SlicesAreViewsOfTheElementsOfTheirNumbers) {
  FlatTensor flat = FlatTensor::Zeros(Ends{4, 6, 11}, torch::kFloat);
  EXPECT_EQ(flat.numel(), 11);
  EXPECT_EQ(flat.nbytes(), 44);
  for (const auto& [begin, size] : {std::pair{0, 4}, std::pair{4, 2}, std::pair{6, 5}}) {
    flat.Slice(begin, size).copy_(torch::arange(begin, begin + size));
  }
  EXPECT_TRUE(torch::equal(torch::cat(flat.arenas()), torch::arange(11, torch::kFloat)));
  EXPECT_EQ(flat.Slice(7, 3)[1].item<float>(), 8);
  flat.Zero();
  EXPECT_EQ(flat.arenas()[2].abs().sum().item<float>(), 0);
}

TEST(FlatTensor, CopiesShareTheMemory) {
  FlatTensor flat = FlatTensor::Zeros(Ends{4}, torch::kFloat);
  const FlatTensor other = flat;
  flat.Slice(1, 1).fill_(3);
  EXPECT_EQ(other.Only()[1].item<float>(), 3);
}

TEST(FlatTensorDeathTest, ASliceAcrossArenasIsAProgramError) {
  const FlatTensor flat = FlatTensor::Zeros(Ends{4, 6}, torch::kFloat);
  EXPECT_DEATH(flat.Slice(3, 2), "within one arena");
  EXPECT_DEATH(flat.Slice(6, 1), "within one arena");
}

}  // namespace
}  // namespace espalier
