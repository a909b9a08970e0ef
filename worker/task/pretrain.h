// The task `pretrain`: windows of text, every token of which counts. Used by task.cc. Compute
// thread.
#pragma once

#include "worker/task/task.h"

namespace espalier {

absl::StatusOr<std::unique_ptr<Task>> OpenPretrain(const v1::JobSpec& spec, const Dataset& dataset);

}  // namespace espalier
