#include "worker/optimizer/schedule.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace espalier {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Falls from 1 to 0 while `progress` goes from 0 to 1.
double Curve(v1::ScheduleKind kind, double progress) {
  if (kind == v1::SCHEDULE_KIND_LINEAR) return 1 - progress;
  if (kind == v1::SCHEDULE_KIND_COSINE) return 0.5 * (1 + std::cos(kPi * progress));
  ESPALIER_CHECK(kind == v1::SCHEDULE_KIND_CONSTANT, "the schedule's kind was not filled in");
  return 1;
}

}  // namespace

double LearningRate(const v1::ScheduleSpec& spec, int64_t total_steps, Step step) {
  const int64_t s = step.value(), warmup = spec.warmup_steps();
  if (s < warmup) {
    return spec.learning_rate() * static_cast<double>(s + 1) / static_cast<double>(warmup);
  }
  const double length = static_cast<double>(std::max<int64_t>(1, total_steps - 1 - warmup));
  const double progress = std::min(1.0, static_cast<double>(s - warmup) / length);
  const double floor = spec.final_ratio();
  return spec.learning_rate() * (floor + (1 - floor) * Curve(spec.kind(), progress));
}

}  // namespace espalier
