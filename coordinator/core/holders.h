// Who holds which state of a job: on a disk, where it was published, or in memory that outlives the
// job's processes, which is as good where it is as new. A generation never starts from an older
// state than the newest that can be had; when no node that holds it is to be had, the job waits and
// says for whom. Used by coordinator/core, coordinator/service and tests. Pure: any thread.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "coordinator/core/state.h"

namespace espalier {

// The newest state on a node's disk; Step(0): none was ever published, or all are gone.
Step NewestPublished(const JobRecord& record);
// The newest that the node's agent sees on its disk; Step(0): none. Absent: no agent says.
std::optional<Step> NewestSeen(const Node& node, const JobId& job);
// By name; not those that only share a machine with them.
std::vector<NodeName> HoldersOfPublished(const JobRecord& record);

// What there is of a job at this moment, looked up once for a decision. Memory counts while its
// node's agent is attached, and for kAgentSilence after, since an agent may be started again:
// nobody knows what becomes of it otherwise, and a disk is where a job waits for a machine that is
// away.
class Holders {
 public:
  // Both outlive it.
  Holders(const ClusterState& state, const JobRecord& record);

  Step newest() const { return std::max(published_, in_memory_); }
  // Something was published, every node that had it has looked for it in vain, and no memory holds
  // the job.
  bool gone() const;
  // Only some nodes can start a generation of the job. Never of one that is started by hand.
  bool needed() const;
  // The node can start from the newest state. Where no disk holds that, a step less in its memory
  // is as good: processes that were killed in a step may have finished it here and not there.
  bool Has(const NodeName& node) const;
  // It has the newest that was published on its disk. What is kept of what is done before the first
  // step lies on the nodes that had the most of it.
  bool HasPublished(const NodeName& node) const;
  // The nodes that have it, by name; not those that only share a machine with them.
  std::vector<NodeName> Names() const;
  // The newest that a generation on these nodes must find.
  Step LeastOn(const std::vector<NodeName>& nodes) const;

  // "step 500 on studio".
  std::string Describe() const;
  // "studio, which holds its state of step 500": for whom a job waits that none of them can start.
  std::string WhomItWaitsFor() const;

 private:
  struct Memory {
    Step step;
    // By the newest generation, when the agent looked last.
    bool was_in_use = false;
  };
  // There is no step yet, or none that is kept, and much has been done for the first.
  bool BeforeFirstStep() const { return newest() == Step(0) && !record_.practised_on.empty(); }
  // No disk holds the newest state.
  bool InMemoryAlone() const { return in_memory_ > published_; }

  const ClusterState& state_;
  const JobRecord& record_;
  const Step published_;
  Step in_memory_;
  // Of the newest state, and of a step less where it is in memory alone.
  std::map<NodeName, Memory> memories_;
};

// "from the checkpoint of step 500": what a job that is not running would go on from, for people.
std::string ResumesFrom(const ClusterState& state, const JobRecord& record);

// What a node holds in memory of jobs that have no processes there is not the same as in its last
// report.
bool MemoryChanged(const Node& node, const std::optional<v1::NodeReport>& before);

// A generation starts on its nodes, which may hold something of the job from now on.
void NoteLaunch(JobRecord& record);
// The node has written a state of the job. True: that is news.
bool NoteHolder(JobRecord& record, const NodeName& node, Step step);
// The node has looked for the newest that it holds on a disk: Step(0), none. What its agent sees
// there besides, up to `seen` (absent: it has not said, and may see what was published), does not
// count. What the node was known to hold, when that is more.
std::optional<Step> NoteFound(JobRecord& record, const NodeName& node, Step step,
                              std::optional<Step> seen);
// So much is as good as the most that ever was kept of what is done before a step: no more than a
// tenth is missing.
bool IsAboutTheMost(const JobRecord& record, int64_t kept);
// Ranks have said how much they keep of what is done before the first step, one of them more than
// there ever was (`most`): that lies on their nodes alone from now on, one that has not said yet
// having what it was sent. Less, where what others have is done again, leaves them those that hold
// the job. True: that is news.
bool NotePractisedOn(JobRecord& record, const World& world, bool most);
// An operator has given up the newest state: a history of the job begins that counts nothing of
// what any memory holds; where the newest was on disks, nothing of that step. Older ones stay
// known.
void ForgetNewest(JobRecord& record, bool in_memory);

}  // namespace espalier
