// What a fault costs: a job has only so many restarts and waits longer before each; a node to which
// several faults are traced is set aside for a while, longer each time, and then used again. Used
// by advance.cc and generation.cc. One thread.
#pragma once

#include <cstddef>
#include <string>

#include "absl/time/time.h"
#include "coordinator/core/context.h"

namespace espalier {

inline constexpr absl::Duration kLongestBackoff = absl::Seconds(60);

// health.restart_backoff_seconds before the first restart of a window, doubled with each further
// one, up to kLongestBackoff.
absl::Duration Backoff(const v1::HealthSpec& health, size_t faults_in_window);

// Steps beyond those of all faults before clear the count: what is repeated from a checkpoint is no
// advance, so that a step that always fails cannot go on for ever.
void NoteAdvance(JobRecord& record);
// The same of steps that were committed before the newest fault, but heard of only after it: it
// alone still counts.
void NoteLateAdvance(JobRecord& record);
// Books a fault after which the job is started again: enters RECOVERING with the time of the next
// try; or, when health.max_restarts within the window are used up, with the verdict that it failed.
void CountRestart(Context& context, Job& job, const std::string& reason);
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
inline constexpr size_t kSetAsideFaults = NodePolicy{}.faults;

// Books a fault on the rank's node. The node is set aside only when the job can go on without it: a
// small lab would otherwise stand still because one of its machines had a bad hour.
void BlameNode(Context& context, const Job& job, Rank rank, const std::string& reason);
// Takes nodes back whose time is over.
void ReturnNodes(Context& context);

}  // namespace espalier
