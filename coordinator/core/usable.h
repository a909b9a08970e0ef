// Whether a job may run on a node now, and if not, why: the one place that says so. Used by
// coordinator/core and coordinator/service. Pure: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/state.h"

namespace espalier {

// A node whose clock is so far from espalierd's is not used.
inline constexpr absl::Duration kClockApart = absl::Hours(1);

enum class Obstacle {
  kNone,
  // Kept for a job that is ahead in the queue.
  kKept,
  // Another job holds it.
  kHeld,
  // From here on, the node would not do even if it were free.
  kDrained,
  kSetAside,
  kAgentGone,
  kAgentSilent,
  // Its Espalier or its Open MPI is another version than espalierd's.
  kVersions,
  kClock,
  // A battery, heat, its disk or the hour of the day: see planner/node_health.h.
  kUnwell,
  // Its processor is another than that by which a job was computed that is reproducible.
  kProcessor,
  // Its device does not compute as it should in the job's precision (NodeReport::device).
  kDevice,
  // parallel.nodes does not name it, or exclude_nodes does.
  kNotNamed,
};

// The node would do if it were free.
constexpr bool WouldDo(Obstacle obstacle) { return obstacle <= Obstacle::kHeld; }

// Nodes that waiting jobs keep from those behind them in the queue.
class KeptNodes {
 public:
  enum class From {
    // Of the same priority: one of a lower would give the node back when it is needed.
    kSamePriority,
    // The keeper starts as soon as what leaves has left.
    kEverybody,
  };
  // Keepers come in the order of the queue. All nodes, or some.
  void Keep(const JobRecord& keeper, From from);
  void Keep(const JobRecord& keeper, From from, const std::vector<NodeName>& nodes);
  // The first job that keeps the node from this one; null: none does.
  const JobId* KeptFrom(const JobRecord& job, const NodeName& node) const;
  // The first job that keeps the node from all; null: none does.
  const JobId* KeptFromEverybody(const NodeName& node) const;
  // The job for which every node is kept from this one; null: not all are.
  const JobId* AllKeptFrom(const JobRecord& job) const;

 private:
  struct Keepers {
    std::optional<JobId> from_everybody;
    std::optional<JobId> from_same_priority;
    int32_t priority = 0;
  };
  static void Add(Keepers& keepers, const JobRecord& keeper, From from);
  static const JobId* Find(const Keepers& keepers, const JobRecord& job);

  // By those that may run anywhere, and by those that name their nodes.
  Keepers all_;
  std::map<NodeName, Keepers> named_;
};

struct Usability {
  Obstacle obstacle = Obstacle::kNone;
  // The job that holds the node or for which it is kept.
  JobId other;
};

// What keeps every job from the node, whoever holds it; kNone: nothing.
Obstacle NodeObstacle(const ClusterState& state, const Node& node);
// Its agent says so: see planner/node_health.h. Jobs leave it, whatever else keeps others away.
bool IsUnwell(const Node& node);
// It goes by itself now and then: it has hours, or a battery that runs down.
bool MayGoByItself(const Node& node);
// What keeps this job from the node. The nodes that it has are its own.
Usability Usable(const ClusterState& state, const Node& node, const JobRecord& job,
                 const KeptNodes& kept);

// "is held by job nano-1": what stands in the way, for people, after the node's name; empty for
// kNone.
std::string Describe(const ClusterState& state, const Node& node, const Usability& usability);

// Those that the job may use at all, in the order of parallel.nodes (of the cluster file when it is
// empty).
std::vector<const Node*> AllowedNodes(const ClusterState& state, const JobRecord& record);

// It has trained this job, so that it has the data, and what starts there works.
bool HasTrained(const JobRecord& record, const NodeName& name);
// A run that is well is stopped for nobody who may not be able to train it: a node has rehearsed
// it, or, without an agent, which alone can be asked, has trained it before.
bool CanTrain(const JobRecord& record, const Node& node);

// It has rehearsed the job within the last ten minutes, and cannot train it.
bool IsUnfit(const Node& node, const JobRecord& record, absl::Time now);
// The running job for which the node should find out whether it could train it, so that it can be
// taken in, those last for which it was unfit; null: none, or it has found out.
const Job* WantsRehearsal(const ClusterState& state, const Node& node);
// Remembers what its newest report says of a rehearsal. "node air cannot train it: ...", for
// people, when that is new; else empty.
std::string TakeRehearsal(Node& node, absl::Time now);

// Each of the nodes, which the job trains on, keeps it in memory, as far as their agents have said,
// and may start the next generation from there.
bool KeptInMemory(const ClusterState& state, const JobRecord& record,
                  const std::vector<NodeName>& nodes);

// What of a node's memory nobody needs any more: of jobs that are over, of what was given up, and,
// where the job has no processes, what is older than the newest that was published, or as new where
// a node that could have the job has that on its disk. Taken from what is known of the node: who is
// told to give it back may have done so when anybody counts on it.
std::vector<v1::WarmState> TakeSpareMemory(const ClusterState& state, Node& node);

// "waits for 2 nodes".
std::string WaitsFor(const JobRecord& record);
// "waits for 2 nodes; free: studio; macbook is held by job nano-1".
std::string WhyItWaits(const ClusterState& state, const JobRecord& record, const KeptNodes& kept);

}  // namespace espalier
