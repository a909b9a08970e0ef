// OpenTask: the tasks by their names. A new task comes in here. Used by worker/job_inputs.cc.
// Compute thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/task/task.h"

namespace espalier {

// That of train.task. FAILED_PRECONDITION when the data hold not one sample, or were prepared for
// another task; INVALID_ARGUMENT for a task that this worker does not know.
absl::StatusOr<std::unique_ptr<Task>> OpenTask(const v1::JobSpec& spec, const Dataset& dataset);

}  // namespace espalier
