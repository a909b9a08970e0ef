// What goes wrong in a simulated run.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace espalier::sim {

void Simulation::Harm() {
  if (!scene_.faults) return;
  std::vector<World*> alive;
  for (const auto& world : worlds_) {
    if (!world->over()) alive.push_back(world.get());
  }
  if (!alive.empty()) {
    HarmOne(*alive[static_cast<size_t>(
        scene_.chance.Between(0, static_cast<int64_t>(alive.size()) - 1))]);
  }
  if (!agents_.empty() && scene_.chance.OneIn(2)) HarmAgent();
  if (scene_.chance.OneIn(8)) coordinator_->Crash();
  if (scene_.chance.OneIn(10)) HarmMachine();
  if (scene_.chance.OneIn(10)) HarmLink();
  if (scene_.chance.OneIn(4)) Haunt();
  if (scene_.chance.OneIn(6)) ChangePace();
  scene_.timeline.After(scene_.chance.Milliseconds(100, 6000), [this] { Harm(); });
}

// A machine turns up to eight times slower or faster: hot, on battery, or shared with others.
void Simulation::ChangePace() {
  const auto node =
      static_cast<size_t>(scene_.chance.Between(0, static_cast<int64_t>(cluster_.size()) - 1));
  scene_.paces[cluster_[node]] = 0.001 * static_cast<double>(scene_.chance.Between(5, 40));
}

void Simulation::HarmOne(World& world) {
  const auto rank =
      static_cast<size_t>(scene_.chance.Between(0, static_cast<int64_t>(world.size()) - 1));
  const int64_t choice = scene_.chance.Between(0, 25);
  scene_.Trace(absl::StrCat("harm ", choice, " to rank ", rank, " of ", world.job().text(), "/",
                            world.generation().value()));
  if (choice <= 4) {
    world.CrashRank(rank);
  } else if (choice == 5 && world.options().external_id.empty()) {
    world.FreezeRank(rank, absl::Hours(24));  // only somebody else can end it
  } else if (choice <= 9) {
    world.FreezeRank(rank, scene_.chance.Milliseconds(100, 12000));
  } else if (choice <= 18) {
    world.CutRank(rank);
  } else if (choice == 19) {
    world.FailRank(rank, AnyFailure());
  } else if (choice == 20) {
    world.FailEverywhere(AnyFailure());
  } else if (choice == 21) {
    world.KillAll();
  } else {
    CutOff(world, rank);
  }
}

// One node of a world, or all of them, as when the coordinator's own cable is pulled; one way, too.
void Simulation::CutOff(const World& world, size_t rank) {
  const auto way = static_cast<Wire::Way>(scene_.chance.Between(0, 2));
  const absl::Duration time = scene_.chance.Milliseconds(200, 60000);
  const bool all = scene_.chance.OneIn(2);
  for (size_t i = 0; i < world.size(); ++i) {
    if (all || i == rank) wire_.Partition(world.options().nodes[i], time, way);
  }
}

// Between two nodes only, for a moment or for as long as anything goes wrong.
void Simulation::HarmLink() {
  const auto last = static_cast<int64_t>(cluster_.size()) - 1;
  const NodeName& a = cluster_[static_cast<size_t>(scene_.chance.Between(0, last))];
  const NodeName& b = cluster_[static_cast<size_t>(scene_.chance.Between(0, last))];
  const bool stays = scene_.chance.OneIn(3);
  const absl::Duration time = stays ? absl::Hours(1) : scene_.chance.Milliseconds(200, 30000);
  scene_.Trace(absl::StrCat("harm to the link of ", a.text(), " and ", b.text()));
  if (a != b) scene_.apart_until[std::minmax(a, b)] = scene_.timeline.now() + time;
}

absl::StatusCode Simulation::AnyFailure() {
  static constexpr absl::StatusCode kAny[] = {absl::StatusCode::kDataLoss,
                                              absl::StatusCode::kInternal,
                                              absl::StatusCode::kResourceExhausted};
  return kAny[scene_.chance.Between(0, 2)];
}

void Simulation::HarmAgent() {
  AgentProcess& agent = *agents_[static_cast<size_t>(
      scene_.chance.Between(0, static_cast<int64_t>(agents_.size()) - 1))];
  const int64_t choice = scene_.chance.Between(0, 9);
  scene_.Trace(absl::StrCat("harm ", choice, " to the agent of ", agent.node().text()));
  if (choice <= 2) {
    agent.End();
    scene_.timeline.After(scene_.chance.Milliseconds(10, 15000), [&agent] { agent.Begin(); });
  } else if (choice <= 5) {
    agent.Freeze(scene_.chance.Milliseconds(100, 30000));
  } else if (choice <= 7) {
    agent.Cut();
  } else if (choice == 8) {
    agent.Misreport(scene_.chance.Milliseconds(100, 10000));
  } else {
    rivals_.push_back(std::make_unique<AgentProcess>(
        scene_, wire_,
        AgentProcess::Options{.node = agent.node(),
                              .name = absl::StrCat("rival", rivals_.size()),
                              .coordinator_up = [this] { return coordinator_->listens(); }}));
    AgentProcess* rival = rivals_.back().get();
    rival->Begin();
    scene_.timeline.After(scene_.chance.Milliseconds(1000, 30000), [rival] { rival->End(); });
  }
}

// A machine of the cluster, or the coordinator's.
void Simulation::HarmMachine() {
  const auto node =
      static_cast<size_t>(scene_.chance.Between(0, static_cast<int64_t>(cluster_.size()) - 1));
  const int64_t choice = scene_.chance.Between(0, 12);
  scene_.Trace(absl::StrCat("harm ", choice, " to machines, ", cluster_[node].text()));
  if (choice <= 1) {
    SuspendNode(cluster_[node], AnySleep());
  } else if (choice == 2 && scene_.chance.OneIn(3)) {
    LoseForGood(cluster_[node]);
  } else if (choice <= 3) {
    LoseNode(cluster_[node], scene_.chance.Milliseconds(5000, 120000));
  } else if (choice == 4) {
    coordinator_->Correct(absl::Minutes(scene_.chance.Between(-600, 600)));
  } else if (choice == 5) {
    const absl::Duration time = AnySleep();
    awake_at_ = std::max(awake_at_, scene_.timeline.now() + time);
    coordinator_->Suspend(time);
  } else if (choice <= 7) {
    scene_.full_until[cluster_[node]] =
        scene_.timeline.now() + scene_.chance.Milliseconds(500, 30000);
  } else if (choice <= 9) {
    scene_.barren_until[cluster_[node]] =
        scene_.timeline.now() + scene_.chance.Milliseconds(5000, 60000);
  } else if (choice <= 11) {
    scene_.hot_until[cluster_[node]] =
        scene_.timeline.now() + scene_.chance.Milliseconds(500, 30000);
    if (!scene_.chance.OneIn(3)) return;
    // Nor can it be left with a checkpoint.
    const absl::Time until = scene_.timeline.now() + scene_.chance.Milliseconds(1000, 20000);
    for (const NodeName& each : cluster_) scene_.full_until[each] = until;
  } else {
    coordinator_->FillDisk(scene_.chance.Milliseconds(100, 20000));
  }
}

// Minutes, or hours.
absl::Duration Simulation::AnySleep() {
  if (scene_.chance.OneIn(25)) return absl::Minutes(scene_.chance.Between(20, 150));
  return scene_.chance.Milliseconds(500, 180000);
}

// It sleeps: nothing on it moves, and nothing reaches it; then all goes on as if nothing had been.
void Simulation::SuspendNode(const NodeName& node, absl::Duration time) {
  awake_at_ = std::max(awake_at_, scene_.timeline.now() + time);
  wire_.Partition(node, time, Wire::Way::kBoth);
  ForRanksOn(node, [time](World& world, size_t rank) { world.FreezeRank(rank, time); });
  for (const auto& agent : agents_) {
    if (agent->node() == node) agent->Freeze(time);
  }
}

// One whose agent tells that it is gone; else people would have to.
void Simulation::LoseForGood(const NodeName& node) {
  const Node* known = coordinator_->state().nodes.Find(node);
  if (known == nullptr || !known->record.has_agent) return;
  gone_.insert(node);
  LoseNode(node, absl::Hours(1000));
}

// Its power is cut; it comes back, with what is on its disk.
void Simulation::LoseNode(const NodeName& node, absl::Duration time) {
  wire_.Partition(node, time, Wire::Way::kBoth);
  ForRanksOn(node, [](World& world, size_t rank) { world.CrashRank(rank); });
  scene_.memories.Lose(node);
  for (const auto& agent : agents_) {
    if (agent->node() != node) continue;
    agent->End();
    scene_.timeline.After(time, [end = agent.get()] { end->Begin(); });
  }
}

void Simulation::ForRanksOn(const NodeName& node,
                            const std::function<void(World&, size_t)>& change) {
  for (const auto& world : worlds_) {
    const auto& nodes = world->options().nodes;
    for (size_t rank = 0; rank < nodes.size() && !world->over(); ++rank) {
      if (nodes[rank] == node) change(*world, rank);
    }
  }
}

void Simulation::Haunt() {
  std::vector<const World*> over;
  for (const auto& world : worlds_) {
    if (world->over() && world->options().external_id.empty()) over.push_back(world.get());
  }
  // The launcher's report may still be on its way for the last ones.
  const auto newest = [&](const World& world) {
    const auto job = coordinator_->journal().jobs.find(world.job());
    return job == coordinator_->journal().jobs.end() ||
           (job->second.generation == world.generation() &&
            job->second.processes != Processes::kNone);
  };
  if (!coordinator_->up() || over.empty()) return;
  const World& world =
      *over[static_cast<size_t>(scene_.chance.Between(0, static_cast<int64_t>(over.size()) - 1))];
  if (!newest(world)) ghosts_.push_back(std::make_unique<Ghost>(scene_, wire_, world));
}

}  // namespace espalier::sim
