#include "worker/data/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "common/base/random.h"

namespace espalier {
namespace {

std::vector<int64_t> Apply(const Permutation& permutation, uint64_t size) {
  std::vector<int64_t> images(size);
  for (uint64_t i = 0; i < size; ++i) images[i] = static_cast<int64_t>(permutation(i));
  return images;
}

// Every number of [0, size) exactly once.
bool IsBijection(std::vector<int64_t> images) {
  std::sort(images.begin(), images.end());
  for (size_t i = 0; i < images.size(); ++i) {
    if (images[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

SampleOrder Order(SampleOrder::Options options) { return *SampleOrder::Create(options); }

TEST(Permutation, IsABijectionForEverySizeUpTo2000) {
  for (uint64_t size = 1; size <= 2000; ++size) {
    const Permutation permutation({.size = size, .seed = size * 7, .stream = size % 3});
    ASSERT_TRUE(IsBijection(Apply(permutation, size))) << size;
  }
}

TEST(Permutation, IsABijectionForRandomLargerSizes) {
  SplitMix64 random(5);
  for (int round = 0; round < 20; ++round) {
    const uint64_t size = 2001 + random.Below(300000);
    const Permutation permutation({.size = size, .seed = random.Next(), .stream = 1});
    ASSERT_TRUE(IsBijection(Apply(permutation, size))) << size;
  }
}

TEST(Permutation, StaysInsideHugeSizes) {
  SplitMix64 random(6);
  for (uint64_t size : {uint64_t{1} << 62, (uint64_t{1} << 61) + 1, uint64_t{999999999989}}) {
    const Permutation permutation({.size = size, .seed = 3, .stream = 0});
    for (int i = 0; i < 1000; ++i) ASSERT_LT(permutation(random.Below(size)), size);
  }
}

TEST(Permutation, SeedsAndEpochsDiffer) {
  const auto first = Apply(Permutation({.size = 1000, .seed = 1, .stream = 0}), 1000);
  const auto seed = Apply(Permutation({.size = 1000, .seed = 2, .stream = 0}), 1000);
  const auto epoch = Apply(Permutation({.size = 1000, .seed = 1, .stream = 1}), 1000);
  const auto same = [&](const std::vector<int64_t>& other) {
    int count = 0;
    for (size_t i = 0; i < other.size(); ++i) count += first[i] == other[i];
    return count;
  };
  EXPECT_LT(same(seed), 12) << "two random orders agree in 1 place on average";
  EXPECT_LT(same(epoch), 12);
  EXPECT_NE(first, seed);
}

TEST(Permutation, EveryPlaceGetsEverySampleAboutEquallyOften) {
  constexpr int kSize = 10, kSeeds = 20000;
  std::vector<std::vector<int>> counts(kSize, std::vector<int>(kSize));
  for (int seed = 0; seed < kSeeds; ++seed) {
    const Permutation permutation({.size = kSize, .seed = static_cast<uint64_t>(seed)});
    for (int i = 0; i < kSize; ++i) ++counts[i][permutation(i)];
  }
  for (const auto& row : counts) {
    for (int count : row) EXPECT_NEAR(count, kSeeds / kSize, 250);  // about 6 standard deviations
  }
}

TEST(Permutation, NeighboursAreScattered) {
  const auto images = Apply(Permutation({.size = 100000, .seed = 9, .stream = 0}), 100000);
  int64_t close = 0;
  for (size_t i = 1; i < images.size(); ++i) close += std::abs(images[i] - images[i - 1]) < 100;
  EXPECT_NEAR(close, 200, 90);
}

TEST(ShardOrder, EverySampleOncePerEpoch) {
  // 37 samples, batches of 5: epochs begin and end inside of steps.
  const SampleOrder order = Order({.samples = 37, .global_batch = 5, .seed = 11});
  std::vector<int64_t> row;
  for (int64_t step = 0; step < 37; ++step) {
    const auto ids = order.SamplesOfStep(Step(step));
    row.insert(row.end(), ids.begin(), ids.end());
  }
  ASSERT_EQ(row.size(), 5u * 37u);
  for (size_t epoch = 0; epoch < 5; ++epoch) {
    EXPECT_TRUE(IsBijection({row.begin() + epoch * 37, row.begin() + (epoch + 1) * 37})) << epoch;
  }
  EXPECT_EQ(order.EpochOfStep(Step(7)), 0);
  EXPECT_EQ(order.EpochOfStep(Step(8)), 1);
}

TEST(ShardOrder, IsAFunctionOfTheStepAndNotOfTheRanks) {
  const SampleOrder order = Order({.samples = 1000, .global_batch = 24, .seed = 4});
  for (const std::vector<int64_t>& plan :
       std::vector<std::vector<int64_t>>{{24}, {12, 12}, {1, 0, 23}, {7, 9, 8}, {0, 0, 0, 24}}) {
    const auto ranges = SlotsOfRanks(plan, 24);
    ASSERT_TRUE(ranges.ok());
    for (int64_t step : {0, 1, 41, 42, 1000000}) {
      std::vector<int64_t> joined;
      for (const SlotRange& range : *ranges) {
        const auto ids = order.SamplesOfStep(Step(step), range);
        joined.insert(joined.end(), ids.begin(), ids.end());
      }
      EXPECT_EQ(joined, order.SamplesOfStep(Step(step))) << "step " << step;
    }
  }
}

TEST(ShardOrder, ABatchMayHoldSeveralEpochs) {
  const SampleOrder order = Order({.samples = 3, .global_batch = 9, .seed = 1});
  const auto ids = order.SamplesOfStep(Step(0));
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_TRUE(IsBijection({ids.begin() + epoch * 3, ids.begin() + epoch * 3 + 3}));
  }
}

TEST(ShardOrder, IsTheSameOnEveryMachine) {
  // Recorded: a change of these numbers changes what every resumed run trains on.
  const SampleOrder order = Order({.samples = 1000003, .global_batch = 6, .seed = 42});
  EXPECT_EQ(order.SamplesOfStep(Step(123456789)),
            (std::vector<int64_t>{178262, 311984, 198902, 514608, 135445, 935601}));
}

TEST(ShardOrder, PlansThatDoNotCoverTheBatchAreRefused) {
  for (const std::vector<int64_t>& plan :
       std::vector<std::vector<int64_t>>{{}, {9}, {11}, {5, 6}, {11, -1}, {-1, 11}}) {
    EXPECT_EQ(SlotsOfRanks(plan, 10).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(SampleOrder::Create({.samples = 0, .global_batch = 1}).ok());
  EXPECT_FALSE(SampleOrder::Create({.samples = 1, .global_batch = 0}).ok());
}

TEST(SampleOrder, WholeEpochsEndWithWhatIsLeft) {
  const SampleOrder order =
      Order({.samples = 890, .global_batch = 8, .seed = 42, .whole_epochs = true});
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> used;
    for (int64_t s = epoch * 112; s < (epoch + 1) * 112; ++s) {
      const Step step(s);
      EXPECT_EQ(order.EpochOfStep(step), epoch);
      EXPECT_EQ(order.UsedInEpoch(step), static_cast<int64_t>(used.size()));
      const std::vector<int64_t> ids = order.SamplesOfStep(step);
      EXPECT_EQ(ids.size(), s % 112 == 111 ? 2u : 8u);
      // However the slots are divided, the same samples.
      std::vector<int64_t> parts;
      for (const SlotRange range : {SlotRange{0, 1}, SlotRange{1, 5}, SlotRange{5, 8}}) {
        for (const int64_t id : order.SamplesOfStep(step, range)) parts.push_back(id);
      }
      EXPECT_EQ(parts, ids);
      used.insert(used.end(), ids.begin(), ids.end());
    }
    EXPECT_EQ(used.size(), 890u);
    EXPECT_TRUE(IsBijection(used));
  }
}

TEST(SampleOrder, TheFirstEpochDoesNotDependOnHowItEnds) {
  const SampleOrder::Options options{.samples = 100, .global_batch = 8, .seed = 3};
  SampleOrder::Options whole = options;
  whole.whole_epochs = true;
  for (int64_t s = 0; s < 12; ++s) {
    EXPECT_EQ(Order(options).SamplesOfStep(Step(s)), Order(whole).SamplesOfStep(Step(s)));
  }
}

// What a batch is padded to, over what its samples have.
double PadRatio(const SampleOrder& order, int64_t steps) {
  int64_t padded = 0, tokens = 0;
  for (int64_t s = 0; s < steps; ++s) {
    int64_t longest = 0, rows = 0;
    for (const int64_t id : order.SamplesOfStep(Step(s))) {
      const int64_t length = id * id % 997 + 1;
      longest = std::max(longest, length);
      tokens += length;
      ++rows;
    }
    padded += longest * rows;
  }
  return static_cast<double>(padded) / static_cast<double>(tokens);
}

TEST(SampleOrder, GroupedByLengthPadsLessAndUsesEachOnce) {
  for (const bool whole : {false, true}) {
    SampleOrder::Options options{
        .samples = 1003, .global_batch = 8, .seed = 7, .whole_epochs = whole};
    EXPECT_GT(PadRatio(Order(options), 125), 1.5);
    options.length = [](int64_t id) { return id * id % 997 + 1; };
    const SampleOrder order = Order(options);
    EXPECT_LT(PadRatio(order, 125), 1.1);
    std::vector<int64_t> used;
    for (int64_t s = 0; s < 126; ++s) {
      for (const int64_t id : order.SamplesOfStep(Step(s))) used.push_back(id);
    }
    used.resize(1003);  // the first epoch
    EXPECT_TRUE(IsBijection(used));
    // Of any step, in any order, the same.
    EXPECT_EQ(order.SamplesOfStep(Step(60)), Order(options).SamplesOfStep(Step(60)));
    EXPECT_NE(order.SamplesOfStep(Step(0)), order.SamplesOfStep(Step(126)));
  }
}

}  // namespace
}  // namespace espalier
