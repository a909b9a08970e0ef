// SimCoordinator: the real core, applied effect by effect as the daemon does it, with a journal
// that survives and a crash possible between any two effects. Also the launcher, whose processes
// live on when it dies. Used by simulation.h. One thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "coordinator/core/advance.h"
#include "tests/sim/inspector.h"
#include "tests/sim/requests.h"
#include "tests/sim/scene.h"
#include "tests/sim/sim_journal.h"
#include "tests/sim/wire.h"
#include "tests/sim/world.h"

namespace espalier::sim {

class SimCoordinator {
 public:
  using Worlds = std::vector<std::unique_ptr<World>>;
  struct Parts {
    Scene& scene;
    Wire& wire;
    Worlds& worlds;
    std::vector<NodeName> cluster;
    // Sees every request when it is decided, and every reply that arrives.
    Requests& requests;
  };
  explicit SimCoordinator(Parts parts)
      : parts_(std::move(parts)), inspector_(parts_.scene, journal_, parts_.worlds) {}

  void Start();
  // Dropped while it is down.
  void Deliver(const Event& event);
  void Crash();

  bool up() const { return up_; }
  const ClusterState& state() const { return state_; }
  const SimJournal& journal() const { return journal_; }
  Inspector& inspector() { return inspector_; }
  World::Hooks WorldHooks();

 private:
  void Decide(const Event& event);
  // The journal's disk takes its time: what arrives meanwhile waits.
  void Stall(absl::Duration time);
  void GoOn();
  // False: crashed in between.
  bool Apply(const std::vector<Effect>& effects);
  void CommitJournal(const std::vector<Effect>& effects);
  bool ApplyOne(const Effect& effect);
  bool LaunchWorld(const Launch& launch);
  void KillWorld(const Kill& kill);
  void EndWorld(World& world);
  // One that was launched; null: none.
  World* FindWorld(const GenerationKey& key) const;
  void KeepTicking(int64_t life);
  void OnWorldEnded(const World& world);

  Parts parts_;
  SimJournal journal_;
  Inspector inspector_;
  ClusterState state_;
  // How far its clock is from the run's; changed while nobody looks, since a daemon's own time
  // never jumps.
  absl::Duration clock_off_;
  bool up_ = false;
  bool stalled_ = false;
  std::vector<Event> waiting_;
  int64_t life_ = 0;
};

}  // namespace espalier::sim
