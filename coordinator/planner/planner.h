// The planner: the shard plan that fits the speed of the ranks, and whether it is worth while to
// move to it. README.md has the rules. Used by coordinator/core, coordinator/service and
// tests/bench. Pure: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "coordinator/planner/shard_plan.h"
#include "coordinator/planner/speed_model.h"
#include "coordinator/planner/split.h"

namespace espalier {

// What is known of the rank's node before and after it was measured.
struct PlannedRank {
  NodeName node;
  // Of the cluster file or the node's profile; what is not above 0 counts as 1.
  double relative_speed = 1;
  // Not measured: nothing is known but relative_speed.
  SpeedModel speed;
  // Of the batch, what it gets at most.
  double largest_share = 1;
  // Of what it would get otherwise, while it is spared, and why it is ("runs on its battery").
  double part = 1;
  std::string spared = {};
};

// The ranks as SplitBatch takes them. One that was not measured is taken to be as much faster than
// the measured ones as its relative speed is larger; when none was, a sequence takes the slowest
// rank of speed 1 one second, which only compares them. Every rank gets a sequence where there are
// as many, and none more than its limits allow: but what has no place within all limits, those that
// are spared share beyond theirs, and what has none there either, all do.
std::vector<Runner> RunnersOf(int32_t batch, absl::Span<const PlannedRank> ranks);

// "macbook runs on its battery: 0.5 of its share", for people; empty: nothing limits the ranks.
// Says when limits could not be kept.
std::string LimitsText(int32_t batch, absl::Span<const PlannedRank> ranks);

// The plan of a new generation: sequences and reason.
ShardPlan FirstPlan(int32_t batch, absl::Span<const PlannedRank> ranks);

// Predicted for a plan.
struct Outlook {
  // The step of the plan, and of the best one there is.
  double seconds = 0;
  double best_seconds = 0;
  std::vector<int32_t> best;
  // How much later than the mean the latest rank finishes, as a fraction of the mean.
  double imbalance = 0;
  // How much later the latest finishes than the mean of the others, as a fraction of that.
  double lateness = 0;
  // A rank has clearly more than its limits allow.
  bool over_limit = false;
  // seconds / best_seconds - 1, and how much of it may be noise.
  double gain = 0;
  double noise = 0;
};
Outlook Predict(absl::Span<const int32_t> sequences, absl::Span<const PlannedRank> ranks);

// What a generation remembers between two looks.
struct PlanWatch {
  // The newest step that every rank had reported.
  std::optional<Step> looked_at;
  // Looks in a row that promised a gain.
  int gains = 0;
  // Looks since the last move, and moves that followed each other closely.
  int64_t looks = 0;
  int moves = 0;
};

// Called once for each step when all ranks have reported it. Sequences and reason of the plan to
// move to; absent: the present one is good enough, or a rank was not measured yet. A limit that is
// passed is no matter of gain: it moves at once.
std::optional<ShardPlan> Reconsider(absl::Span<const int32_t> sequences,
                                    absl::Span<const PlannedRank> ranks, PlanWatch& watch);

// "studio 22, macbook 10", for people.
std::string SharesText(absl::Span<const int32_t> sequences, absl::Span<const PlannedRank> ranks);

}  // namespace espalier
