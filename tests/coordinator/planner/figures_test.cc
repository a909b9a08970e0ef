// Speed and time to go, from the steps that ranks report.
#include "coordinator/planner/figures.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

StepFigures StepOf(int64_t step, double seconds = 0.5) {
  return {.step = Step(step), .loss = 2, .tokens = 1000, .step_seconds = seconds};
}

TEST(Figures, UnknownBeforeTheFirstStep) {
  const Figures figures;
  EXPECT_EQ(figures.tokens_per_second(), 0);
  EXPECT_FALSE(figures.EtaSeconds(Step(0), Step(10)).has_value());
}

TEST(Figures, ASteadySpeedIsThatSpeed) {
  Figures figures;
  for (int64_t step = 0; step < 50; ++step) figures.Add(StepOf(step));
  EXPECT_DOUBLE_EQ(figures.tokens_per_second(), 2000);
  EXPECT_DOUBLE_EQ(*figures.EtaSeconds(Step(50), Step(60)), 5);
  EXPECT_DOUBLE_EQ(*figures.EtaSeconds(Step(70), Step(60)), 0);
}

// Else a job of grpo would be told to end many times sooner than it does.
TEST(Figures, WhatIsSampledAndJudgedBeforeAStepIsOfItsTime) {
  Figures figures;
  for (int64_t step = 0; step < 50; ++step) {
    figures.AddPractice(1);
    StepFigures told = StepOf(step);
    told.practice_seconds = 0.5;
    figures.Add(told);
  }
  EXPECT_DOUBLE_EQ(figures.tokens_per_second(), 500);
  EXPECT_DOUBLE_EQ(*figures.EtaSeconds(Step(50), Step(60)), 20);
}

TEST(Figures, ASlowStepFadesAway) {
  Figures figures;
  for (int64_t step = 0; step < 20; ++step) figures.Add(StepOf(step));
  figures.Add(StepOf(20, 50));
  EXPECT_LT(figures.tokens_per_second(), 1000);
  for (int64_t step = 21; step < 150; ++step) figures.Add(StepOf(step));
  EXPECT_NEAR(figures.tokens_per_second(), 2000, 1);
}

}  // namespace
}  // namespace espalier
