// Schedule: the learning rate of a step as a function of the job alone. Used by
// worker/train/step_boundary.cc. Pure: any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/base/check.h"
#include "common/base/ids.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

namespace internal {
// Falls from 1 to 0 while `progress` goes from 0 to 1.
inline double Curve(v1::ScheduleKind kind, double progress) {
  if (kind == v1::SCHEDULE_KIND_LINEAR) return 1 - progress;
  if (kind == v1::SCHEDULE_KIND_COSINE)
    return 0.5 * (1 + std::cos(3.14159265358979323846 * progress));
  ESPALIER_CHECK(kind == v1::SCHEDULE_KIND_CONSTANT, "the schedule's kind was not filled in");
  return 1;
}
}  // namespace internal

// With w warm-up steps, peak rate r, final ratio f and n steps in all: step s < w gets
// r (s + 1) / w. From there on p = (s - w) / (n - 1 - w) runs from 0 to 1 (it stays at 1 beyond the
// last step) and the rate is r (f + (1 - f) c(p)), where c is 1 (constant), 1 - p (linear) or
// (1 + cos(pi p)) / 2 (cosine; Loshchilov and Hutter 2017, eq. 5).
inline double LearningRate(const v1::ScheduleSpec& spec, int64_t total_steps, Step step) {
  const int64_t s = step.value(), warmup = spec.warmup_steps();
  if (s < warmup) {
    return spec.learning_rate() * static_cast<double>(s + 1) / static_cast<double>(warmup);
  }
  const double length = static_cast<double>(std::max<int64_t>(1, total_steps - 1 - warmup));
  const double progress = std::min(1.0, static_cast<double>(s - warmup) / length);
  const double floor = spec.final_ratio();
  return spec.learning_rate() * (floor + (1 - floor) * internal::Curve(spec.kind(), progress));
}

}  // namespace espalier
