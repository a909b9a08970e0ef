#include "coordinator/core/restarts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace espalier {

absl::Duration Backoff(const v1::HealthSpec& health, size_t faults_in_window) {
  absl::Duration wait = absl::Seconds(health.restart_backoff_seconds());
  for (size_t i = 1; i < faults_in_window && wait < kLongestBackoff; ++i) wait *= 2;
  return std::min(wait, kLongestBackoff);
}

void CountRestart(Context& context, Job& job, const std::string& reason) {
  JobRecord& record = job.record;
  const v1::HealthSpec& health = record.spec.health();
  const absl::Duration window = absl::Seconds(health.restart_window_seconds());
  auto& faults = record.faults;
  faults.erase(std::remove_if(faults.begin(), faults.end(),
                              [&](absl::Time at) { return context.now() - at > window; }),
               faults.end());
  if (faults.size() >= static_cast<size_t>(health.max_restarts())) {
    record.verdict = Verdict::kFail;
    record.verdict_reason =
        absl::StrCat(reason, "; no restart is left (health.max_restarts = ", health.max_restarts(),
                     " within ", absl::FormatDuration(window), ")");
    context.Enter(job, JobState::kRecovering, record.verdict_reason);
    return;
  }
  faults.push_back(context.now());
  ++record.restarts;
  const absl::Duration wait = Backoff(health, faults.size());
  record.retry_at = context.now() + wait;
  context.Enter(job, JobState::kRecovering,
                absl::StrCat(reason, "; restart ", faults.size(), " of ", health.max_restarts(),
                             " after ", absl::FormatDuration(wait)));
}

}  // namespace espalier
