#include "worker/train/boundary.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/sync/together.h"

namespace espalier {

absl::StatusOr<Boundary> BoundaryFromDirective(const v1::Directive& directive, Step step) {
  Boundary boundary;
  boundary.step = step.value();
  boundary.directive = directive.number();
  boundary.checkpoint_request = directive.checkpoint_request();
  // A coordinator that has said nothing yet wants what it launched us for.
  boundary.run_state = directive.run_state() == v1::RUN_STATE_UNSPECIFIED ? v1::RUN_STATE_RUN
                                                                          : directive.run_state();
  boundary.checkpoint_before_stop = directive.checkpoint_before_stop() ? 1 : 0;
  const v1::ShardPlan& plan = directive.plan();
  if (plan.sequences_size() > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat("plan ", plan.number(), " names ",
                                                   plan.sequences_size(), " ranks; at most ",
                                                   kMaxRanks, " are allowed"));
  }
  boundary.plan = plan.number();
  boundary.plan_from_step = plan.from_step();
  boundary.plan_ranks = plan.sequences_size();
  std::copy(plan.sequences().begin(), plan.sequences().end(), boundary.sequences.begin());
  return boundary;
}

absl::StatusOr<Boundary> MeetAtBoundary(Collective& collective, const Boundary& mine) {
  Boundary boundary = mine;
  RETURN_IF_ERROR(BroadcastValue(collective, boundary, Rank(0)));
  if (boundary.step != mine.step) {
    return absl::InternalError(absl::StrCat("rank ", collective.rank().value(), " is at step ",
                                            mine.step, " and rank 0 at step ", boundary.step));
  }
  return boundary;
}

absl::StatusOr<std::vector<int64_t>> SequencesOfPlan(const Boundary& boundary, int world_size,
                                                     int64_t global_batch) {
  std::vector<int64_t> sequences(boundary.sequences.begin(),
                                 boundary.sequences.begin() + boundary.plan_ranks);
  const int64_t sum = std::accumulate(sequences.begin(), sequences.end(), int64_t{0});
  const bool negative =
      std::any_of(sequences.begin(), sequences.end(), [](int64_t n) { return n < 0; });
  if (boundary.plan_ranks != world_size || sum != global_batch || negative) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan ", boundary.plan, " gives [", absl::StrJoin(sequences, ", "),
                     "] sequences; it must give ", world_size, " ranks ", global_batch, " in all"));
  }
  return sequences;
}

}  // namespace espalier
