// Liveness: who has stopped making progress, and who is to blame. Progress is liveness: messages
// without a change of counters prove nothing. But a rank that waits for one with a longer shard
// changes none either, so the counters of all ranks count together: in lock step, one that hangs
// soon stops them all. Used by the core's handlers and by coordinator/loop; what follows is in
// generation.h. Pure: any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/state.h"

namespace espalier {

// After a restart of the coordinator, ranks have failure_timeout and this to come back: the longest
// wait of a worker between two attempts to attach.
inline constexpr absl::Duration kReattachWait = absl::Seconds(5);
// Last words may arrive so long after the launcher reported the end of the processes, and after
// what was said before them.
inline constexpr absl::Duration kLastWordsWait = absl::Seconds(1);
// Ticks come more often than this when the coordinator is awake.
inline constexpr absl::Duration kShortestSleep = absl::Milliseconds(100);

// A fault that a new generation may mend.
struct Fault {
  // What happened, for people.
  std::string reason;
  // The rank it is blamed on; absent: nobody in particular.
  std::optional<Rank> culprit;
};

// The fault that for longer than failure_timeout one rank was not heard of, or none of them made
// progress; blamed on the rank that holds up the others, on none where all wait for each other in
// one operation. Ranks that said their last word are left out.
std::optional<Fault> FindStuckRank(const Job& job, absl::Time now);
// Past launch.timeout_seconds, a rank has not attached, or none made progress within
// failure_timeout: a large state may take long to come, and shows that it does.
bool IsLaunchOverdue(const Job& job, absl::Time now);
// Not every rank was ready in time; blamed on the missing one, when it is only one.
Fault DescribeLaunchTimeout(const Job& job);
// The rank that most probably caused a fault that others reported: one that is silent, or whose
// stream broke first; absent when nobody stands out.
std::optional<Rank> FindCulprit(const Job& job, absl::Time now);
// How long a worker may commit steps after it sent what a welcome or a renewal answered. Long
// enough that no run notices how espalierd is killed and started again, or replaced by a newer one:
// every heartbeat renews it, and the workers attach again within kReattachWait. Short enough to
// wait for, since that is what the loss of a node costs that nobody can reach.
absl::Duration Lease(const JobRecord& record);
// By the core's time, which may run a tenth faster than the clocks of workers (SteadyTime).
absl::Time LeaseEnd(const JobRecord& record, absl::Time renewed);

// Ranks that may still commit steps although the generation has ended, and until when.
struct OpenLeases {
  std::vector<NodeName> nodes;
  absl::Time until = absl::InfinitePast();
};
OpenLeases FindOpenLeases(const Job& job, absl::Time now);
// What a reason ends with meanwhile begins so; all of it, empty where the job does not wait.
inline constexpr absl::string_view kWaitsForLeases = "; waits until ";
absl::string_view LeaseWait(absl::string_view reason);

// Whatever was said before the processes ended has been heard: a stream brings one message at a
// time, each perhaps behind a slow commit of the journal; waits no longer than failure_timeout.
bool LastWordsAreHeard(const Job& job, absl::Time now);

// The rank whose stream broke first without a last word.
std::optional<Rank> FirstVanished(const Job& job);
// "rank 1 on macbook (last in exchange at step 12)".
std::string WhereItWas(const Job& job, Rank rank);
// "rank 1 on macbook was lost in exchange at step 12".
std::string DescribeLoss(const Job& job, Rank rank);
// Of the time between two events so much counts against the ranks of a job: a part of its
// failure_timeout, so that a coordinator that slept, or waited for its disk, blames nobody before
// it has listened again; and one that only ticks slowly still finds who is silent.
absl::Duration LongestAttention(const JobRecord& record);
// What does not count of the time between two events. Nothing of a long one does while the last
// words of processes that are gone wait to be read: one at a time, each behind a slow disk.
absl::Duration Excused(const Job& job, absl::Duration between);
// Every deadline is later by `slept`.
void ShiftDeadlines(Job& job, absl::Duration slept);

}  // namespace espalier
