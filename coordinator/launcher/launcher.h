// Launcher: turns a generation into processes, watches them and ends them. Implementations:
// MpirunLauncher (mpirun_launcher.h) for the daemon, FakeLauncher for the tests of the loop. Used
// by mpirun.h, mpirun_launcher.h and coordinator/loop/loop.h. Thread rule: every method is called
// by the loop's thread and returns at once; what takes time is carried on by Poll.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

struct LaunchRequest {
  GenerationKey key;
  // The node of each rank, in order.
  std::vector<NodeName> nodes;
  // With its defaults filled in.
  v1::JobSpec spec;
};

// A generation of which no process is left where that could be found out.
struct LaunchEnded {
  GenerationKey key;
  // How it ended, for people: exit status, and what the log said last.
  std::string reason;
  // The rank that ended first and took the others with it, where the log names one.
  std::optional<Rank> culprit;
  // The others: cut off, or their agent is away.
  std::vector<NodeName> unconfirmed;
  // What ended first had the exit status of a worker whose input is bad.
  bool bad_input = false;
};

// Where a generation that an earlier espalierd started may have processes.
struct AdoptedNodes {
  // The node of each rank, in order.
  std::vector<NodeName> nodes;
  // Those of which an agent is known, whether or not it has come back by now: generations are
  // started there through it alone.
  std::set<NodeName> with_agents;
};

// A process of a generation as it introduced itself, so that it can be ended even when the process
// that started it has lost control of it.
struct WorkerProcess {
  NodeName node;
  int64_t pid = 0;
};

class Launcher {
 public:
  virtual ~Launcher() = default;

  // Starts the generation's process, which waits at a gate and does nothing visible until Release.
  // The caller journals the identity in between (invariant "Journal, then act").
  virtual absl::StatusOr<ProcessIdentity> Prepare(const LaunchRequest& request) = 0;
  virtual void Release(const GenerationKey& key) = 0;
  // Takes over a generation that an earlier espalierd started. When its process is gone, the next
  // Polls end what is left of it and report it.
  virtual void Adopt(const GenerationKey& key, const ProcessIdentity& process,
                     AdoptedNodes nodes) = 0;
  // A node that has joined, which the cluster file does not name; replaces what was known of it.
  virtual void NoteNode(const v1::NodeSpec& node) = 0;
  virtual void NoteWorker(const GenerationKey& key, const WorkerProcess& worker) = 0;
  // Ends the generation: politely first, by force soon after. Repeating is harmless.
  virtual void End(const GenerationKey& key) = 0;
  // Carries on with what is under way, and names each generation once when nothing of it is left,
  // or cannot be reached. `now` is monotonic.
  virtual std::vector<LaunchEnded> Poll(absl::Duration now) = 0;
};

}  // namespace espalier
