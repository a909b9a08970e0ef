#include "coordinator/core/liveness.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "coordinator/core/facts.h"

namespace espalier {
namespace {

Rank RankAt(size_t index) { return Rank(static_cast<int64_t>(index)); }

bool Waits(Phase phase) { return phase == Phase::kExchange || phase == Phase::kBoundary; }

// "compute at step 12, layer 7, after 340 collectives".
std::string Where(const TrackedRank& rank) {
  const Counters& counters = rank.counters;
  std::string text = absl::StrCat(PhaseName(counters.phase), " at step ", counters.step.value());
  if (counters.layer > 0) absl::StrAppend(&text, ", layer ", counters.layer);
  if (counters.collective > 0) {
    absl::StrAppend(&text, ", after ", counters.collective, " collectives");
  }
  return text;
}

// It starts, and has not attached yet: its launch has another deadline.
bool IsExpected(const Job& job, const TrackedRank& rank) {
  return job.record.state == JobState::kLaunching && rank.pid == 0;
}

// Heard of so long ago that it must be silent itself, not only waiting for others.
bool Silent(const Job& job, const TrackedRank& rank, absl::Time now) {
  return !rank.outcome && !IsExpected(job, rank) &&
         now - rank.heard_at > FailureTimeout(job.record) / 2;
}

std::optional<Rank> LongestSilent(const Job& job, absl::Time now) {
  std::optional<Rank> found;
  absl::Time oldest = absl::InfiniteFuture();
  for (size_t i = 0; i < job.world.ranks.size(); ++i) {
    const TrackedRank& rank = job.world.ranks[i];
    if (!Silent(job, rank, now) || rank.heard_at >= oldest) continue;
    oldest = rank.heard_at;
    found = RankAt(i);
  }
  return found;
}

auto HowFar(const TrackedRank& rank) {
  return std::make_tuple(rank.outcome.has_value(), Waits(rank.counters.phase), rank.counters.step,
                         rank.counters.collective);
}

// The rank furthest behind, one that waits for others only when all do.
Rank FurthestBehind(const Job& job) {
  const auto& ranks = job.world.ranks;
  const auto behind = std::min_element(
      ranks.begin(), ranks.end(),
      [](const TrackedRank& a, const TrackedRank& b) { return HowFar(a) < HowFar(b); });
  return RankAt(static_cast<size_t>(behind - ranks.begin()));
}

// All of several ranks wait for each other in the same operation.
bool AllWaitAlike(const Job& job) {
  const auto& ranks = job.world.ranks;
  return ranks.size() > 1 && std::all_of(ranks.begin(), ranks.end(), [&](const TrackedRank& rank) {
           return Waits(rank.counters.phase) && HowFar(rank) == HowFar(ranks.front());
         });
}

std::string DescribeStuck(const Job& job, Rank rank, absl::Time now) {
  const TrackedRank& state = job.world.ranks[static_cast<size_t>(rank.value())];
  const absl::Duration limit = FailureTimeout(job.record);
  if (Silent(job, state, now)) {
    return absl::StrCat(RankOnNode(job, rank), " was not heard of within ",
                        absl::FormatDuration(limit), " (last in ", Where(state), ")");
  }
  return absl::StrCat(RankOnNode(job, rank), " made no progress within ",
                      absl::FormatDuration(limit), " in ", Where(state));
}

}  // namespace

std::optional<Fault> FindStuckRank(const Job& job, absl::Time now) {
  const absl::Duration limit = FailureTimeout(job.record);
  const bool launching = job.record.state == JobState::kLaunching;
  bool one_silent = false;
  // While ranks start, waiting for others shows no progress; only silence counts then.
  bool all_stalled = !launching;
  bool any_left = false;
  for (const TrackedRank& rank : job.world.ranks) {
    if (rank.outcome || IsExpected(job, rank)) continue;
    any_left = true;
    one_silent = one_silent || now - rank.heard_at > limit;
    all_stalled = all_stalled && now - rank.progressed_at > limit;
  }
  if (!any_left || !(one_silent || all_stalled)) return std::nullopt;
  const std::optional<Rank> silent = LongestSilent(job, now);
  const Rank behind = silent.value_or(FurthestBehind(job));
  Fault fault{.reason = DescribeStuck(job, behind, now), .culprit = behind};
  if (!silent && AllWaitAlike(job)) fault.culprit.reset();
  return fault;
}

bool IsLaunchOverdue(const Job& job, absl::Time now) {
  if (job.record.state != JobState::kLaunching || now <= job.world.launch_deadline) return false;
  const auto& ranks = job.world.ranks;
  const auto expected = [](const TrackedRank& rank) { return rank.pid == 0; };
  const auto progresses = [&](const TrackedRank& rank) {
    return now - rank.progressed_at <= FailureTimeout(job.record);
  };
  return std::any_of(ranks.begin(), ranks.end(), expected) ||
         std::none_of(ranks.begin(), ranks.end(), progresses);
}

Fault DescribeLaunchTimeout(const Job& job) {
  const auto& ranks = job.world.ranks;
  std::vector<Rank> missing;
  std::vector<Rank> absent;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].ready) continue;
    missing.push_back(RankAt(i));
    if (!ranks[i].stream) absent.push_back(RankAt(i));
  }
  std::string text = absl::StrCat("not every rank was ready within launch.timeout_seconds = ",
                                  job.record.spec.launch().timeout_seconds(), ": waited for");
  for (const Rank rank : missing) {
    const bool attached = ranks[static_cast<size_t>(rank.value())].stream.has_value();
    absl::StrAppend(&text, " ", RankOnNode(job, rank),
                    attached ? " (attached)" : " (not attached)");
  }
  // Those that are there wait for the one that is not.
  const std::vector<Rank>& late = absent.empty() ? missing : absent;
  if (late.size() == 1) return {.reason = text, .culprit = late.front()};
  return {.reason = text};
}

std::optional<Rank> FindCulprit(const Job& job, absl::Time now) {
  if (const auto vanished = FirstVanished(job)) return vanished;
  return LongestSilent(job, now);
}

std::optional<Rank> FirstVanished(const Job& job) {
  std::optional<Rank> found;
  int64_t first = job.world.detachments + 1;
  for (size_t i = 0; i < job.world.ranks.size(); ++i) {
    const TrackedRank& rank = job.world.ranks[i];
    if (rank.outcome || rank.stream || !rank.detached_at || rank.detached_order >= first) continue;
    first = rank.detached_order;
    found = RankAt(i);
  }
  return found;
}

std::string WhereItWas(const Job& job, Rank rank) {
  return absl::StrCat(RankOnNode(job, rank), " (last in ",
                      Where(job.world.ranks[static_cast<size_t>(rank.value())]), ")");
}

std::string DescribeLoss(const Job& job, Rank rank) {
  return absl::StrCat(RankOnNode(job, rank), " was lost in ",
                      Where(job.world.ranks[static_cast<size_t>(rank.value())]));
}

// Steps may be slow, but heartbeats do not come with them.
constexpr absl::Duration kLongestLeaseShare = absl::Minutes(2);

absl::Duration Lease(const JobRecord& record) {
  return std::min(2 * FailureTimeout(record), kLongestLeaseShare) + 2 * kReattachWait;
}

absl::Time LeaseEnd(const JobRecord& record, absl::Time renewed) {
  return renewed + Lease(record) * 9 / 8;
}

// A world begins with all its ranks, and each of them with a welcome: where one of them has had
// none, no step was committed, nor can be.
bool MayHaveBegun(const Job& job) {
  return std::none_of(job.world.ranks.begin(), job.world.ranks.end(), [](const TrackedRank& rank) {
    return rank.lease_until == absl::InfinitePast();
  });
}

OpenLeases FindOpenLeases(const Job& job, absl::Time now) {
  OpenLeases open;
  if (!IsExternal(job.record) && !MayHaveBegun(job)) return open;
  const auto& unconfirmed = job.world.unconfirmed;
  for (const TrackedRank& rank : job.world.ranks) {
    // Nobody looks after the processes of a person's mpirun.
    const bool confirmed =
        !IsExternal(job.record) &&
        std::find(unconfirmed.begin(), unconfirmed.end(), rank.node) == unconfirmed.end();
    if (confirmed || rank.outcome || rank.lease_until <= now) continue;
    if (std::find(open.nodes.begin(), open.nodes.end(), rank.node) == open.nodes.end()) {
      open.nodes.push_back(rank.node);
    }
    open.until = std::max(open.until, rank.lease_until);
  }
  return open;
}

bool LastWordsAreHeard(const Job& job, absl::Time now) {
  const absl::Time exited = *job.world.exited_at;
  absl::Time last = exited;
  for (const TrackedRank& rank : job.world.ranks) {
    if (rank.stream && !rank.outcome) last = std::max(last, rank.heard_at);
  }
  return now - std::min(last, exited + FailureTimeout(job.record)) > kLastWordsWait;
}

absl::string_view LeaseWait(absl::string_view reason) {
  const size_t at = reason.find(kWaitsForLeases);
  return at == absl::string_view::npos ? absl::string_view() : reason.substr(at);
}

absl::Duration LongestAttention(const JobRecord& record) { return FailureTimeout(record) / 4; }

absl::Duration Excused(const Job& job, absl::Duration between) {
  if (job.world.exited_at && between > kLastWordsWait / 2) return between;
  return std::max(absl::ZeroDuration(), between - LongestAttention(job.record));
}

void ShiftDeadlines(Job& job, absl::Duration slept) {
  World& world = job.world;
  world.launch_deadline += slept;
  if (world.failed_at) *world.failed_at += slept;
  if (world.exited_at) *world.exited_at += slept;
  if (world.finished_at) *world.finished_at += slept;
  for (TrackedRank& rank : world.ranks) {
    rank.progressed_at += slept;
    rank.heard_at += slept;
  }
}

}  // namespace espalier
