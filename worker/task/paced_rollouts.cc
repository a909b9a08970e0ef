#include "worker/task/paced_rollouts.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "worker/rollout/rollout_batch.h"

namespace espalier {
namespace {

// Orders have completions for all rows of all ranks at most so often, where that does not take too
// long, so that few wait for the last ones.
constexpr int64_t kFillings = 8;
constexpr int64_t kLeastCompletions = 8;
constexpr double kOrderSeconds = 60;
// What is done after an order takes this part of its time at most.
constexpr double kShareAfter = 0.05;

}  // namespace

int64_t NextOrderSize(const OrderBounds& bounds, int64_t size, int64_t completions,
                      double seconds) {
  const double in_time = static_cast<double>(completions) * bounds.wanted_seconds / seconds;
  const auto most = static_cast<double>(std::min(bounds.most, 2 * size));
  const auto next = seconds > 0 ? std::min(most, in_time) : most;
  return std::max(bounds.least, static_cast<int64_t>(next));
}

PacedRollouts::PacedRollouts(const RankContext& context, const v1::RolloutSpec& spec,
                             RolloutSource& source)
    : context_(context), source_(source) {
  const int64_t rows = spec.rows() > 0 ? spec.rows() : kRolloutRows;
  const int64_t at_once = rows * context.collective.world_size();
  bounds_ = {.least = kLeastCompletions,
             .most = std::max(kLeastCompletions, at_once * kFillings),
             .wanted_seconds = kOrderSeconds};
  order_size_ = kLeastCompletions;
}

void PacedRollouts::AllowFor(double seconds_after) {
  bounds_.wanted_seconds = std::max(kOrderSeconds, seconds_after / kShareAfter);
}

absl::StatusOr<std::optional<Rollouts>> PacedRollouts::Sample(const Decoder& decoder,
                                                              const RolloutOrder& order,
                                                              const RolloutAround& around) {
  const absl::Duration begin = context_.clock.Monotonic();
  ASSIGN_OR_RETURN(std::optional<Rollouts> made, source_.Sample(decoder, order, around));
  if (!made) {
    // What takes so long that it is never ended is tried with less.
    order_size_ = std::max(bounds_.least, order_size_ / 2);
    return std::nullopt;
  }
  RolloutFigures& figures = made->figures;
  struct Told {
    int64_t order_size = 0;
    double rollout_seconds = 0, reward_seconds = 0;
  };
  const double seconds = absl::ToDoubleSeconds(context_.clock.Monotonic() - begin);
  const auto completions = static_cast<int64_t>(made->all.size());
  Told told{NextOrderSize(bounds_, order_size_, completions, seconds), figures.rollout_seconds,
            figures.reward_seconds};
  RETURN_IF_ERROR(BroadcastValue(context_.collective, told, Rank(0)));
  order_size_ = told.order_size;
  figures.rollout_seconds = told.rollout_seconds;
  figures.reward_seconds = told.reward_seconds;
  return made;
}

}  // namespace espalier
