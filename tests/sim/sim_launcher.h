// SimLauncher: turns generations into simulated worlds, whose processes live on when espalierd
// dies; knows as much of them as a launcher can. Used by sim_coordinator.h. One thread.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/launcher/launcher.h"
#include "tests/sim/scene.h"
#include "tests/sim/wire.h"
#include "tests/sim/world.h"

namespace espalier::sim {

class SimLauncher : public Launcher {
 public:
  using Worlds = std::vector<std::unique_ptr<World>>;
  struct Hooks {
    World::Hooks world;
    // About to be done. False: espalierd has died meanwhile.
    std::function<bool(const LaunchRequest&)> launching;
    std::function<bool(const GenerationKey&)> killing;
  };
  SimLauncher(Scene& scene, Wire& wire, Worlds& worlds)
      : scene_(scene), wire_(wire), worlds_(worlds) {}

  void Use(Hooks hooks) { hooks_ = std::move(hooks); }
  // Its espalierd is gone, and with it what waits at the gate.
  void Die();
  void OnEnded(const World& world);

  absl::StatusOr<ProcessIdentity> Prepare(const LaunchRequest& request) override;
  void Release(const GenerationKey& key) override;
  void Adopt(const GenerationKey& key, const ProcessIdentity& process, AdoptedNodes nodes) override;
  void NoteNode(const v1::NodeSpec&) override {}
  void NoteWorker(const GenerationKey&, const WorkerProcess&) override {}
  void End(const GenerationKey& key) override;
  std::vector<LaunchEnded> Poll(absl::Duration now) override;

 private:
  // One that was launched; null: none.
  World* Find(const GenerationKey& key) const;
  void EndNow(World& world);
  void Report(const GenerationKey& key, const std::string& reason, std::vector<NodeName> left);

  Scene& scene_;
  Wire& wire_;
  Worlds& worlds_;
  Hooks hooks_;
  World* at_gate_ = nullptr;
  int64_t life_ = 0;
  // Those that this espalierd has started or taken over, and has not heard the end of.
  std::set<GenerationKey> known_;
  std::vector<LaunchEnded> ended_;
};

}  // namespace espalier::sim
