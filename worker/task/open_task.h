// OpenTask: the tasks by their names, and what people are told that they count. A new task comes in
// here. Used by worker/job_inputs.cc, worker/run.cc and worker/train/reporter.h. Compute thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/task/task.h"

namespace espalier {

// That of train.task. FAILED_PRECONDITION when the data hold not one sample, or were prepared for
// another task; INVALID_ARGUMENT for a task that this worker does not know.
absl::StatusOr<std::unique_ptr<Task>> OpenTask(const v1::JobSpec& spec, const Dataset& dataset);

// What reports of a task count where they say tokens, and what its validation loss is.
struct TaskUnits {
  absl::string_view of_steps = "tokens";
  absl::string_view of_evaluations = "tokens";
  absl::string_view loss = "nats per token";
};
TaskUnits UnitsOf(v1::Task task);

}  // namespace espalier
