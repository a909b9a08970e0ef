// The task `sft`: supervised fine-tuning on prompts and completions. A sample is one of each; the
// tokens of the completion and its end count, those of the prompt are only read. Used by task.cc.
// Compute thread.
#pragma once

#include "worker/task/task.h"

namespace espalier {

absl::StatusOr<std::unique_ptr<Task>> OpenSft(const v1::JobSpec& spec, const Dataset& dataset);

}  // namespace espalier
