#include "tests/sim/inspector.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/faults.h"
#include "coordinator/core/job_state.h"
#include "tests/sim/describe.h"
#include "tests/sim/journal_rules.h"
#include "tests/sim/node_rules.h"
#include "tests/sim/queue_rules.h"
#include "tests/sim/world_rules.h"

namespace espalier::sim {

bool Inspector::Require(bool rule, const std::string& what) {
  if (!rule) scene_.Break(what);
  return rule;
}

void Inspector::OnWriting(const std::vector<Effect>& effects) {
  for (const Effect& effect : effects) {
    CheckFinal(effect);
    if (const auto* row = std::get_if<AppendEvent>(&effect)) CheckHistory(*row);
    if (const auto* job = std::get_if<PersistJob>(&effect)) {
      begun_.emplace(GenerationKey{job->record.id, job->record.generation}, scene_.timeline.now());
    }
    written_.push_back(effect);
  }
}

void Inspector::OnPublished(const ClusterState& state, int64_t events) {
  batched_ = events != 1;
  state_ = &state;
  for (const auto& [id, job] : state.jobs) CheckJob(job, state.now);
  const std::string holder = FindWrongHolder(state);
  Require(holder.empty(), holder);
  const std::string agent = FindWrongAgent(state, scene_);
  Require(agent.empty(), agent);
  CheckLaunchRows();
  const std::string idle = FindIdleBesideAJob(state);
  Require(idle.empty(), idle);
  const std::string vain = batched_ ? "" : FindVainPreemption(state, written_);
  Require(vain.empty(), vain);
  const std::string drained =
      FindJobOnBarredNode(state, batched_ ? std::vector<Effect>() : written_);
  Require(drained.empty(), drained);
  const std::string forgotten = FindForgotten(state, journal_);
  Require(forgotten.empty(), forgotten);
  written_.clear();
}

// Nothing is journaled of a job that was final before.
void Inspector::CheckFinal(const Effect& effect) {
  const auto was_final = [&](const JobId& id) {
    const auto found = journal_.jobs.find(id);
    return found != journal_.jobs.end() && IsFinal(found->second.state);
  };
  JobId job;
  if (const auto* persist = std::get_if<PersistJob>(&effect)) job = persist->record.id;
  if (const auto* row = std::get_if<AppendEvent>(&effect)) job = row->job;
  Require(!was_final(job), absl::StrCat("something is journaled of the final job ", job.text()));
}

// A run that is well is stopped for nobody who may not be able to train it.
void Inspector::CheckGuests(const AppendEvent& row) {
  const size_t end = row.text.find(" can be had; ");
  if (end == std::string::npos) return;
  const std::vector<std::string> names = absl::StrSplit(row.text.substr(0, end), ", ");
  for (const std::string& name : names) {
    const Node* node = state_->nodes.Find(NodeName(name));
    const bool asked = node != nullptr && node->record.has_agent;
    Require(!asked || scene_.rehearsed.count({NodeName(name), row.job}) > 0,
            absl::StrCat(row.job.text(), " stops for ", name, ", which never rehearsed it"));
  }
}

// A row books one fault of the record that is written with it: the newest that no row before has.
void Inspector::NoteRestart(const JobId& job) {
  ++restarts_[job];
  const auto record = std::find_if(written_.rbegin(), written_.rend(), [&](const Effect& effect) {
    const auto* persist = std::get_if<PersistJob>(&effect);
    return persist != nullptr && persist->record.id == job;
  });
  if (!Require(record != written_.rend(), "a restart is not journaled")) return;
  const std::vector<absl::Time>& faults = std::get<PersistJob>(*record).record.faults;
  for (auto fault = faults.rbegin(); fault != faults.rend(); ++fault) {
    if (faults_[job].insert(absl::ToUnixMillis(*fault)).second) return;
  }
}

// History rows are numbered without gaps, and follow the table of transitions.
void Inspector::CheckHistory(const AppendEvent& row) {
  CheckGuests(row);
  Require(!row.text.empty(), absl::StrCat("a transition of ", row.job.text(), " has no reason"));
  const auto before = states_.find(row.job);
  if (before == states_.end()) {
    Require(row.state == JobState::kQueued, "a job begins in another state than QUEUED");
  } else {
    Require(TransitionAllowed(before->second, row.state),
            absl::StrCat(row.job.text(), " went from ", JobStateName(before->second), " to ",
                         JobStateName(row.state)));
    const bool entered = before->second != row.state && row.state == JobState::kRecovering;
    if (entered) {
      const bool free = StartsAgainUncounted(row, journal_);
      const absl::Duration ahead = state_ == nullptr ? absl::ZeroDuration() : state_->wall_ahead;
      last_fault_[row.job] = free ? absl::InfinitePast() : row.time - ahead;
      if (absl::StrContains(row.text, "; restart ")) NoteRestart(row.job);
      CheckFault(row.job);
    }
    if (before->second == JobState::kRecovering && row.state == JobState::kLaunching) {
      relaunches_[row.job].push_back(last_fault_[row.job]);
    }
  }
  states_[row.job] = row.state;
}

// No fault without a cause: nobody is blamed for what the coordinator itself has missed.
void Inspector::CheckFault(const JobId& job) {
  const auto record = journal_.jobs.find(job);
  for (const auto& world : worlds_) {
    // People may start two mpiruns on the same machines.
    if (!world->options().external_id.empty()) continue;
    const bool newest = record != journal_.jobs.end() && world->job() == job &&
                        world->generation() == record->second.generation;
    Require(!newest || !world->unharmed(),
            absl::StrCat(job.text(), " is RECOVERING, but nothing was done to generation ",
                         world->generation().value()));
  }
}

// Machines fail, jobs do not: without the restarts being used up, only what every rank met, or what
// came twice and is no single machine's, ends a job.
void Inspector::CheckFailed(const JobRecord& record) {
  const JobId& job = record.id;
  const int32_t limit = record.spec.health().max_restarts();
  if (absl::StrContains(record.verdict_reason, "; no restart is left")) {
    // One more may have been met before the step that was new.
    Require(restarts_[job] + 1 >= limit,
            absl::StrCat(job.text(), " is FAILED, but has a new step since restart ",
                         limit - restarts_[job], " of ", limit));
    return;
  }
  bool cause = false;
  std::map<std::pair<absl::StatusCode, Step>, std::set<NodeName>> met;
  for (const Failure& failure : scene_.failures[job]) {
    if (failure.barren && CouldGoOn(*state_, record, failure.nodes.front())) continue;
    cause = cause || (failure.everywhere && IsBadInput(failure.code));
    std::set<NodeName>& nodes = met[{failure.code, failure.step}];
    const bool again = !nodes.empty();
    nodes.insert(failure.nodes.begin(), failure.nodes.end());
    cause = cause || (again && (nodes.size() > 1 || IsBadInput(failure.code)));
  }
  Require(cause, absl::StrCat(job.text(), " is FAILED after faults of machines, with ",
                              record.faults.size(), " of ", limit, " restarts used"));
}

void Inspector::CheckJob(const Job& job, absl::Time now) {
  const JobRecord& record = job.record;
  Require(record.step <= scene_.committed[record.id],
          absl::StrCat(record.id.text(), " is said to be at step ", record.step.value(),
                       ", which nobody committed"));
  if (record.verdict == Verdict::kFail && judged_.insert(record.id).second) CheckFailed(record);
  if (record.step > furthest_[record.id]) {
    relaunches_[record.id].clear();
    restarts_[record.id] = 0;
  }
  furthest_[record.id] = std::max(furthest_[record.id], record.step);
  const GenerationKey key{record.id, record.generation};
  if (record.state == JobState::kRunning || record.state == JobState::kPausedSoft) {
    Step& seen = steps_[key];
    Require(record.step >= seen, absl::StrCat("the step of ", Describe(key), " went back from ",
                                              seen.value(), " to ", record.step.value()));
    seen = std::max(seen, record.step);
  }
  Require(record.step.value() <= record.spec.train().steps(), "more steps than there are");
  const JobState state = record.state;
  const bool none = record.processes == Processes::kNone;
  if (IsFinal(state) || state == JobState::kQueued || state == JobState::kPausedHard) {
    Require(none, absl::StrCat(Describe(key), " has processes while ", JobStateName(state)));
  } else if (state != JobState::kRecovering && state != JobState::kRegrouping) {
    Require(!none, absl::StrCat(Describe(key), " has no processes while ", JobStateName(state)));
  }
  if (record.state == JobState::kCompleted) {
    const auto& disks = scene_.disks[record.id];
    const bool kept = std::any_of(disks.begin(), disks.end(), [&](const auto& disk) {
      return disk.second.value() == record.spec.train().steps();
    });
    Require(kept, absl::StrCat(record.id.text(), " is COMPLETED without its last checkpoint"));
  }
  if (!IsFinal(state)) CheckRestarts(job, now);
}

// What is booked has happened. One generation more: of those that ended while nobody looked, the
// first is not counted.
void Inspector::CheckRestarts(const Job& job, absl::Time now) {
  const auto limit = static_cast<size_t>(job.record.spec.health().max_restarts());
  const absl::Duration window = absl::Seconds(job.record.spec.health().restart_window_seconds());
  auto& times = relaunches_[job.record.id];
  for (const absl::Time fault : job.record.faults) {
    Require(faults_[job.record.id].count(absl::ToUnixMillis(fault)) != 0,
            absl::StrCat("a fault of ", job.record.id.text(), " is booked that never was"));
  }
  for (absl::Time& time : times) time = std::min(time, now);  // the wall clock was corrected since
  times.erase(std::remove_if(times.begin(), times.end(),
                             [&](absl::Time time) { return now - time >= window; }),
              times.end());
  Require(times.size() <= limit + 1,
          absl::StrCat(times.size(), " restarts of ", job.record.id.text(),
                       " within the window, without a new step"));
}

// A transition and its row of the history are written together.
void Inspector::OnWritten() {
  for (const auto& [id, record] : journal_.jobs) {
    const auto history = journal_.history.find(id);
    if (!Require(history != journal_.history.end(), id.text() + " has no history")) continue;
    const AppendEvent& last = history->second.back();
    Require(last.number == record.last_event && last.state == record.state,
            absl::StrCat(id.text(), " is journaled as ", JobStateName(record.state),
                         ", but its history ends with row ", last.number, ", ",
                         JobStateName(last.state)));
  }
}

// What the journal says to run, and only that, has a launch in it; but for hand-started ones, and
// what has not been launched yet.
void Inspector::CheckLaunchRows() {
  for (const GenerationKey& key : journal_.launches) {
    const auto found = journal_.jobs.find(key.job);
    const bool runs = found != journal_.jobs.end() && found->second.generation == key.generation &&
                      found->second.processes != Processes::kNone;
    Require(runs,
            absl::StrCat("the launch of ", Describe(key), " is in the journal, but it is over"));
  }
}

void Inspector::OnLooked(absl::Time listening_since, absl::Duration tick) {
  if (state_ == nullptr) return;
  const std::string unnoticed =
      FindUnnoticed(*state_, worlds_, {scene_.timeline.now(), listening_since, tick, begun_});
  Require(unnoticed.empty(), unnoticed);
}

void Inspector::OnAgreed(const World& world) {
  const std::string lost = FindLostStep(world, journal_, scene_);
  Require(lost.empty(), lost);
}

// One generation commits, and publishes.
void Inspector::OnBegin(const World& world) {
  CheckWanted(world, "begins a step");
  CheckShares(world);
}

// The shares in force are a plan that was journaled before it was told, one for each rank, and add
// up to the global batch.
void Inspector::CheckShares(const World& world) {
  const GenerationKey key{world.job(), world.generation()};
  const auto found = journal_.jobs.find(key.job);
  if (found == journal_.jobs.end() || found->second.generation != key.generation) return;
  const JobRecord& record = found->second;
  const ShardPlan& plan = world.plan();
  Require(plan.sequences.size() == world.size() &&
              std::accumulate(plan.sequences.begin(), plan.sequences.end(), 0) ==
                  record.spec.train().global_batch(),
          absl::StrCat(Describe(key), " begins a step by plan ", plan.number,
                       ", which does not give the global batch to its ranks"));
  const ShardPlan& newest = record.directive.plan;
  Require(plan.number < newest.number || plan == newest,
          absl::StrCat(Describe(key), " begins a step by plan ", plan.number,
                       ", which is not the journal's"));
  const bool measured = record.spec.parallel().plan() == v1::PLAN_MODE_MEASURED;
  const bool idle = std::count(plan.sequences.begin(), plan.sequences.end(), 0) > 0;
  Require(!measured || !idle, absl::StrCat(Describe(key), " has a rank without sequences"));
}

void Inspector::OnCheckpoint(const World& world, size_t rank) {
  CheckWanted(world,
              absl::StrCat("publishes a checkpoint on ", world.options().nodes[rank].text()));
}

void Inspector::CheckWanted(const World& world, const std::string& does) {
  const GenerationKey key{world.job(), world.generation()};
  const auto found = journal_.jobs.find(key.job);
  if (!Require(found != journal_.jobs.end(), "something done for a job that is not journaled"))
    return;
  const JobRecord& record = found->second;
  Require(record.generation == key.generation,
          absl::StrCat(Describe(key), " ", does, ", but the newest generation is ",
                       record.generation.value()));
  Require(record.processes != Processes::kNone,
          absl::StrCat(Describe(key), " ", does, ", but nothing of it is said to run (",
                       JobStateName(record.state), ")"));
}

void Inspector::OnCommit(const World& world) {
  // The step that was begun within the lease.
  if (world.orphaned() || !world.options().external_id.empty()) return;
  const GenerationKey key{world.job(), world.generation()};
  const auto found = journal_.jobs.find(key.job);
  if (!Require(found != journal_.jobs.end(), "a step of a job that is not journaled")) return;
  const JobRecord& record = found->second;
  Require(record.generation == key.generation,
          absl::StrCat(Describe(key), " commits a step, but the newest generation is ",
                       record.generation.value()));
  if (record.generation != key.generation) return;
  Require(record.state != JobState::kPausedSoft && record.state != JobState::kPausedHard &&
              !IsFinal(record.state),
          absl::StrCat(Describe(key), " commits a step while ", JobStateName(record.state)));
  for (const auto& other : worlds_) {
    Require(other.get() == &world || other->over() || other->orphaned() ||
                other->job() != world.job() || !other->options().external_id.empty(),
            absl::StrCat("two generations of ", world.job().text(), " are alive"));
  }
}

void Inspector::OnRestart(absl::Time now) {
  // What a clock that was set back has made the future counts as now; unless this start fails.
  for (auto& [id, times] : faults_) {
    const int64_t ms = absl::ToUnixMillis(now);
    if (!times.empty() && *times.rbegin() > ms) times.insert(ms);
  }
  for (auto& [id, times] : relaunches_) {
    for (absl::Time& time : times) time = std::min(time, now);
  }
  for (auto& [id, time] : last_fault_) time = std::min(time, now);
  states_.clear();
  steps_.clear();
  written_.clear();
  state_ = nullptr;
  for (const auto& [id, record] : journal_.jobs) {
    states_[id] = record.state;
    furthest_[id] = std::max(record.step, record.fault_step);
    restarts_[id] = static_cast<int32_t>(record.faults.size());
  }
  streams_.clear();
}

void Inspector::OnQuiet() {
  for (const auto& [id, record] : journal_.jobs) {
    Require(IsFinal(record.state),
            absl::StrCat(id.text(), " does not end: it is ", JobStateName(record.state), " (",
                         record.reason, ")"));
    const auto& history = journal_.history.at(id);
    for (size_t i = 0; i < history.size(); ++i) {
      Require(history[i].number == static_cast<int64_t>(i) + 1,
              absl::StrCat("the history of ", id.text(), " has a gap"));
    }
  }
  for (const auto& world : worlds_) {
    Require(world->over() || !world->options().external_id.empty(),
            absl::StrCat("processes of ", world->job().text(), " are left"));
  }
}

}  // namespace espalier::sim
