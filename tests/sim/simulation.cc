#include "tests/sim/simulation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/holders.h"

namespace espalier::sim {
namespace {

constexpr absl::Duration kQuietTime = absl::Hours(4);

v1::JobSpec BaseSpec() {
  v1::JobSpec spec;
  spec.mutable_launch()->set_mode(v1::LAUNCH_MODE_MPIRUN);
  spec.mutable_launch()->set_timeout_seconds(5);
  spec.mutable_health()->set_restart_window_seconds(60);
  return spec;
}

}  // namespace

Simulation::Simulation(const RunOptions& options)
    : options_(options),
      scene_(options.seed),
      requests_(scene_),
      wire_(scene_, [this](const Event& event) { coordinator_->Deliver(event); }) {
  scene_.keep_trace = options.trace;
  scene_.faults = !scene_.chance.OneIn(4);
  const int64_t nodes = scene_.chance.Between(1, 5);
  for (int64_t i = 0; i < nodes; ++i) cluster_.push_back(NodeName(absl::StrCat("node", i)));
  coordinator_ = std::make_unique<SimCoordinator>(SimCoordinator::Parts{.scene = scene_,
                                                                        .wire = wire_,
                                                                        .worlds = worlds_,
                                                                        .cluster = cluster_,
                                                                        .requests = requests_});
}

v1::JobSpec Simulation::MakeSpec(int64_t number) {
  Chance& chance = scene_.chance;
  v1::JobSpec spec = BaseSpec();
  const auto nodes = static_cast<int64_t>(cluster_.size());
  spec.set_name(absl::StrCat("job", number));
  spec.set_priority(static_cast<int32_t>(chance.Between(0, 2)));
  spec.mutable_train()->set_steps(chance.Between(1, 60));
  spec.mutable_train()->set_global_batch(static_cast<int32_t>(chance.Between(1, 33)));
  spec.mutable_checkpoint()->set_every_steps(chance.Between(0, 10));
  spec.mutable_checkpoint()->set_copies(1 + static_cast<int32_t>(number % 2));
  const int64_t least = chance.Between(1, nodes);
  spec.mutable_parallel()->set_min_nodes(static_cast<int32_t>(least));
  if (chance.OneIn(3)) {
    spec.mutable_parallel()->set_max_nodes(static_cast<int32_t>(chance.Between(least, nodes)));
  } else if (chance.OneIn(3)) {
    for (int64_t i = 0; i < least; ++i) {
      spec.mutable_parallel()->add_shares(static_cast<int32_t>(chance.Between(i == 0 ? 1 : 0, 5)));
    }
  }
  v1::HealthSpec& health = *spec.mutable_health();
  health.set_failure_timeout_seconds(0.5 * static_cast<double>(chance.Between(1, 10)));
  health.set_max_restarts(static_cast<int32_t>(chance.Between(1, 8)));
  health.set_restart_backoff_seconds(0.2);
  return spec;
}

void Simulation::Submit(int64_t number) {
  v1::JobSpec spec = MakeSpec(number);
  if (scene_.chance.OneIn(6)) {
    spec.mutable_launch()->set_mode(v1::LAUNCH_MODE_EXTERNAL);
    by_hand_.push_back({.spec = spec});
    StartByHand(by_hand_.size() - 1);
    return;
  }
  // Asked until it is known: the answer may be lost with a coordinator.
  const auto ask = [this, spec, number](const auto& self) -> void {
    for (const auto& [id, record] : coordinator_->journal().jobs) {
      if (record.spec.name() == spec.name()) return;
    }
    coordinator_->Deliver(SubmitRequested{.request = next_request_ = next_request_.next(),
                                          .request_id = absl::StrCat("request-", number),
                                          .spec = spec});
    scene_.timeline.After(absl::Seconds(1), [self] { self(self); });
  };
  ask(ask);
}

// A person types mpirun once nothing of the last one is left.
void Simulation::StartByHand(size_t index) {
  HandStarted& job = by_hand_[index];
  if (job.world != nullptr && !job.world->over()) return;
  const auto least = static_cast<size_t>(job.spec.parallel().min_nodes());
  WorldOptions options;
  options.spec = job.spec;
  options.external_id = absl::StrCat("mpirun-", ++mpiruns_);
  for (size_t i = 0; i < least; ++i) {
    options.nodes.push_back(NodeName(absl::StrCat("hand", index, "-", i)));
  }
  worlds_.push_back(std::make_unique<World>(scene_, wire_, options, coordinator_->WorldHooks()));
  job.world = worlds_.back().get();
  job.world->Start();
}

void Simulation::Ask() {
  const auto& jobs = coordinator_->state().jobs;
  if (coordinator_->up() && !jobs.empty()) {
    auto job = jobs.begin();
    std::advance(job, scene_.chance.Between(0, static_cast<int64_t>(jobs.size()) - 1));
    AskOne(job->first);
  }
  if (scene_.chance.OneIn(4) && !by_hand_.empty()) StartByHand(0);
  if (asking_) {
    scene_.timeline.After(scene_.chance.Milliseconds(10, 6000), [this] { Ask(); });
  }
}

void Simulation::AskOne(const JobId& job) {
  const RequestId request = next_request_ = next_request_.next();
  const int64_t choice = scene_.chance.Between(0, 10);
  if (choice <= 2) {
    coordinator_->Deliver(PauseRequested{request, job, PauseKind::kSoft});
  } else if (choice <= 4) {
    coordinator_->Deliver(PauseRequested{request, job, PauseKind::kHard});
  } else if (choice <= 8) {
    coordinator_->Deliver(ResumeRequested{request, job});
  } else if (choice == 9) {
    coordinator_->Deliver(CheckpointRequested{request, job});
  } else if (scene_.chance.OneIn(3)) {
    coordinator_->Deliver(CancelRequested{request, job, scene_.chance.OneIn(2)});
  }
}

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
  if (scene_.chance.OneIn(4)) Haunt();
  scene_.timeline.After(scene_.chance.Milliseconds(100, 6000), [this] { Harm(); });
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

absl::StatusCode Simulation::AnyFailure() {
  return scene_.chance.OneIn(2) ? absl::StatusCode::kDataLoss : absl::StatusCode::kInternal;
}

void Simulation::BringAgents() {
  for (const NodeName& node : cluster_) {
    if (scene_.chance.OneIn(2)) continue;
    agents_.push_back(std::make_unique<AgentProcess>(
        scene_, wire_,
        AgentProcess::Options{.node = node,
                              .name = absl::StrCat("agent", agents_.size()),
                              .coordinator_up = [this] { return coordinator_->up(); }}));
    AgentProcess* agent = agents_.back().get();
    scene_.timeline.After(scene_.chance.Milliseconds(0, 20000), [agent] { agent->Begin(); });
  }
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
                              .coordinator_up = [this] { return coordinator_->up(); }}));
    AgentProcess* rival = rivals_.back().get();
    rival->Begin();
    scene_.timeline.After(scene_.chance.Milliseconds(1000, 30000), [rival] { rival->End(); });
  }
}

bool Simulation::AgentsAttached() const {
  return std::all_of(agents_.begin(), agents_.end(), [&](const auto& agent) {
    const Node* node = coordinator_->state().nodes.Find(agent->node());
    return node != nullptr && node->agent.state == AgentState::kAttached;
  });
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

void Simulation::Tidy() {
  if (coordinator_->up()) {
    std::vector<ResumeRequested> wanted;
    for (const auto& [id, job] : coordinator_->state().jobs) {
      const bool paused = job.record.desired != DesiredState::kRun;
      const bool gone = StateIsGone(job.record) && job.record.state == JobState::kQueued;
      if (IsFinal(job.record.state) || !(paused || gone)) continue;
      wanted.push_back({.job = id, .from_scratch = gone});
    }
    for (ResumeRequested& one : wanted) {
      one.request = next_request_ = next_request_.next();
      coordinator_->Deliver(one);
    }
  }
  for (size_t i = 0; i < by_hand_.size(); ++i) {
    const auto& jobs = coordinator_->state().jobs;
    const bool wanted = std::any_of(jobs.begin(), jobs.end(), [&](const auto& entry) {
      const JobRecord& record = entry.second.record;
      return record.spec.name() == by_hand_[i].spec.name() && !IsFinal(record.state);
    });
    if (wanted) StartByHand(i);
  }
  scene_.timeline.After(absl::Seconds(5), [this] { Tidy(); });
}

bool Simulation::AllFinal() const {
  const auto& jobs = coordinator_->journal().jobs;
  if (!coordinator_->up() || static_cast<int64_t>(jobs.size()) < jobs_wanted_) return false;
  const bool final = std::all_of(jobs.begin(), jobs.end(),
                                 [](const auto& entry) { return IsFinal(entry.second.state); });
  return final && std::all_of(worlds_.begin(), worlds_.end(),
                              [](const auto& world) { return world->over(); });
}

RunResult Simulation::Run() {
  Timeline& timeline = scene_.timeline;
  coordinator_->Start();
  BringAgents();
  jobs_wanted_ = scene_.chance.Between(1, 4);
  for (int64_t i = 0; i < jobs_wanted_; ++i) {
    timeline.After(scene_.chance.Milliseconds(0, 30000), [this, i] { Submit(i); });
  }
  timeline.After(scene_.chance.Milliseconds(0, 5000), [this] { Ask(); });
  timeline.After(scene_.chance.Milliseconds(0, 5000), [this] { Harm(); });
  const absl::Time quiet = timeline.now() + options_.fault_time;
  timeline.At(quiet, [this] {
    scene_.faults = false;
    asking_ = false;
    Tidy();
  });
  while (scene_.broken.empty() && timeline.RunNext()) {
    if (timeline.now() >= quiet && AllFinal() && AgentsAttached()) break;
    if (timeline.now() > quiet + kQuietTime) break;
  }
  if (scene_.broken.empty()) coordinator_->inspector().OnQuiet();
  if (scene_.broken.empty() && !AgentsAttached()) scene_.Break("an agent never attaches");
  RunResult result{.seed = options_.seed,
                   .trace = scene_.trace,
                   .fingerprint = scene_.fingerprint,
                   .generations = static_cast<int64_t>(worlds_.size())};
  for (const auto& [id, record] : coordinator_->journal().jobs) ++result.ends[record.state];
  if (!scene_.broken.empty()) {
    result.failure = absl::StrCat("seed ", options_.seed, ": ", scene_.broken,
                                  "\n  replay: espalier_sim --from ", options_.seed,
                                  " --trace --faults ", absl::ToDoubleSeconds(options_.fault_time));
  }
  return result;
}

RunResult Simulate(const RunOptions& options) { return Simulation(options).Run(); }

// Until faults stop, a run does not depend on when they will: a shorter one is a prefix.
RunResult Shrink(RunOptions options) {
  constexpr absl::Duration kStep = absl::Milliseconds(100);
  RunResult shortest = Simulate(options);
  int64_t passes = 0;
  int64_t fails = options.fault_time / kStep;
  while (!shortest.failure.empty() && fails - passes > 1) {
    const int64_t middle = passes + (fails - passes) / 2;
    options.fault_time = middle * kStep;
    RunResult result = Simulate(options);
    if (result.failure.empty()) {
      passes = middle;
    } else {
      fails = middle;
      shortest = std::move(result);
    }
  }
  return shortest;
}

}  // namespace espalier::sim
