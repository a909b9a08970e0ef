// What a fault costs, and whose it is. A job has only so many restarts and waits longer before
// each; a node to which several faults are traced is set aside for a while, longer each time. An
// error that a rank met by itself is one machine's (its device, disk or memory), a fault like the
// loss of a rank; what every rank meets, or what comes again elsewhere, is the job's own and ends
// it. Used by coordinator/core. One thread.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/event.h"
#include "coordinator/core/liveness.h"
#include "coordinator/core/transaction.h"

namespace espalier {

inline constexpr absl::Duration kLongestBackoff = absl::Seconds(60);

// health.restart_backoff_seconds before the first restart of a window, doubled with each further
// one, up to kLongestBackoff.
absl::Duration Backoff(const v1::HealthSpec& health, size_t faults_in_window);

// Steps beyond those of all faults before clear the count, and what failed last, as does more that
// is kept on disk of the next one: what is repeated from a checkpoint is no advance, so that a step
// that always fails cannot go on for ever.
void NoteAdvance(JobRecord& record);
// The same of steps that were committed before the newest fault, but heard of only after it: it
// alone still counts. True: that is news.
bool NoteLateAdvance(JobRecord& record);
// Books a fault after which the job is started again: enters RECOVERING with the time of the next
// try; or, when health.max_restarts within the window are used up, with the verdict that it failed.
void CountRestart(Transaction& transaction, Job& job, const std::string& reason);
// A launch could not be prepared on nodes that have trained the job: that is for want of something
// on espalierd's machine, its network above all, which no restart is to be spent on. Enters
// RECOVERING with the time of the next try; nothing of the generation runs. Any other counts.
void RetryLaunch(Transaction& transaction, Job& job, const std::string& reason);
// The job has nodes enough without this one.
bool CanSpare(const ClusterState& state, const JobRecord& record, const NodeName& name);

// So many faults within this time set a node aside, for the first span, then twice as long each
// further time up to the longest; a good spell without being set aside starts over.
struct NodePolicy {
  size_t faults = 3;
  absl::Duration window = absl::Minutes(10);
  absl::Duration first_set_aside = absl::Minutes(1);
  absl::Duration longest_set_aside = absl::Hours(1);
  absl::Duration good_spell = absl::Hours(1);
};
// How long a node is set aside, this being the `set_asides`-th time in a row.
absl::Duration SetAsideSpan(int32_t set_asides);
inline constexpr size_t kSetAsideFaults = NodePolicy{}.faults;

// Books a fault on the rank's node, one for a generation. The node is set aside only when the job
// can go on without it: a small lab would otherwise stand still because one of its machines had a
// bad hour.
void BlameNode(Transaction& transaction, Job& job, Rank rank, const std::string& reason);
// Takes up which ranks the sender did not hear from any more when it gave up.
void NoteSilentPeers(Transaction& transaction, Job& job, const WorkerFinished& report);
// Books a fault that is blamed on nobody. When it is not the first since the last new step, two of
// the nodes may not reach each other, though each reaches espalierd: one is set aside, where the
// job can go on without it. Of those that others did not hear from, and else of all, the last. What
// happened, and what was done about it, for people.
std::string LeaveOneOut(Transaction& transaction, Job& job, const Fault& fault);
// Sets nodes at once aside on which the job did not start. Those that said that it cannot, as they
// are, or lack what it had elsewhere: it waits for others, if need be. Else those that were not
// among the last to train it, of a generation that has committed nothing, which may be why; none,
// when one of the others is to blame, or the job cannot do without them.
std::vector<NodeName> SetUnfitAside(Transaction& transaction, Job& job, const Fault& fault);
// The same, and the job goes on without them, uncounted.
bool GoOnWithoutUnfit(Transaction& transaction, Job& job, const Fault& fault);
// Takes nodes back whose time is over.
void ReturnNodes(Transaction& transaction);

// The kind of error that input and settings cause: the same ones give it again.
bool IsBadInput(absl::StatusCode code);

// Takes up what a worker said with Outcome::kFailed, of itself or of the ranks it names.
void NoteFailure(Job& job, Rank sender, const WorkerFinished& report);

// Every rank of the generation has met the same kind of bad input.
bool FailedEverywhere(const Job& job);

struct Judgement {
  // It would come again on any machine.
  bool ends_job = false;
  // What happened, and the first rank that met it; none, if several did and newcomers may be why.
  Fault fault;
};

// Judges the failures noted so far, at least one, and remembers them for the next generation. They
// end the job when every rank met the same bad input, and the nodes, or that they are new to it, or
// that the only one of them lacks what others had, are not why; or when the last failure before,
// without a new step since, was of the same kind at the same step, and either nodes differ or it is
// bad input on a node that the job cannot spare.
Judgement JudgeFailure(const ClusterState& state, Job& job);

}  // namespace espalier
