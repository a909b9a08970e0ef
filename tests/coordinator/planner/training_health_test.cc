#include "coordinator/planner/training_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "common/base/random.h"
#include "coordinator/planner/figures.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::HealthSpec Limits() {
  v1::HealthSpec limits;
  limits.set_warn_loss_spread(1);
  limits.set_warn_loss_rise(0.05);
  limits.set_warn_norm_spike(10);
  limits.set_warn_slow_down(0.25);
  return limits;
}

// Steps that vary as those of a run do, changed by `change`; what was said of them.
struct HealthyRun {
  TrainingHealth health;
  v1::HealthSpec limits = Limits();
  SplitMix64 random{5};
  int64_t next = 0;

  double Noise(double size) { return size * (2 * random.Uniform() - 1); }
  std::vector<std::string> Steps(int count, const std::function<void(StepFigures&)>& change) {
    std::vector<std::string> said;
    for (int i = 0; i < count; ++i) {
      StepFigures step{.step = Step(next++),
                       .loss = 3 + Noise(0.2),
                       .gradient_norm = 1 + Noise(0.5),
                       .step_seconds = 1 + Noise(0.1)};
      change(step);
      for (std::string& text : health.Add(limits, step)) said.push_back(std::move(text));
    }
    return said;
  }
  std::vector<std::string> Calm(int count) {
    return Steps(count, [](StepFigures&) {});
  }
};

TEST(TrainingHealth, ARunThatIsWellSaysNothing) {
  HealthyRun run;
  EXPECT_THAT(run.Calm(100'000), IsEmpty());
}

TEST(TrainingHealth, ASteepBeginningIsNoSpread) {
  HealthyRun run;
  EXPECT_THAT(run.Steps(400,
                        [&](StepFigures& step) {
                          step.loss += 8 * std::exp(-static_cast<double>(run.next) / 10);
                        }),
              IsEmpty());
}

TEST(TrainingHealth, AStallOfOneStepIsNoSlowMachine) {
  for (const double usual : {0.015, 0.1, 1.0, 3.0, 10.0}) {
    HealthyRun run;
    const auto quick = [&](StepFigures& step) { step.step_seconds *= usual; };
    run.Steps(1000, quick);
    EXPECT_THAT(run.Steps(1, [](StepFigures& step) { step.step_seconds = 200; }), IsEmpty());
    EXPECT_THAT(run.Steps(1000, quick), IsEmpty()) << usual;
  }
}

TEST(TrainingHealth, StepsOfVeryUnequalLengthAreUsual) {
  HealthyRun run;
  EXPECT_THAT(run.Steps(30'000,
                        [&](StepFigures& step) {
                          step.step_seconds = run.random.Uniform() < 0.05 ? 0.075 : 0.015;
                        }),
              IsEmpty());
}

TEST(TrainingHealth, ALossThatFallsFastAtTheBeginningIsWell) {
  HealthyRun run;
  EXPECT_THAT(run.Steps(1000,
                        [&](StepFigures& step) {
                          step.loss += 8 * std::exp(-static_cast<double>(run.next) / 50);
                        }),
              IsEmpty());
}

TEST(TrainingHealth, AWarningOfAnEarlierEspalierdHoldsUntilTheRuleWasKept) {
  HealthyRun run;
  run.health.TakeUp({"loss_rise", "a rule of another version"});
  EXPECT_TRUE(run.health.holds(TrainingHealth::kLossRise));
  EXPECT_THAT(run.health.warnings(), ElementsAre("loss_rise"));
  EXPECT_THAT(run.Calm(99), IsEmpty());
  EXPECT_THAT(run.Calm(1), ElementsAre(HasSubstr("(loss_rise) is over")));
  EXPECT_THAT(run.health.warnings(), IsEmpty());
}

TEST(TrainingHealth, LossesThatSpreadAreToldOnceAndWhenItIsOver) {
  HealthyRun run;
  run.Calm(200);
  const auto wild = [](StepFigures& step) { step.loss += step.step.value() % 2 == 0 ? 3 : -2; };
  EXPECT_THAT(run.Steps(150, wild),
              ElementsAre(AllOf(HasSubstr("warning: losses spread"), HasSubstr("last 100 steps"))));
  EXPECT_TRUE(run.health.holds(TrainingHealth::kLossSpread));
  EXPECT_THAT(run.Calm(300), ElementsAre("the warning (loss_spread) is over, for 100 steps"));
  EXPECT_FALSE(run.health.holds(TrainingHealth::kLossSpread));
}

TEST(TrainingHealth, ALossThatRisesIsTold) {
  HealthyRun run;
  run.Calm(200);
  const int64_t begin = run.next;
  const auto rising = [&](StepFigures& step) {
    step.loss += 0.003 * static_cast<double>(step.step.value() - begin);
  };
  EXPECT_THAT(run.Steps(150, rising), ElementsAre(HasSubstr("warning: the loss rises: by 0.")));
}

TEST(TrainingHealth, ALeapOfTheGradientIsToldWithItsSize) {
  HealthyRun run;
  run.Calm(200);
  EXPECT_THAT(run.Steps(1, [](StepFigures& step) { step.gradient_norm = 40; }),
              ElementsAre(HasSubstr("a gradient of norm 40, where the median of the last steps")));
  EXPECT_THAT(run.Calm(50), IsEmpty());
  EXPECT_THAT(run.Steps(1, [](StepFigures& step) { step.gradient_norm = 40; }), IsEmpty())
      << "told of already";
}

TEST(TrainingHealth, AMachineThatGetsHotIsTold) {
  HealthyRun run;
  run.Calm(300);
  EXPECT_THAT(run.Steps(10, [](StepFigures& step) { step.step_seconds *= 1.2; }), IsEmpty());
  EXPECT_THAT(run.Steps(100, [](StepFigures& step) { step.step_seconds *= 1.6; }),
              ElementsAre(HasSubstr("warning: steps are slow: 1.")));
  EXPECT_TRUE(run.health.holds(TrainingHealth::kSlowDown));
}

TEST(TrainingHealth, TheFirstStepOfAGenerationMaySearch) {
  HealthyRun run;
  run.Steps(1, [](StepFigures& step) { step.step_seconds = 500; });
  EXPECT_THAT(run.Calm(500), IsEmpty());
}

TEST(TrainingHealth, AShortStepSaysLittleOfTheSpeed) {
  HealthyRun run;
  const auto quick = [](StepFigures& step) { step.step_seconds /= 100; };
  run.Steps(3000, quick);
  EXPECT_THAT(run.Steps(30,
                        [&](StepFigures& step) {
                          quick(step);
                          step.step_seconds *= 3;
                        }),
              IsEmpty());
}

TEST(TrainingHealth, SkippedStepsAndLossesThatAreNotFiniteAreNotLookedAt) {
  HealthyRun run;
  run.Calm(200);
  EXPECT_THAT(run.Steps(10,
                        [](StepFigures& step) {
                          step.skipped = true;
                          step.loss = std::numeric_limits<double>::quiet_NaN();
                          step.gradient_norm = std::numeric_limits<double>::infinity();
                        }),
              IsEmpty());
  EXPECT_THAT(run.Calm(200), IsEmpty());
}

TEST(TrainingHealth, WhatIsSetToZeroIsNotWatched) {
  HealthyRun run;
  run.limits = v1::HealthSpec();
  run.Calm(300);
  EXPECT_THAT(run.Steps(300,
                        [&](StepFigures& step) {
                          step.loss += run.Noise(50);
                          step.gradient_norm *= 1000;
                          step.step_seconds *= 10;
                        }),
              IsEmpty());
}

TEST(TrainingHealth, WhatIsWrongIsOverWithTheGeneration) {
  HealthyRun calm, run;
  calm.Calm(200);
  EXPECT_THAT(calm.health.End(), IsEmpty());
  run.Calm(200);
  run.Steps(1, [](StepFigures& step) { step.gradient_norm = 50; });
  EXPECT_THAT(run.health.End(),
              ElementsAre("the warning (norm_spike) is over with the generation"));
  EXPECT_THAT(run.health.End(), IsEmpty());
}

}  // namespace
}  // namespace espalier
