// Simulation: one run by seed: coordinator, worlds, network, an operator who asks for random
// things, and faults; then a quiet time in which every job must end. Used by sim_main.cc and
// sim_test.cc. One thread; runs share nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/agent_process.h"
#include "tests/sim/ghost.h"
#include "tests/sim/newcomer.h"
#include "tests/sim/scene.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/wire.h"
#include "tests/sim/world.h"

namespace espalier::sim {

struct RunOptions {
  uint64_t seed = 0;
  // Keep a line for everything that happens.
  bool trace = false;
  // For so long things go wrong; then faults stop, and every job must end.
  absl::Duration fault_time = absl::Seconds(60);
};

struct RunResult {
  uint64_t seed = 0;
  // Empty: every rule held. Else the first that did not, and the command that shows it again.
  std::string failure;
  std::vector<std::string> trace;
  uint64_t fingerprint = 0;
  int64_t generations = 0;
  std::map<JobState, int64_t> ends;
};

RunResult Simulate(const RunOptions& options);

// The run of a failing seed with the shortest time of faults that was found to fail still, to a
// tenth of a second: less to read. Runs `options` a dozen times.
RunResult Shrink(RunOptions options);

class Simulation {
 public:
  explicit Simulation(const RunOptions& options);
  RunResult Run();

 private:
  struct HandStarted {
    v1::JobSpec spec;
    World* world = nullptr;
  };
  v1::JobSpec MakeSpec(int64_t number);
  void Submit(int64_t number);
  void StartByHand(size_t index);
  void Ask();
  void AskOne(const JobId& job);
  // Whatever nodes are drained.
  void AllowNodes();
  void Harm();
  void ChangePace();
  void HarmOne(World& world);
  void CutOff(const World& world, size_t rank);
  void HarmLink();
  void HarmMachine();
  absl::Duration AnySleep();
  void SuspendNode(const NodeName& node, absl::Duration time);
  void LoseNode(const NodeName& node, absl::Duration time);
  void LoseForGood(const NodeName& node);
  void ForRanksOn(const NodeName& node, const std::function<void(World&, size_t)>& change);
  // Agents come to some of the nodes.
  void BringAgents();
  void HarmAgent();
  bool AgentsAttached() const;
  bool NothingKept() const;
  // A machine is there and may be used.
  bool IsThere(const NodeName& node) const;
  // An operator must decide for a job that waits for machines that are no more.
  void Settle(const Job& job);
  // A worker of a generation that is over comes back.
  void Haunt();
  absl::StatusCode AnyFailure();
  // Everything that is paused goes on; what a person must start is started.
  void Tidy();
  // Which job has not ended; empty: none.
  std::string NotFinal() const;
  bool AllOver() const;

  const RunOptions options_;
  Scene scene_;
  // The operator is at work.
  bool asking_ = true;
  std::vector<std::unique_ptr<World>> worlds_;
  Wire wire_;
  std::vector<NodeName> cluster_;
  std::vector<HandStarted> by_hand_;
  std::vector<std::unique_ptr<AgentProcess>> agents_;
  // Others of the same names.
  std::vector<std::unique_ptr<AgentProcess>> rivals_;
  std::vector<std::unique_ptr<Newcomer>> newcomers_;
  std::vector<std::unique_ptr<Ghost>> ghosts_;
  // Machines that never come back; and when the last one that sleeps wakes up.
  std::set<NodeName> gone_;
  absl::Time awake_at_;
  int64_t mpiruns_ = 0;
  int64_t jobs_wanted_ = 0;
  std::unique_ptr<SimCoordinator> coordinator_;
};

}  // namespace espalier::sim
