#include "coordinator/planner/speed_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace espalier {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

SpeedModel After(int steps, int64_t sequences, double seconds) {
  SpeedModel model;
  for (int i = 0; i < steps; ++i) model.Add(sequences, seconds);
  return model;
}

TEST(SpeedModel, OneStepIsEnoughToBegin) {
  SpeedModel model;
  EXPECT_FALSE(model.measured());
  model.Add(8, 2.0);
  ASSERT_TRUE(model.measured());
  EXPECT_DOUBLE_EQ(model.Time().constant, 0);
  EXPECT_DOUBLE_EQ(model.Time().per_sequence, 0.25);
}

// Whatever numbers of sequences it has seen, a constant and a time for each of them are found.
TEST(SpeedModel, FindsTheLineOfAMachine) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const double constant = std::uniform_real_distribution<>(0, 2)(random);
    const double slope = std::exp(std::uniform_real_distribution<>(-7, 2)(random));
    SpeedModel model;
    for (int i = 0; i < 60; ++i) {
      const int64_t n = std::uniform_int_distribution<>(4, 28)(random);
      model.Add(n, constant + slope * static_cast<double>(n));
    }
    for (const int64_t n : {4, 16, 28}) {
      const double truth = constant + slope * static_cast<double>(n);
      EXPECT_NEAR(model.Time().Seconds(n), truth, 0.03 * truth) << constant << " + " << slope;
    }
  }
}

TEST(SpeedModel, ASingleSlowStepDoesNotMoveIt) {
  SpeedModel model = After(10, 8, 2.0);
  model.Add(8, 20.0);
  EXPECT_DOUBLE_EQ(model.Time().Seconds(8), 2.0);
  model.Add(8, 2.0);
  model.Add(8, 0.1);
  EXPECT_NEAR(model.Time().Seconds(8), 2.0, 1e-9);
}

TEST(SpeedModel, ATurnIsFollowedWithinTwoSteps) {
  for (const double factor : {0.1, 0.5, 0.7, 1.4, 2.0, 10.0}) {
    SpeedModel model = After(100, 8, 2.0);
    model.Add(8, 2.0 * factor);
    model.Add(8, 2.0 * factor);
    EXPECT_NEAR(model.Time().Seconds(8), 2.0 * factor, 0.02 * factor) << factor;
  }
}

TEST(SpeedModel, ATurnKeepsTheShapeOfTheLine) {
  SpeedModel model;
  for (int i = 0; i < 40; ++i) model.Add(i % 2 == 0 ? 8 : 24, i % 2 == 0 ? 1.8 : 3.4);
  for (int i = 0; i < 2; ++i) model.Add(8, 3.6);
  EXPECT_NEAR(model.Time().Seconds(24), 6.8, 0.3);
}

// While all steps had as many sequences, a constant cannot be told from a slope: another number
// teaches it at once, and is no odd step.
TEST(SpeedModel, AnotherNumberOfSequencesTeachesTheConstant) {
  SpeedModel model = After(30, 16, 1.0 + 16 * 0.05);
  model.Add(4, 1.0 + 4 * 0.05);
  model.Add(4, 1.0 + 4 * 0.05);
  EXPECT_NEAR(model.Time().Seconds(4), 1.2, 0.06);
  EXPECT_NEAR(model.Time().Seconds(16), 1.8, 0.06);
}

TEST(SpeedModel, NoiseIsAveragedAndKnown) {
  std::mt19937_64 random(2);
  std::uniform_real_distribution<> noise(0.95, 1.05);
  SpeedModel model;
  for (int i = 0; i < 300; ++i) {
    model.Add(16, 4.0 * noise(random));
    if (i < 20) continue;
    EXPECT_NEAR(model.Time().Seconds(16), 4.0, 4 * 4.0 * model.Uncertainty()) << i;
    EXPECT_LT(model.Uncertainty(), 0.02);
  }
}

// Nothing that it is told, in whatever order, makes it lose its bounds.
TEST(SpeedModel, AlwaysHasASlopeAboveZeroAndNoNegativeConstant) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    SpeedModel model;
    for (int i = 0; i < 100; ++i) {
      const int64_t n = std::uniform_int_distribution<>(-1, 1 << 12)(random);
      const double t = std::exp(std::uniform_real_distribution<>(-20, 22)(random));
      model.Add(n, i % 17 == 0 ? kNan : i % 13 == 0 ? -t : i % 11 == 0 ? kInfinity : t);
      if (!model.measured()) continue;
      const StepTime time = model.Time();
      ASSERT_TRUE(std::isfinite(time.constant) && std::isfinite(time.per_sequence));
      ASSERT_GE(time.constant, 0);
      ASSERT_GT(time.per_sequence, 0);
      ASSERT_TRUE(std::isfinite(model.Uncertainty()));
    }
  }
}

TEST(SpeedModel, GoesOnFromItsSums) {
  SpeedModel model;
  for (int i = 0; i < 20; ++i) model.Add(4 + i % 5, 1 + 0.5 * (4 + i % 5));
  SpeedModel again(model.sums());
  again.Add(6, 4.0);
  model.Add(6, 4.0);
  EXPECT_DOUBLE_EQ(again.Time().constant, model.Time().constant);
  EXPECT_DOUBLE_EQ(again.Time().per_sequence, model.Time().per_sequence);
}

TEST(SpeedModel, DamagedSumsAreNone) {
  const SpeedSums sound = After(5, 8, 2.0).sums();
  EXPECT_TRUE(SpeedModel(sound).measured());
  for (double SpeedSums::*field : {&SpeedSums::weight, &SpeedSums::n, &SpeedSums::nn, &SpeedSums::t,
                                   &SpeedSums::nt, &SpeedSums::deviation}) {
    for (const double value : {kNan, kInfinity, -1.0}) {
      SpeedSums damaged = sound;
      damaged.*field = value;
      EXPECT_FALSE(SpeedModel(damaged).measured()) << value;
    }
  }
  SpeedSums none = sound;
  none.measurements = 0;
  EXPECT_FALSE(SpeedModel(none).measured());
}

}  // namespace
}  // namespace espalier
