#include "coordinator/core/retention.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace espalier {
namespace {

constexpr absl::Duration kBetweenLooks = absl::Hours(1);

}  // namespace

void ForgetOldJobs(Context& context, const RetentionPolicy& policy) {
  ClusterState& state = context.state();
  if (context.now() < state.next_retention) return;
  state.next_retention = context.now() + kBetweenLooks;
  std::vector<std::pair<absl::Time, JobId>> ended;
  for (const auto& [id, job] : state.jobs) {
    const auto& ranks = job.world.ranks;
    const bool heard = std::any_of(ranks.begin(), ranks.end(),
                                   [](const TrackedRank& rank) { return rank.stream.has_value(); });
    if (IsFinal(job.record.state) && !heard) ended.emplace_back(job.record.state_since, id);
  }
  std::sort(ended.rbegin(), ended.rend());  // newest first
  for (size_t i = policy.always; i < ended.size(); ++i) {
    const auto& [since, id] = ended[i];
    if (i < policy.most && context.now() - since <= policy.age) continue;
    state.jobs.erase(id);
    context.Do(ForgetJob{id});
  }
}

}  // namespace espalier
