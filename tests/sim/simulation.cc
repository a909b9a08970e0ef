#include "tests/sim/simulation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"
#include "common/observe/log.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/holders.h"

namespace espalier::sim {
namespace {

// After the faults. Jobs end within the first, stray processes within the second.
constexpr absl::Duration kJobsEnd = absl::Minutes(20);
constexpr absl::Duration kQuietTime = absl::Hours(4);

// Cheap quartz is right to a hundredth of this. Leases bear it while espalierd's clock is corrected
// by a tenth, too.
double AnyClockRate(Chance& chance) {
  return 1 + static_cast<double>(chance.Between(-10, 10)) / 1000;
}

constexpr int64_t kNewcomersMax = 2;

v1::JobSpec BaseSpec() {
  v1::JobSpec spec;
  spec.mutable_launch()->set_mode(v1::LAUNCH_MODE_MPIRUN);
  spec.mutable_launch()->set_timeout_seconds(5);
  spec.mutable_health()->set_restart_window_seconds(60);
  spec.mutable_model()->set_preset("nano");
  spec.mutable_data()->set_path("/data");
  return spec;
}

}  // namespace

Simulation::Simulation(const RunOptions& options)
    : options_(options),
      scene_(options.seed),
      wire_(scene_, [this](StreamId stream, Wire::Speaker speaker, const std::string* bytes) {
        coordinator_->Hear(stream, speaker, bytes);
      }) {
  scene_.keep_trace = options.trace;
  scene_.faults = !scene_.chance.OneIn(4);
  const int64_t nodes = scene_.chance.Between(1, 5);
  v1::ClusterSpec cluster;
  for (int64_t i = 0; i < nodes; ++i) {
    cluster_.push_back(NodeName(absl::StrCat("node", i)));
    v1::NodeSpec& node = *cluster.add_nodes();
    node.set_name(cluster_.back().text());
    node.set_on_heat("leave");
    node.set_on_battery("slow");
    if (i % 2 == 1) node.set_largest_share(0.3);
  }
  coordinator_ = std::make_unique<SimCoordinator>(SimCoordinator::Parts{
      .scene = scene_, .wire = wire_, .worlds = worlds_, .cluster = std::move(cluster)});
  for (const NodeName& node : cluster_) {
    scene_.clock_rates[node] = AnyClockRate(scene_.chance);
    scene_.paces[node] = 0.001 * static_cast<double>(scene_.chance.Between(5, 40));
  }
  coordinator_->SetClockRate(AnyClockRate(scene_.chance));
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
    spec.mutable_parallel()->set_max_nodes(
        static_cast<int32_t>(chance.Between(least, nodes + kNewcomersMax)));
  } else if (chance.OneIn(3)) {
    for (int64_t i = 0; i < least; ++i) {
      spec.mutable_parallel()->add_shares(static_cast<int32_t>(chance.Between(i == 0 ? 1 : 0, 5)));
    }
  }
  v1::HealthSpec& health = *spec.mutable_health();
  health.set_failure_timeout_seconds(0.5 * static_cast<double>(chance.Between(1, 10)));
  health.set_max_restarts(static_cast<int32_t>(chance.Between(1, 8)));
  health.set_restart_backoff_seconds(0.2);
  const int32_t most = std::max(spec.parallel().max_nodes(), spec.parallel().min_nodes());
  if (spec.train().global_batch() < most) spec.mutable_parallel()->set_plan(v1::PLAN_MODE_FIXED);
  FillJobDefaults(spec);
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
    v1::SubmitRequest request;
    request.set_request_id(absl::StrCat("request-", number));
    *request.mutable_spec() = spec;
    coordinator_->Ask(request);
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
  if (coordinator_->up() && scene_.chance.OneIn(12)) {
    const auto last = static_cast<int64_t>(cluster_.size()) - 1;
    coordinator_->Ask(NodeDrained{.node = cluster_[scene_.chance.Between(0, last)]});
  }
  if (scene_.chance.OneIn(8)) AllowNodes();
  if (asking_) {
    scene_.timeline.After(scene_.chance.Milliseconds(10, 6000), [this] { Ask(); });
  }
}

void Simulation::AllowNodes() {
  if (!coordinator_->up()) return;
  std::vector<NodeName> drained;
  for (const Node& node : coordinator_->state().nodes) {
    if (node.record.drained) drained.push_back(node.record.name);
  }
  for (const NodeName& name : drained) coordinator_->Ask(NodeAllowed{.node = name});
}

namespace {

template <typename Request>
Request About(const JobId& job) {
  Request request;
  request.set_job_id(job.text());
  return request;
}

v1::PauseRequest Pause(const JobId& job, bool hard) {
  auto request = About<v1::PauseRequest>(job);
  request.set_hard(hard);
  return request;
}

v1::CancelRequest Cancel(const JobId& job, bool checkpoint) {
  auto request = About<v1::CancelRequest>(job);
  request.set_checkpoint(checkpoint);
  return request;
}

v1::ResumeRequest Resume(const JobId& job, bool from_scratch) {
  auto request = About<v1::ResumeRequest>(job);
  request.set_from_scratch(from_scratch);
  return request;
}

}  // namespace

void Simulation::AskOne(const JobId& job) {
  const int64_t choice = scene_.chance.Between(0, 10);
  if (choice <= 4) {
    coordinator_->Ask(Pause(job, choice > 2));
  } else if (choice <= 8) {
    coordinator_->Ask(Resume(job, false));
  } else if (choice == 9) {
    coordinator_->Ask(About<v1::CheckpointRequest>(job));
  } else if (scene_.chance.OneIn(3)) {
    coordinator_->Ask(Cancel(job, scene_.chance.OneIn(2)));
  }
}

void Simulation::BringAgents() {
  for (const NodeName& node : cluster_) {
    if (scene_.chance.OneIn(2)) continue;
    agents_.push_back(std::make_unique<AgentProcess>(
        scene_, wire_,
        AgentProcess::Options{.node = node,
                              .name = absl::StrCat("agent", agents_.size()),
                              .coordinator_up = [this] { return coordinator_->listens(); }}));
    AgentProcess* agent = agents_.back().get();
    scene_.timeline.After(scene_.chance.Milliseconds(0, 20000), [agent] { agent->Begin(); });
  }
}

bool Simulation::AgentsAttached() const {
  return std::all_of(agents_.begin(), agents_.end(), [&](const auto& agent) {
    if (gone_.count(agent->node()) != 0) return true;
    const Node* node = coordinator_->state().nodes.Find(agent->node());
    return node != nullptr && node->agent.state == AgentState::kAttached;
  });
}

// On nodes whose agent would give it back.
bool Simulation::NothingKept() const {
  const NodeTable& nodes = coordinator_->state().nodes;
  return std::none_of(nodes.begin(), nodes.end(), [&](const Node& node) {
    return node.agent.state == AgentState::kAttached && scene_.memories.Any(node.record.name);
  });
}

bool Simulation::IsThere(const NodeName& node) const {
  if (std::find(cluster_.begin(), cluster_.end(), node) != cluster_.end()) {
    return gone_.count(node) == 0;
  }
  return std::any_of(newcomers_.begin(), newcomers_.end(), [&](const auto& newcomer) {
    return newcomer->node() == node && newcomer->member();
  });
}

void Simulation::Settle(const Job& job) {
  const JobRecord& record = job.record;
  if (IsFinal(record.state)) return;
  const auto there = static_cast<int32_t>(std::count_if(
      cluster_.begin(), cluster_.end(), [&](const auto& node) { return IsThere(node); }));
  if (!IsExternal(record) && record.spec.parallel().min_nodes() > there) {
    coordinator_->Ask(Cancel(record.id, false));
    return;
  }
  const Holders known(coordinator_->state(), record);
  const std::vector<NodeName> holders = known.Names();
  const bool held = std::any_of(holders.begin(), holders.end(),
                                [&](const NodeName& node) { return IsThere(node); });
  const bool gone = record.state == JobState::kQueued && known.needed() && !held;
  if (record.desired != DesiredState::kRun || gone) coordinator_->Ask(Resume(record.id, gone));
}

void Simulation::Tidy() {
  if (coordinator_->up()) {
    const std::map<JobId, Job> jobs = coordinator_->state().jobs;
    for (const auto& [id, job] : jobs) Settle(job);
    AllowNodes();
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

std::string Simulation::NotFinal() const {
  const auto& jobs = coordinator_->journal().jobs;
  for (const auto& [id, record] : jobs) {
    if (IsFinal(record.state)) continue;
    return absl::StrCat(id.text(), " is ", JobStateName(record.state), " (", record.reason, ")");
  }
  return "";
}

bool Simulation::AllOver() const {
  const bool known = static_cast<int64_t>(coordinator_->journal().jobs.size()) >= jobs_wanted_;
  return coordinator_->up() && known && NotFinal().empty() &&
         std::all_of(worlds_.begin(), worlds_.end(),
                     [](const auto& world) { return world->over(); });
}

RunResult Simulation::Run() {
  Timeline& timeline = scene_.timeline;
  coordinator_->Start();
  BringAgents();
  for (int64_t i = scene_.chance.Between(0, kNewcomersMax); i > 0; --i) {
    const NodeName name(absl::StrCat("newcomer", i));
    scene_.clock_rates[name] = AnyClockRate(scene_.chance);
    newcomers_.push_back(std::make_unique<Newcomer>(
        scene_, wire_,
        AgentProcess::Options{.node = name,
                              .name = name.text(),
                              .coordinator_up = [this] { return coordinator_->listens(); }},
        [this](const OperatorRequest& request, Newcomer::Answered answered) {
          coordinator_->Ask(request, std::move(answered));
        }));
    newcomers_.back()->Begin();
  }
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
    coordinator_->Correct(absl::ZeroDuration());
    Tidy();
  });
  timeline.At(quiet, [this] {
    scene_.timeline.At(std::max(scene_.timeline.now(), awake_at_) + kJobsEnd, [this] {
      const std::string open = NotFinal();
      if (!open.empty()) scene_.Break(absl::StrCat("long after the faults, ", open));
    });
  });
  while (scene_.broken.empty() && timeline.RunNext()) {
    if (timeline.now() >= quiet && AllOver() && AgentsAttached() && NothingKept()) break;
    if (timeline.now() > quiet + kQuietTime) break;
  }
  if (scene_.broken.empty()) coordinator_->inspector().OnQuiet();
  if (scene_.broken.empty() && !AgentsAttached()) scene_.Break("an agent never attaches");
  if (scene_.broken.empty() && !NothingKept()) scene_.Break("memory is never given back");
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

RunResult Simulate(const RunOptions& options) {
  SetLogLevel(LogLevel::kNothing);  // of all the espalierds of a run
  return Simulation(options).Run();
}

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
