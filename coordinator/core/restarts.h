// Restarts: how many a job may have, and how long it waits before each. Used by the core's
// handlers. One thread.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "coordinator/core/context.h"

namespace espalier {

inline constexpr absl::Duration kLongestBackoff = absl::Seconds(60);

// health.restart_backoff_seconds before the first restart of a window, doubled with each further
// one, up to kLongestBackoff.
absl::Duration Backoff(const v1::HealthSpec& health, size_t faults_in_window);

// Books a fault after which the job is started again: enters RECOVERING with the time of the next
// try; or, when health.max_restarts within the window are used up, with the verdict that it failed.
void CountRestart(Context& context, Job& job, const std::string& reason);

}  // namespace espalier
