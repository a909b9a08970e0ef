#include "coordinator/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace espalier {
namespace {

// A gain beyond this, and beyond three times what may be noise, is worth a move.
constexpr double kLeastGain = 0.02;
constexpr double kNoises = 3;
// It must be seen so often in a row; a rank that is that late is not waited for.
constexpr int kLooks = 2;
constexpr double kLate = 0.25;
// Moves that follow each other within so many looks come of a machine whose speed does not stay:
// from the third on each waits twice as long for the next, so that nobody chases it.
constexpr int64_t kCalm = 128;
constexpr int kFreeMoves = 2;
constexpr int64_t kFirstWait = 4;
// Up to so many looks, or so much time where steps are short.
constexpr int64_t kLongestWait = 64;
constexpr double kLongestWaitSeconds = 60;
// Ranks that a text names.
constexpr size_t kNamed = 8;

double SpeedOf(const PlannedRank& rank) {
  return std::isfinite(rank.relative_speed) && rank.relative_speed > 0 ? rank.relative_speed : 1;
}

bool AnyMeasured(absl::Span<const PlannedRank> ranks) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const PlannedRank& rank) { return rank.speed.measured(); });
}

// Seconds that a sequence takes a node of relative speed 1: the median of what is measured.
double SecondsAtSpeedOne(int32_t batch, absl::Span<const PlannedRank> ranks) {
  const double share = std::max(1.0, batch / static_cast<double>(ranks.size()));
  std::vector<double> seconds;
  for (const PlannedRank& rank : ranks) {
    if (!rank.speed.measured()) continue;
    seconds.push_back(rank.speed.Time().Seconds(std::llround(share)) / share * SpeedOf(rank));
  }
  if (seconds.empty()) return 1;
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

// One text for each rank, of the first few.
template <typename Text>
std::string List(absl::Span<const PlannedRank> ranks, const Text& text) {
  std::string out;
  for (size_t i = 0; i < ranks.size() && i < kNamed; ++i) {
    const std::string node =
        ranks[i].node.empty() ? absl::StrCat("rank ", i) : std::string(ranks[i].node.text());
    absl::StrAppend(&out, i == 0 ? "" : ", ", node, " ", text(i));
  }
  if (ranks.size() > kNamed) absl::StrAppend(&out, " and ", ranks.size() - kNamed, " more");
  return out;
}

std::string SpeedsText(absl::Span<const PlannedRank> ranks) {
  return List(ranks, [&](size_t i) {
    if (!ranks[i].speed.measured()) return std::string("not measured");
    const StepTime time = ranks[i].speed.Time();
    return absl::StrFormat("%.3g s + %.3g s a sequence", time.constant, time.per_sequence);
  });
}

std::string FirstReason(int32_t batch, absl::Span<const PlannedRank> ranks) {
  if (AnyMeasured(ranks)) return absl::StrCat("measured before: ", SpeedsText(ranks));
  const bool alike = std::all_of(ranks.begin(), ranks.end(), [&](const PlannedRank& rank) {
    return SpeedOf(rank) == SpeedOf(ranks.front());
  });
  if (alike) {
    return absl::StrCat("even: ", batch, " sequences over ", ranks.size(),
                        ranks.size() == 1 ? " rank" : " ranks");
  }
  return absl::StrCat("relative_speed, until measured: ",
                      List(ranks, [&](size_t i) { return absl::StrCat(SpeedOf(ranks[i])); }));
}

int64_t LooksToWait(int moves, double step_seconds) {
  int64_t wait = moves > kFreeMoves ? kFirstWait : 0;
  for (int move = kFreeMoves + 1; move < moves; ++move) {
    const bool long_enough =
        wait >= kLongestWait && static_cast<double>(wait) * step_seconds >= kLongestWaitSeconds;
    if (long_enough) break;
    wait *= 2;
  }
  return wait;
}

// The mean finish of all ranks but the latest.
double OthersFinish(double mean, double latest, size_t ranks) {
  const auto count = static_cast<double>(ranks);
  return ranks > 1 ? (mean * count - latest) / (count - 1) : latest;
}

}  // namespace

std::vector<Runner> RunnersOf(int32_t batch, absl::Span<const PlannedRank> ranks) {
  std::vector<Runner> runners;
  const double unit = SecondsAtSpeedOne(batch, ranks);
  const int32_t least = batch >= static_cast<int64_t>(ranks.size()) ? 1 : 0;
  for (const PlannedRank& rank : ranks) {
    const StepTime time =
        rank.speed.measured() ? rank.speed.Time() : StepTime{0, unit / SpeedOf(rank)};
    runners.push_back({.time = time, .least = least});
  }
  return runners;
}

ShardPlan FirstPlan(int32_t batch, absl::Span<const PlannedRank> ranks) {
  // Bounds that always fit.
  return {.sequences = *SplitBatch(batch, RunnersOf(batch, ranks)),
          .reason = FirstReason(batch, ranks)};
}

Outlook Predict(absl::Span<const int32_t> sequences, absl::Span<const PlannedRank> ranks) {
  const int32_t batch = std::accumulate(sequences.begin(), sequences.end(), 0);
  const std::vector<Runner> runners = RunnersOf(batch, ranks);
  Outlook outlook;
  outlook.best = *SplitBatch(batch, runners);
  outlook.seconds = LatestFinish(sequences, runners);
  outlook.best_seconds = LatestFinish(outlook.best, runners);
  outlook.gain = outlook.seconds / outlook.best_seconds - 1;
  const double mean = MeanFinish(sequences, runners);
  outlook.imbalance = outlook.seconds / mean - 1;
  const double others = OthersFinish(mean, outlook.seconds, ranks.size());
  outlook.lateness = outlook.seconds / others - 1;
  for (const PlannedRank& rank : ranks) {
    if (rank.speed.measured()) outlook.noise = std::max(outlook.noise, rank.speed.Uncertainty());
  }
  return outlook;
}

std::optional<ShardPlan> Reconsider(absl::Span<const int32_t> sequences,
                                    absl::Span<const PlannedRank> ranks, PlanWatch& watch) {
  const bool known = std::all_of(ranks.begin(), ranks.end(),
                                 [](const PlannedRank& rank) { return rank.speed.measured(); });
  if (!known || ranks.size() < 2) return std::nullopt;
  Outlook outlook = Predict(sequences, ranks);
  const bool gains = outlook.gain > kLeastGain;
  const bool certain = outlook.gain > kNoises * outlook.noise;
  watch.gains = gains && certain ? watch.gains + 1 : 0;
  const bool late = gains && outlook.lateness > kLate;
  ++watch.looks;
  if (!late && watch.gains < kLooks) return std::nullopt;
  const int64_t wait = LooksToWait(watch.moves, outlook.seconds);
  if (watch.looks <= wait) return std::nullopt;
  watch.moves = watch.looks < std::max(kCalm, 2 * wait) ? watch.moves + 1 : 1;
  watch.looks = 0;
  watch.gains = 0;
  ShardPlan plan{.sequences = std::move(outlook.best)};
  plan.reason = absl::StrFormat("measured: %s; a step takes %.3g s in place of %.3g s",
                                SpeedsText(ranks), outlook.best_seconds, outlook.seconds);
  return plan;
}

std::string SharesText(absl::Span<const int32_t> sequences, absl::Span<const PlannedRank> ranks) {
  return List(ranks, [&](size_t i) { return absl::StrCat(sequences[i]); });
}

}  // namespace espalier
