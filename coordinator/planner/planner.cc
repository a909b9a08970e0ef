#include "coordinator/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

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

namespace {

int64_t SumOf(const std::vector<int32_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

int32_t Floor(double value) { return static_cast<int32_t>(std::floor(value + 1e-9)); }

bool Limited(const PlannedRank& rank) { return rank.largest_share < 1 || rank.part < 1; }

// What each rank gets at most: by its largest share, and while it is spared.
struct Limits {
  std::vector<int32_t> largest;
  std::vector<int32_t> spared;
};

Limits LimitsOf(int32_t batch, absl::Span<const PlannedRank> ranks, std::vector<Runner> runners) {
  Limits limits;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const bool limited = ranks[i].largest_share < 1;
    const int32_t most = limited ? std::max(1, Floor(ranks[i].largest_share * batch)) : batch;
    limits.largest.push_back(std::min(batch, most));
    runners[i].most = limits.largest.back();
  }
  limits.spared = limits.largest;
  const absl::StatusOr<std::vector<int32_t>> usual = SplitBatch(batch, runners);
  if (!usual.ok()) return limits;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].part >= 1) continue;
    limits.spared[i] = std::max(runners[i].least, Floor(ranks[i].part * (*usual)[i]));
  }
  return limits;
}

// Everybody has as much as `most` at least, since that is less than the batch.
void Bound(std::vector<Runner>& runners, const std::vector<int32_t>& least,
           const std::vector<int32_t>& most) {
  for (size_t i = 0; i < runners.size(); ++i) {
    runners[i].least = least[i];
    runners[i].most = most[i];
  }
}

std::vector<Runner> FreeRunners(int32_t batch, absl::Span<const PlannedRank> ranks) {
  std::vector<Runner> runners;
  const double unit = SecondsAtSpeedOne(batch, ranks);
  const int32_t least = batch >= static_cast<int64_t>(ranks.size()) ? 1 : 0;
  for (const PlannedRank& rank : ranks) {
    const StepTime time =
        rank.speed.measured() ? rank.speed.Time() : StepTime{0, unit / SpeedOf(rank)};
    runners.push_back({.time = time, .least = least, .most = batch});
  }
  return runners;
}

}  // namespace

std::vector<Runner> RunnersOf(int32_t batch, absl::Span<const PlannedRank> ranks) {
  std::vector<Runner> runners = FreeRunners(batch, ranks);
  if (std::none_of(ranks.begin(), ranks.end(), Limited)) return runners;
  const Limits limits = LimitsOf(batch, ranks, runners);
  if (SumOf(limits.largest) < batch) {
    Bound(runners, limits.largest, std::vector<int32_t>(ranks.size(), batch));
  } else if (SumOf(limits.spared) < batch) {
    Bound(runners, limits.spared, limits.largest);
  } else {
    for (size_t i = 0; i < runners.size(); ++i) runners[i].most = limits.spared[i];
  }
  return runners;
}

std::string LimitsText(int32_t batch, absl::Span<const PlannedRank> ranks) {
  if (std::none_of(ranks.begin(), ranks.end(), Limited)) return "";
  std::vector<std::string> parts;
  for (const PlannedRank& rank : ranks) {
    const absl::string_view name = rank.node.text();
    if (rank.part < 1) {
      parts.push_back(absl::StrCat(name, " ", rank.spared, ": ", rank.part, " of its share"));
    }
    if (rank.largest_share < 1) {
      parts.push_back(
          absl::StrCat(name, " ", rank.largest_share, " of the batch at most (largest_share)"));
    }
  }
  if (parts.size() > kNamed) {
    const size_t more = parts.size() - kNamed;
    parts.resize(kNamed);
    parts.push_back(absl::StrCat("and ", more, " more limits"));
  }
  const Limits limits = LimitsOf(batch, ranks, FreeRunners(batch, ranks));
  const int64_t room = std::min(SumOf(limits.largest), SumOf(limits.spared));
  if (room < batch) {
    parts.push_back(absl::StrCat("within these limits there is room for ", room, " of ", batch,
                                 " sequences, so that they are passed by the other ",
                                 batch - room));
  }
  return absl::StrJoin(parts, "; ");
}

namespace {

std::string WithLimits(std::string reason, int32_t batch, absl::Span<const PlannedRank> ranks) {
  const std::string limits = LimitsText(batch, ranks);
  return limits.empty() ? reason : absl::StrCat(reason, "; ", limits);
}

}  // namespace

ShardPlan FirstPlan(int32_t batch, absl::Span<const PlannedRank> ranks) {
  // Bounds that always fit.
  return {.sequences = *SplitBatch(batch, RunnersOf(batch, ranks)),
          .reason = WithLimits(FirstReason(batch, ranks), batch, ranks)};
}

Outlook Predict(absl::Span<const int32_t> sequences, absl::Span<const PlannedRank> ranks) {
  const int32_t batch = std::accumulate(sequences.begin(), sequences.end(), 0);
  const std::vector<Runner> runners = RunnersOf(batch, ranks);
  Outlook outlook;
  outlook.best = *SplitBatch(batch, runners);
  for (size_t i = 0; i < runners.size(); ++i) {
    // What it would get otherwise is measured, and wavers.
    const int32_t slack = Limited(ranks[i]) ? 1 + runners[i].most / 10 : 0;
    if (sequences[i] - slack > runners[i].most) outlook.over_limit = true;
  }
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
  if (ranks.size() < 2) return std::nullopt;
  Outlook outlook = Predict(sequences, ranks);
  const int32_t batch = std::accumulate(sequences.begin(), sequences.end(), 0);
  if (outlook.over_limit) {
    watch.gains = 0;
    return ShardPlan{.sequences = std::move(outlook.best), .reason = LimitsText(batch, ranks)};
  }
  if (!known) return std::nullopt;
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
  plan.reason =
      WithLimits(absl::StrFormat("measured: %s; a step takes %.3g s in place of %.3g s",
                                 SpeedsText(ranks), outlook.best_seconds, outlook.seconds),
                 batch, ranks);
  return plan;
}

std::string SharesText(absl::Span<const int32_t> sequences, absl::Span<const PlannedRank> ranks) {
  return List(ranks, [&](size_t i) { return absl::StrCat(sequences[i]); });
}

}  // namespace espalier
