#include "tests/sim/sim_coordinator.h"

#include <algorithm>
#include <utility>

#include "coordinator/journal/record.h"
#include "tests/sim/describe.h"

namespace espalier::sim {
namespace {

// A stray process that nobody could reach is ended after so long, by a person at the latest.
constexpr absl::Duration kStrayLimit = absl::Minutes(40);
// Minutes by which a clock is corrected at most.
constexpr int64_t kClockJump = 600;

// As the journal holds it: in bytes.
JobRecord ThroughBytes(const JobRecord& record) { return *DecodeJob(EncodeJob(record)); }
NodeRecord ThroughBytes(const NodeRecord& record) { return *DecodeNode(EncodeNode(record)); }

}  // namespace

void SimCoordinator::Start() {
  up_ = true;
  ++life_;
  state_ = ClusterState{};
  inspector_.OnRestart(parts_.scene.timeline.now() + clock_off_);
  parts_.scene.Trace("coordinator starts");
  CoordinatorStarted start = journal_.Contents(parts_.cluster);
  start.versions.set_open_mpi("4.1.4");
  Deliver(start);
  if (!up_) return;
  // The launcher reports what ended while nobody looked, and what never came to life.
  for (const GenerationKey& key : start.launches) {
    ProcessesExited exited{key, "ended while nobody looked"};
    const World* world = FindWorld(key);
    const bool alive = world != nullptr && !world->over();
    if (alive && world->orphaned()) exited.unconfirmed = world->LivingNodes();
    if (!alive || world->orphaned()) Deliver(exited);
    if (!up_) return;
  }
  KeepTicking(life_);
}

void SimCoordinator::KeepTicking(int64_t life) {
  if (!up_ || life != life_) return;
  Deliver(Tick{});
  Scene& scene = parts_.scene;
  if (scene.chance.OneIn(100)) Stall(scene.chance.Milliseconds(100, 8000));
  scene.timeline.After(scene.chance.Milliseconds(200, 300), [this, life] { KeepTicking(life); });
}

void SimCoordinator::Stall(absl::Duration time) {
  if (stalled_ || !up_) return;
  stalled_ = true;
  parts_.scene.Trace("coordinator waits for its disk");
  parts_.scene.timeline.After(time, [this, life = life_] {
    if (life == life_) GoOn();
  });
}

void SimCoordinator::GoOn() {
  if (!stalled_) return;
  stalled_ = false;
  // The streams are read on only now: what they brought meanwhile may come after the tick.
  if (parts_.scene.chance.OneIn(2)) Decide(Tick{});
  for (const Event& event : std::exchange(waiting_, {})) Decide(event);
}

void SimCoordinator::Crash() {
  if (!up_) return;
  up_ = false;
  stalled_ = false;
  waiting_.clear();
  Scene& scene = parts_.scene;
  scene.Trace("coordinator crashes");
  parts_.wire.CoordinatorDied();
  if (scene.chance.OneIn(4)) {
    clock_off_ += absl::Minutes(scene.chance.Between(-kClockJump, kClockJump));
  }
  const absl::Duration away = scene.chance.OneIn(4) ? scene.chance.Milliseconds(2000, 20000)
                                                    : scene.chance.Milliseconds(50, 1000);
  scene.timeline.After(away, [this] { Start(); });
}

void SimCoordinator::Deliver(const Event& event) {
  if (!up_) return;
  if (!stalled_) return Decide(event);
  if (!std::holds_alternative<Tick>(event)) waiting_.push_back(event);
}

void SimCoordinator::Decide(const Event& event) {
  Scene& scene = parts_.scene;
  if (!up_ || !scene.broken.empty()) return;
  if (const std::string text = Describe(event); !text.empty()) scene.Trace(text);
  const std::vector<Effect> effects = Advance(state_, event, scene.timeline.now() + clock_off_);
  inspector_.OnDecided(state_, effects);
  parts_.requests.OnAsked(event);
  if (!Apply(effects)) {
    Crash();
  } else {
    parts_.requests.OnApplied(event);
    inspector_.OnApplied(state_);
  }
}

bool SimCoordinator::Apply(const std::vector<Effect>& effects) {
  Scene& scene = parts_.scene;
  if (effects.empty()) return true;
  if (scene.Fault(1500)) return false;
  CommitJournal(effects);
  for (const Effect& effect : effects) {
    inspector_.OnEffect(effect);
    // Where the journal says more than was done, the next coordinator has most to make good.
    const bool acts =
        std::holds_alternative<Launch>(effect) || std::holds_alternative<Kill>(effect);
    if (scene.Fault(acts ? 40 : 1500)) return false;
    scene.Trace(Describe(effect));
    if (!ApplyOne(effect)) return false;
  }
  return true;
}

void SimCoordinator::CommitJournal(const std::vector<Effect>& effects) {
  for (const Effect& effect : effects) {
    if (const auto* persist = std::get_if<PersistJob>(&effect)) {
      journal_.Put(ThroughBytes(persist->record));
    } else if (const auto* forget = std::get_if<ForgetJob>(&effect)) {
      journal_.jobs.erase(forget->job);
      journal_.history.erase(forget->job);
    } else if (const auto* node = std::get_if<PersistNode>(&effect)) {
      journal_.nodes[node->record.name] = ThroughBytes(node->record);
    } else if (const auto* row = std::get_if<AppendEvent>(&effect)) {
      journal_.history[row->job].push_back(*row);
    }
  }
  inspector_.OnCommitted();
}

bool SimCoordinator::ApplyOne(const Effect& effect) {
  if (const auto* welcome = std::get_if<Welcome>(&effect)) {
    parts_.wire.Down(*welcome);
  } else if (const auto* directive = std::get_if<SendDirective>(&effect)) {
    parts_.wire.Down(*directive);
  } else if (const auto* renewal = std::get_if<RenewLease>(&effect)) {
    parts_.wire.Down(*renewal);
  } else if (const auto* close = std::get_if<CloseStream>(&effect)) {
    parts_.wire.CloseByCoordinator(*close);
  } else if (const auto* launch = std::get_if<Launch>(&effect)) {
    return LaunchWorld(*launch);
  } else if (const auto* kill = std::get_if<Kill>(&effect)) {
    KillWorld(*kill);
  } else if (const auto* reply = std::get_if<Reply>(&effect)) {
    parts_.requests.OnReply(*reply, journal_);
  }
  return true;
}

bool SimCoordinator::LaunchWorld(const Launch& launch) {
  Scene& scene = parts_.scene;
  const bool cut_off =
      std::any_of(launch.nodes.begin(), launch.nodes.end(),
                  [&](const NodeName& node) { return parts_.wire.Partitioned(node); });
  if (cut_off || scene.Fault(12)) {
    scene.timeline.After(scene.chance.Milliseconds(1, 50), [this, launch] {
      Deliver(LaunchFailed{launch.key, "mpirun could not be run"});
    });
    return true;
  }
  journal_.launches.insert(launch.key);
  if (scene.Fault(100)) return false;  // its process waits at the gate, and dies there
  const JobRecord& record = journal_.jobs.at(launch.key.job);
  parts_.worlds.push_back(std::make_unique<World>(
      scene, parts_.wire,
      WorldOptions{.key = launch.key, .nodes = launch.nodes, .spec = record.spec}, WorldHooks()));
  parts_.worlds.back()->Start();
  return true;
}

void SimCoordinator::KillWorld(const Kill& kill) {
  Scene& scene = parts_.scene;
  World* world = FindWorld(kill.key);
  if (world == nullptr) return;
  const absl::Duration wait =
      scene.Fault(10) ? scene.chance.Milliseconds(1000, 6000) : scene.chance.Milliseconds(20, 400);
  scene.timeline.After(wait, [this, world] { EndWorld(*world); });
}

// What cannot be reached lives on.
void SimCoordinator::EndWorld(World& world) {
  Scene& scene = parts_.scene;
  if (world.over()) return;
  const auto reached = [&](const NodeName& node) {
    return !parts_.wire.Partitioned(node) && !scene.Fault(20);
  };
  const std::vector<NodeName> left = world.KillSome(reached);
  if (left.empty()) return;
  // In the end, somebody does.
  scene.timeline.After(kStrayLimit, [&world] { world.KillAll(); });
  const GenerationKey key{world.job(), world.generation()};
  Deliver(ProcessesExited{.key = key, .reason = "mpirun was killed", .unconfirmed = left});
}

World* SimCoordinator::FindWorld(const GenerationKey& key) const {
  for (const auto& world : parts_.worlds) {
    const bool launched = world->options().external_id.empty();
    if (launched && world->job() == key.job && world->generation() == key.generation) {
      return world.get();
    }
  }
  return nullptr;
}

World::Hooks SimCoordinator::WorldHooks() {
  return {.beginning = [this](const World& world) { inspector_.OnBegin(world); },
          .committing = [this](const World& world) { inspector_.OnCommit(world); },
          .ended = [this](World& world) { OnWorldEnded(world); },
          .coordinator_up = [this] { return up_; }};
}

void SimCoordinator::OnWorldEnded(const World& world) {
  if (!world.options().external_id.empty()) return;
  Deliver(ProcessesExited{{world.job(), world.generation()}, "mpirun exited"});
}

}  // namespace espalier::sim
