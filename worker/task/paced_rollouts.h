// PacedRollouts: what is sampled in orders that follow each other, of which each takes about as
// long as is wanted: that much is lost when the ranks are called away from one, or a run is killed
// in it. The first is small, since nobody knows what it takes, and whoever is ended every few
// minutes would end none that is not; the next ones grow. Used by rft_practice.h, grpo_practice.h
// and wordle_games.h. Compute thread.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "espalier/v1/job.pb.h"
#include "worker/rollout/rollout.h"
#include "worker/sync/together.h"

namespace espalier {

// How many completions an order may have, and how long it should take.
struct OrderBounds {
  int64_t least = 1, most = 1;
  double wanted_seconds = 60;
};
// After one of `size` at most, whose completions took so long: twice as many at most.
int64_t NextOrderSize(const OrderBounds& bounds, int64_t size, int64_t completions, double seconds);

class PacedRollouts final : public RolloutSource {
 public:
  // `source` outlives it.
  PacedRollouts(const RankContext& context, const v1::RolloutSpec& spec, RolloutSource& source);

  // Completions of the next order; the same on all ranks.
  int64_t order_size() const { return order_size_; }
  // What is done after each order takes so many seconds: orders take the longer.
  void AllowFor(double seconds_after);

  // The seconds of the figures are rank 0's, by which all go.
  absl::StatusOr<std::optional<Rollouts>> Sample(const Decoder& decoder, const RolloutOrder& order,
                                                 const RolloutAround& around) override;

 private:
  RankContext context_;
  RolloutSource& source_;
  OrderBounds bounds_;
  int64_t order_size_ = 0;
};

}  // namespace espalier
