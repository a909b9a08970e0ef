// OpenTrm: the task `trm` of a job: its puzzles or its text, looked through before the first step.
// Used by worker/task/open_task.cc. Any thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/task/task.h"

namespace espalier {

// Puzzles on prompts with completions, text on anything else. INVALID_ARGUMENT names a puzzle that
// is longer than its row, or whose answer is not as long as itself.
absl::StatusOr<std::unique_ptr<Task>> OpenTrm(const v1::JobSpec& spec, const Dataset& dataset);

}  // namespace espalier
