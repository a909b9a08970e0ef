#include "tests/sim/sim_launcher.h"

#include <algorithm>

namespace espalier::sim {
namespace {

// A stray process that nobody could reach is ended after so long, by a person at the latest.
constexpr absl::Duration kStrayLimit = absl::Minutes(40);

GenerationKey KeyOf(const World& world) { return {world.job(), world.generation()}; }

}  // namespace

void SimLauncher::Die() {
  if (at_gate_ != nullptr) at_gate_->KillAll();
  at_gate_ = nullptr;
  ++life_;  // what it was about to kill lives
  known_.clear();
  ended_.clear();
}

absl::StatusOr<ProcessIdentity> SimLauncher::Prepare(const LaunchRequest& request) {
  const bool cut_off = std::any_of(request.nodes.begin(), request.nodes.end(),
                                   [&](const NodeName& node) { return wire_.Partitioned(node); });
  if (!hooks_.launching(request) || cut_off || scene_.Fault(12)) {
    return absl::UnavailableError("mpirun could not be run");
  }
  worlds_.push_back(std::make_unique<World>(
      scene_, wire_, WorldOptions{.key = request.key, .nodes = request.nodes, .spec = request.spec},
      hooks_.world));
  at_gate_ = worlds_.back().get();
  known_.insert(request.key);
  return ProcessIdentity{static_cast<int64_t>(worlds_.size()), "start"};
}

void SimLauncher::Release(const GenerationKey&) {
  if (at_gate_ == nullptr) return;
  std::exchange(at_gate_, nullptr)->Start();
}

void SimLauncher::Adopt(const GenerationKey& key, const ProcessIdentity&, AdoptedNodes) {
  const World* world = Find(key);
  known_.insert(key);
  const bool alive = world != nullptr && !world->over();
  if (!alive || world->orphaned()) {
    Report(key, "ended while nobody looked",
           alive ? world->LivingNodes() : std::vector<NodeName>());
  }
}

void SimLauncher::End(const GenerationKey& key) {
  if (!hooks_.killing(key)) return;
  World* world = Find(key);
  if (world == nullptr) return;
  const absl::Duration wait = scene_.Fault(10) ? scene_.chance.Milliseconds(1000, 6000)
                                               : scene_.chance.Milliseconds(20, 400);
  scene_.timeline.After(wait, [this, world, life = life_] {
    if (life == life_) EndNow(*world);
  });
}

// What cannot be reached lives on.
void SimLauncher::EndNow(World& world) {
  if (world.over()) return;
  const auto reached = [&](const NodeName& node) {
    return !wire_.Partitioned(node) && !scene_.Fault(20);
  };
  std::vector<NodeName> left = world.KillSome(reached);
  if (left.empty()) return;
  // In the end, somebody does.
  scene_.timeline.After(kStrayLimit, [&world] { world.KillAll(); });
  Report(KeyOf(world), "mpirun was killed", std::move(left));
}

std::vector<LaunchEnded> SimLauncher::Poll(absl::Duration) { return std::exchange(ended_, {}); }

// Of a node that cannot be reached nobody says that nothing is left there.
void SimLauncher::OnEnded(const World& world) {
  std::vector<NodeName> unreached;
  for (const NodeName& node : world.options().nodes) {
    if (wire_.Partitioned(node)) unreached.push_back(node);
  }
  Report(KeyOf(world), "mpirun exited", std::move(unreached));
}

// Each generation once.
void SimLauncher::Report(const GenerationKey& key, const std::string& reason,
                         std::vector<NodeName> left) {
  if (known_.erase(key) == 0) return;
  ended_.push_back({.key = key, .reason = reason, .unconfirmed = std::move(left)});
}

World* SimLauncher::Find(const GenerationKey& key) const {
  for (const auto& world : worlds_) {
    if (world->options().external_id.empty() && KeyOf(*world) == key) return world.get();
  }
  return nullptr;
}

}  // namespace espalier::sim
