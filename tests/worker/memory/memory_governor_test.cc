// The governor against made-up machines: memory is a function of the size of a micro-batch.
#include "worker/memory/memory_governor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "common/base/random.h"

namespace espalier {
namespace {

constexpr int64_t kMega = 1'000'000;

// Memory of a pass over a micro-batch, and what there is of it.
struct Machine {
  int64_t before = 0;
  std::function<int64_t(int64_t)> peak;
  int64_t limit = 0;
};

// Runs the probes; a pass beyond the limit ends the test, as it would end the process.
int ProbeAll(const Machine& machine, MemoryGovernor& governor) {
  int passes = 0;
  while (const std::optional<int64_t> size = governor.NextProbe()) {
    const int64_t peak = machine.peak(*size);
    EXPECT_LE(peak, machine.limit) << "a probe of " << *size << " ends the process";
    governor.Probed(*size, machine.before, peak);
    EXPECT_LE(++passes, 12);
    if (passes > 12) break;
  }
  return passes;
}

int64_t LargestThatFits(const Machine& machine, int64_t target, int64_t max) {
  int64_t largest = 1;
  while (largest < max && machine.peak(largest + 1) <= target) ++largest;
  return largest;
}

Machine Affine(int64_t before, int64_t base, int64_t slope, int64_t limit) {
  return {before, [=](int64_t size) { return base + slope * size; }, limit};
}

TEST(MemoryGovernor, FindsTheLargestSafeSizeWithTwoProbesAndConfirmsIt) {
  MemoryGovernor governor({.min = 1, .max = 1000, .limit_bytes = 1000 * kMega});
  const Machine machine = Affine(300 * kMega, 350 * kMega, 100 * kMega, 1000 * kMega);
  EXPECT_EQ(ProbeAll(machine, governor), 3);
  EXPECT_EQ(governor.micro_batch(), 5) << "350 + 5 x 100 MB is the target of 850 MB";
  EXPECT_EQ(governor.Predicted(7), 1050 * kMega);
}

TEST(MemoryGovernor, ReachesNineteenTwentiethsOnMachinesOfAllSizesWithoutEverPassingTheLimit) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SplitMix64 random(seed);
    const int64_t before = static_cast<int64_t>(random.Below(4000)) * kMega;
    const int64_t fixed = before + static_cast<int64_t>(random.Below(500)) * kMega;
    const int64_t slope = (5 + static_cast<int64_t>(random.Below(400))) * kMega;
    // Some passes take up to 1 % more, and each sequence a little more than the one before.
    const int64_t noise = slope / 100, bend = static_cast<int64_t>(random.Below(1000));
    const Machine machine{before,
                          [=](int64_t size) {
                            SplitMix64 jitter(seed, static_cast<uint64_t>(size));
                            return fixed + slope * size + bend * size * size +
                                   static_cast<int64_t>(jitter.Below(noise));
                          },
                          fixed + slope * static_cast<int64_t>(3 + random.Below(300))};
    MemoryGovernor governor({.min = 1, .max = 256, .limit_bytes = machine.limit});
    ProbeAll(machine, governor);
    const int64_t best = LargestThatFits(machine, governor.target_bytes(), 256);
    // Where one sequence takes more than half of what is left, two are not tried.
    if (2 * machine.peak(1) - before > machine.limit) continue;
    EXPECT_GE(governor.micro_batch(), best - best / 20) << "seed " << seed;
    EXPECT_LE(machine.peak(governor.micro_batch()),
              std::max(machine.peak(1), governor.target_bytes()))
        << "seed " << seed;
    if (const auto predicted = governor.Predicted(governor.micro_batch())) {
      const auto real = static_cast<double>(machine.peak(governor.micro_batch()));
      EXPECT_NEAR(static_cast<double>(*predicted), real, 0.03 * real) << "seed " << seed;
    }
  }
}

TEST(MemoryGovernor, DoesNotProbeTwoWhenOneHasTakenMoreThanHalfOfWhatWasLeft) {
  MemoryGovernor governor({.min = 1, .max = 8, .limit_bytes = 1000 * kMega});
  ASSERT_EQ(governor.NextProbe(), 1);
  governor.Probed(1, 500 * kMega, 800 * kMega);
  EXPECT_EQ(governor.NextProbe(), std::nullopt);
  EXPECT_EQ(governor.micro_batch(), 1);
  for (int step = 0; step < 30; ++step) governor.Observe({.size = 1, .peak = 600 * kMega});
  EXPECT_EQ(governor.micro_batch(), 1) << "nothing larger is known to be safe";
}

TEST(MemoryGovernor, KeepsTheMaximumWhenEverythingFits) {
  MemoryGovernor governor({.min = 1, .max = 16, .limit_bytes = 1000 * kMega});
  ProbeAll(Affine(0, kMega, kMega, 1000 * kMega), governor);
  EXPECT_EQ(governor.micro_batch(), 16);
}

TEST(MemoryGovernor, WhatAPassTakesFarBeyondThePredictionIsKeptByAllocators) {
  MemoryGovernor governor({.min = 1, .max = 1000, .limit_bytes = 1000 * kMega});
  EXPECT_FALSE(governor.KeptByAllocators(1, 900 * kMega)) << "nothing is predicted yet";
  ProbeAll(Affine(300 * kMega, 350 * kMega, 100 * kMega, 1000 * kMega), governor);
  EXPECT_FALSE(governor.KeptByAllocators(4, 765 * kMega)) << "2 % of 750 MB";
  EXPECT_TRUE(governor.KeptByAllocators(4, 766 * kMega));
  EXPECT_FALSE(governor.KeptByAllocators(5, 766 * kMega));
}

TEST(MemoryGovernor, NeverProbesAFixedSize) {
  MemoryGovernor governor({.min = 8, .max = 8, .limit_bytes = 1000});
  EXPECT_EQ(governor.NextProbe(), std::nullopt);
  for (int step = 0; step < 30; ++step) EXPECT_FALSE(governor.Observe({.size = 8, .peak = 5000}));
  EXPECT_EQ(governor.micro_batch(), 8);
}

// One that probed a machine of 10 MB a sequence and chose `max`.
MemoryGovernor Settled(int64_t max) {
  MemoryGovernor governor({.min = 2, .max = max, .limit_bytes = 1000 * kMega});
  ProbeAll(Affine(0, 10 * kMega, 10 * kMega, 1000 * kMega), governor);
  EXPECT_EQ(governor.micro_batch(), max);
  return governor;
}

// Steps until the size changes, at most 100.
int StepsToChange(MemoryGovernor& governor, int64_t peak, bool pressure = false) {
  for (int step = 1; step <= 100; ++step) {
    if (governor.Observe({.size = governor.micro_batch(), .peak = peak, .pressure = pressure})) {
      return step;
    }
  }
  return 0;
}

TEST(MemoryGovernor, TakesAFifthOffAboveTheTargetAtMostOnceInTenSteps) {
  MemoryGovernor governor = Settled(20);
  EXPECT_EQ(StepsToChange(governor, 900 * kMega), 10);
  EXPECT_EQ(governor.micro_batch(), 16);
  EXPECT_EQ(StepsToChange(governor, 900 * kMega), 10);
  EXPECT_EQ(governor.micro_batch(), 12);
  while (StepsToChange(governor, 900 * kMega) > 0) continue;
  EXPECT_EQ(governor.micro_batch(), 2) << "never below the minimum";
}

TEST(MemoryGovernor, OneHighReadingIsNotAnAverage) {
  MemoryGovernor governor = Settled(20);
  for (int step = 0; step < 40; ++step) {
    EXPECT_FALSE(
        governor.Observe({.size = 20, .peak = step % 10 == 0 ? 990 * kMega : 700 * kMega}));
  }
}

TEST(MemoryGovernor, PressureOfTheSystemCountsAsAboveAndGrowthFollowsWhenItEnds) {
  MemoryGovernor governor = Settled(20);
  EXPECT_EQ(StepsToChange(governor, 100 * kMega, /*pressure=*/true), 10);
  EXPECT_EQ(governor.micro_batch(), 16);
  EXPECT_EQ(StepsToChange(governor, 100 * kMega), 10);
  EXPECT_EQ(governor.micro_batch(), 19) << "a fifth more";
  EXPECT_EQ(StepsToChange(governor, 100 * kMega), 10);
  EXPECT_EQ(governor.micro_batch(), 20) << "never above the maximum";
}

TEST(MemoryGovernor, GrowsNoFurtherThanTheProbesSayIsSafe) {
  MemoryGovernor governor({.min = 1, .max = 1000, .limit_bytes = 1000 * kMega});
  ProbeAll(Affine(0, 10 * kMega, 10 * kMega, 1000 * kMega), governor);
  EXPECT_EQ(governor.micro_batch(), 84);
  EXPECT_EQ(StepsToChange(governor, 100 * kMega), 0);
}

TEST(MemoryGovernor, LearnsFromStepsThatTookMoreThanTheProbesSaid) {
  MemoryGovernor governor = Settled(50);
  EXPECT_EQ(StepsToChange(governor, 900 * kMega), 10);
  EXPECT_EQ(governor.micro_batch(), 40);
  EXPECT_EQ(StepsToChange(governor, 600 * kMega), 10);
  EXPECT_EQ(governor.micro_batch(), 45) << "900 MB at 50 is 850 MB at 45";
}

TEST(MemoryGovernor, SmallPassesSayNothingAboutLargerOnes) {
  MemoryGovernor governor = Settled(50);
  ASSERT_EQ(StepsToChange(governor, 100 * kMega, /*pressure=*/true), 10);
  for (int step = 0; step < 50; ++step) {
    EXPECT_FALSE(governor.Observe({.size = 3, .peak = 40 * kMega}));
  }
}

TEST(MemoryGovernor, NeverReturnsToASizeThatHasFailed) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SplitMix64 random(seed);
    MemoryGovernor governor = Settled(40);
    int64_t failed = 1000;
    for (int step = 0; step < 400; ++step) {
      ASSERT_LT(governor.micro_batch(), failed) << "seed " << seed;
      ASSERT_GE(governor.micro_batch(), 1);
      if (governor.micro_batch() > 1 && random.Below(100) == 0) {
        failed = governor.micro_batch();
        governor.Failed(failed);
        EXPECT_EQ(governor.micro_batch(), failed / 2);
        continue;
      }
      const bool pressure = random.Below(30) == 0;
      governor.Observe({.size = governor.micro_batch(),
                        .peak = static_cast<int64_t>(random.Below(1000)) * kMega,
                        .pressure = pressure});
    }
  }
}

TEST(MemoryGovernor, AFixedSizeThatFailedIsHalvedAndStays) {
  MemoryGovernor governor({.min = 8, .max = 8, .limit_bytes = 1000});
  governor.Failed(8);
  EXPECT_EQ(governor.micro_batch(), 4);
  EXPECT_EQ(StepsToChange(governor, 1), 0);
}

TEST(MemoryGovernor, AProbeThatFailsLeavesTheLargestThatFits) {
  MemoryGovernor governor({.min = 1, .max = 64, .limit_bytes = 1000 * kMega});
  governor.Probed(1, 0, 100 * kMega);
  ASSERT_EQ(governor.NextProbe(), 2);
  governor.Probed(2, 0, 110 * kMega);
  ASSERT_EQ(governor.NextProbe(), 8);
  governor.Failed(8);
  EXPECT_EQ(governor.NextProbe(), std::nullopt);
  EXPECT_EQ(governor.micro_batch(), 2);
  while (StepsToChange(governor, 100 * kMega) > 0) continue;
  EXPECT_EQ(governor.micro_batch(), 7) << "below the one that failed";
}

}  // namespace
}  // namespace espalier
