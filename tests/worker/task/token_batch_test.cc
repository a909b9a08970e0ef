#include "worker/task/token_batch.h"

#include <gtest/gtest.h>

#include <vector>

namespace espalier {
namespace {

constexpr int64_t kSlots = 6, kNumbers = 3;

struct Kept {
  torch::Tensor numbers = torch::arange(kSlots * kNumbers, torch::kFloat).view({kSlots, kNumbers});

  Samples Of(const std::vector<int64_t>& slots) const {
    Samples samples;
    for (const int64_t slot : slots) {
      samples.ids.push_back(slot);
      samples.slots.push_back(slot);
      samples.carried.emplace_back(numbers[slot].data_ptr<float>(), kNumbers);
    }
    return samples;
  }
};

TEST(CarriedNumbers, OfSlotsThatFollowEachOtherAreTakenWhereTheyLie) {
  const Kept kept;
  const torch::Tensor taken = CarriedTogether(kept.Of({0, 1, 2, 3, 4}), {1, 4});
  EXPECT_EQ(taken.data_ptr(), kept.numbers[1].data_ptr());
  EXPECT_TRUE(torch::equal(taken, kept.numbers.narrow(0, 1, 3)));
}

TEST(CarriedNumbers, OfOtherSlotsAreGathered) {
  const Kept kept;
  const torch::Tensor taken = CarriedTogether(kept.Of({4, 0, 5}), {0, 3});
  EXPECT_TRUE(torch::equal(taken, kept.numbers.index_select(0, torch::tensor({4, 0, 5}))));
}

TEST(CarriedNumbers, OfAPassGoToTheSlotsOfItsRows) {
  for (const std::vector<int64_t>& slots : {std::vector<int64_t>{1, 2, 3, 4}, {4, 0, 5, 2}}) {
    const Kept kept;
    const torch::Tensor numbers = torch::zeros({kSlots, kNumbers});
    const torch::Tensor next = torch::rand({2, kNumbers});
    Transfers transfers(torch::kCPU);
    KeepCarried(kept.Of(slots), {1, 3}, next, numbers, transfers);
    EXPECT_TRUE(torch::equal(numbers[slots[1]], next[0]));
    EXPECT_TRUE(torch::equal(numbers[slots[2]], next[1]));
    EXPECT_EQ(numbers[slots[0]].count_nonzero().item<int64_t>(), 0);
    EXPECT_EQ(numbers[slots[3]].count_nonzero().item<int64_t>(), 0);
  }
}

}  // namespace
}  // namespace espalier
