// Schedule: the learning rate of a step as a function of the job alone. Used by
// worker/train/step_boundary.cc. Pure: any thread.
#pragma once

#include "common/base/ids.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

// With w warm-up steps, peak rate r, final ratio f and n steps in all: step s < w gets
// r (s + 1) / w. From there on p = (s - w) / (n - 1 - w) runs from 0 to 1 (it stays at 1 beyond the
// last step) and the rate is r (f + (1 - f) c(p)), where c is 1 (constant), 1 - p (linear) or
// (1 + cos(pi p)) / 2 (cosine; Loshchilov and Hutter 2017, eq. 5).
double LearningRate(const v1::ScheduleSpec& spec, int64_t total_steps, Step step);

}  // namespace espalier
