// The learning rate follows the closed form of every schedule.
#include "worker/optimizer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace espalier {
namespace {

v1::ScheduleSpec Spec(v1::ScheduleKind kind, int64_t warmup) {
  v1::ScheduleSpec spec;
  spec.set_kind(kind);
  spec.set_learning_rate(2);
  spec.set_warmup_steps(warmup);
  spec.set_final_ratio(0.1);
  return spec;
}

struct Case {
  const char* name;
  v1::ScheduleKind kind;
  int64_t warmup;
  int64_t steps;
  int64_t step;
  double rate;
};

constexpr auto kConstant = v1::SCHEDULE_KIND_CONSTANT;
constexpr auto kLinear = v1::SCHEDULE_KIND_LINEAR;
constexpr auto kCosine = v1::SCHEDULE_KIND_COSINE;

TEST(Schedule, FollowsTheClosedForm) {
  const Case cases[] = {
      {"constant at the first step", kConstant, 0, 100, 0, 2},
      {"constant at the last step", kConstant, 0, 100, 99, 2},
      {"warm-up begins above zero", kConstant, 10, 100, 0, 0.2},
      {"warm-up in the middle", kCosine, 10, 100, 4, 1},
      {"warm-up ends at the peak", kLinear, 10, 100, 9, 2},
      {"the curve begins at the peak", kCosine, 10, 100, 10, 2},
      {"linear half way", kLinear, 10, 111, 60, 2 * (0.1 + 0.9 * 0.5)},
      {"linear ends at the final ratio", kLinear, 10, 111, 110, 0.2},
      {"cosine after a quarter", kCosine, 0, 101, 25, 2 * (0.1 + 0.45 * (1 + std::sqrt(0.5)))},
      {"cosine half way", kCosine, 0, 101, 50, 2 * (0.1 + 0.45)},
      {"cosine ends at the final ratio", kCosine, 0, 101, 100, 0.2},
      {"beyond the end it stays there", kCosine, 0, 101, 5000, 0.2},
      {"a run of one step", kCosine, 0, 1, 0, 2},
      {"warm-up longer than the run", kLinear, 200, 100, 99, 1},
  };
  for (const Case& c : cases) {
    EXPECT_NEAR(LearningRate(Spec(c.kind, c.warmup), c.steps, Step(c.step)), c.rate, 1e-12)
        << c.name;
  }
}

TEST(Schedule, NeverRisesAfterWarmUp) {
  for (const v1::ScheduleKind kind : {kConstant, kLinear, kCosine}) {
    for (int64_t s = 7; s < 120; ++s) {
      EXPECT_LE(LearningRate(Spec(kind, 7), 100, Step(s + 1)),
                LearningRate(Spec(kind, 7), 100, Step(s)));
    }
  }
}

}  // namespace
}  // namespace espalier
