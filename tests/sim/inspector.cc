#include "tests/sim/inspector.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "coordinator/core/facts.h"

namespace espalier::sim {
namespace {

std::string KeyText(const GenerationKey& key) {
  return absl::StrCat(key.job.text(), "/", key.generation.value());
}

const std::set<std::pair<JobState, JobState>>& AllowedTransitions() {
  using S = JobState;
  static const auto& table = *new std::set<std::pair<S, S>>{
      {S::kQueued, S::kLaunching},      {S::kQueued, S::kPausedHard},
      {S::kQueued, S::kCancelled},      {S::kLaunching, S::kRunning},
      {S::kLaunching, S::kPausing},     {S::kLaunching, S::kRecovering},
      {S::kLaunching, S::kCancelling},  {S::kLaunching, S::kFailed},
      {S::kLaunching, S::kCompleted},   {S::kRunning, S::kPausing},
      {S::kRunning, S::kRecovering},    {S::kRunning, S::kRegrouping},
      {S::kRunning, S::kCancelling},    {S::kRunning, S::kCompleted},
      {S::kRunning, S::kFailed},        {S::kPausing, S::kRunning},
      {S::kPausing, S::kPausedSoft},    {S::kPausing, S::kPausedHard},
      {S::kPausing, S::kQueued},        {S::kPausing, S::kRecovering},
      {S::kPausing, S::kCancelling},    {S::kPausing, S::kCompleted},
      {S::kPausing, S::kFailed},        {S::kPausedSoft, S::kRunning},
      {S::kPausedSoft, S::kPausing},    {S::kPausedSoft, S::kCancelling},
      {S::kPausedSoft, S::kFailed},     {S::kPausedHard, S::kQueued},
      {S::kPausedHard, S::kCancelled},  {S::kRegrouping, S::kLaunching},
      {S::kRegrouping, S::kQueued},     {S::kRegrouping, S::kRecovering},
      {S::kRegrouping, S::kPausedHard}, {S::kRegrouping, S::kCancelling},
      {S::kRegrouping, S::kCompleted},  {S::kRegrouping, S::kFailed},
      {S::kRegrouping, S::kCancelled},  {S::kRecovering, S::kLaunching},
      {S::kRecovering, S::kQueued},     {S::kRecovering, S::kPausedHard},
      {S::kRecovering, S::kFailed},     {S::kRecovering, S::kCompleted},
      {S::kRecovering, S::kCancelling}, {S::kRecovering, S::kCancelled},
      {S::kCancelling, S::kCancelled},  {S::kCancelling, S::kCompleted}};
  return table;
}

}  // namespace

bool TransitionAllowed(JobState from, JobState to) {
  return from == to || AllowedTransitions().count({from, to}) != 0;
}

bool Inspector::Require(bool rule, const std::string& what) {
  if (!rule) scene_.Break(what);
  return rule;
}

void Inspector::OnDecided(const ClusterState& state, const std::vector<Effect>& effects) {
  for (const Effect& effect : effects) {
    CheckFinal(effect);
    if (const auto* row = std::get_if<AppendEvent>(&effect)) CheckHistory(*row);
  }
  for (const auto& [id, job] : state.jobs) CheckJob(job);
  CheckNodes(state);
}

// No effect for a job that was final before this event.
void Inspector::CheckFinal(const Effect& effect) {
  const auto was_final = [&](const JobId& id) {
    const auto found = journal_.jobs.find(id);
    return found != journal_.jobs.end() && IsFinal(found->second.state);
  };
  JobId job;
  if (const auto* persist = std::get_if<PersistJob>(&effect)) job = persist->record.id;
  if (const auto* row = std::get_if<AppendEvent>(&effect)) job = row->job;
  if (const auto* welcome = std::get_if<Welcome>(&effect)) job = welcome->worker.job;
  if (const auto* launch = std::get_if<Launch>(&effect)) job = launch->key.job;
  if (const auto* kill = std::get_if<Kill>(&effect)) job = kill->key.job;
  Require(!was_final(job), absl::StrCat("an effect for the final job ", job.text()));
}

// History rows are numbered without gaps, and follow the table of transitions.
void Inspector::CheckHistory(const AppendEvent& row) {
  const auto history = journal_.history.find(row.job);
  const int64_t last = history == journal_.history.end() ? 0 : history->second.back().number;
  Require(row.number > last,
          absl::StrCat("history row ", row.number, " of ", row.job.text(), " was used before"));
  Require(!row.text.empty(), absl::StrCat("a transition of ", row.job.text(), " has no reason"));
  const auto before = states_.find(row.job);
  if (before == states_.end()) {
    Require(row.state == JobState::kQueued, "a job begins in another state than QUEUED");
  } else {
    Require(TransitionAllowed(before->second, row.state),
            absl::StrCat(row.job.text(), " went from ", JobStateName(before->second), " to ",
                         JobStateName(row.state)));
    const bool entered = before->second != row.state && row.state == JobState::kRecovering;
    if (entered) last_fault_[row.job] = row.time;
    if (before->second == JobState::kRecovering && row.state == JobState::kLaunching) {
      relaunches_[row.job].push_back(last_fault_[row.job]);
    }
  }
  states_[row.job] = row.state;
}

void Inspector::CheckJob(const Job& job) {
  const JobRecord& record = job.record;
  const GenerationKey key{record.id, record.generation};
  if (record.state == JobState::kRunning || record.state == JobState::kPausedSoft) {
    Step& seen = steps_[key];
    Require(record.step >= seen, absl::StrCat("the step of ", KeyText(key), " went back from ",
                                              seen.value(), " to ", record.step.value()));
    seen = std::max(seen, record.step);
  }
  Require(record.step.value() <= record.spec.train().steps(), "more steps than there are");
  const JobState state = record.state;
  const bool none = record.processes == Processes::kNone;
  if (IsFinal(state) || state == JobState::kQueued || state == JobState::kPausedHard) {
    Require(none, absl::StrCat(KeyText(key), " has processes while ", JobStateName(state)));
  } else if (state != JobState::kRecovering && state != JobState::kRegrouping) {
    Require(!none, absl::StrCat(KeyText(key), " has no processes while ", JobStateName(state)));
  }
  if (record.state == JobState::kCompleted) {
    Require(scene_.disk[record.id].value() == record.spec.train().steps(),
            absl::StrCat(record.id.text(), " is COMPLETED without its last checkpoint"));
  }
  CheckRestarts(job);
}

void Inspector::CheckRestarts(const Job& job) {
  const auto limit = static_cast<size_t>(job.record.spec.health().max_restarts());
  Require(job.record.faults.size() <= limit, "more restarts than allowed are booked");
  const absl::Duration window = absl::Seconds(job.record.spec.health().restart_window_seconds());
  const auto recent = [&](const std::vector<absl::Time>& times, absl::Duration span) {
    return static_cast<size_t>(std::count_if(times.begin(), times.end(), [&](absl::Time time) {
      return scene_.timeline.now() - time < span;
    }));
  };
  // What ended while nobody looked is started again, some time later, without being counted.
  const size_t restarts = recent(relaunches_[job.record.id], window);
  Require(restarts <= limit + recent(coordinator_starts_, window + absl::Minutes(1)),
          absl::StrCat(restarts, " restarts of ", job.record.id.text(), " within the window"));
}

// In the coordinator's books, a node belongs to one job.
void Inspector::CheckNodes(const ClusterState& state) {
  std::map<NodeName, JobId> holder;
  for (const auto& [id, job] : state.jobs) {
    if (!HoldsNodes(job.record)) continue;
    for (const NodeName& node : job.record.nodes) {
      if (node.empty()) continue;
      const auto [there, fresh] = holder.emplace(node, id);
      Require(fresh || there->second == id, absl::StrCat("node ", node.text(), " is in ", id.text(),
                                                         " and ", there->second.text()));
    }
  }
}

void Inspector::OnEffect(const Effect& effect) {
  if (const auto* row = std::get_if<AppendEvent>(&effect)) {
    Require(journal_.jobs.count(row->job) != 0, "history of a job that is not journaled");
  } else if (const auto* welcome = std::get_if<Welcome>(&effect)) {
    streams_[welcome->stream] = {welcome->worker.job, welcome->worker.generation};
    CheckDirective(streams_[welcome->stream], welcome->directive);
  } else if (const auto* sent = std::get_if<SendDirective>(&effect)) {
    CheckDirective(streams_[sent->stream], sent->directive);
  } else if (const auto* launch = std::get_if<Launch>(&effect)) {
    CheckLaunch(*launch);
  } else if (const auto* kill = std::get_if<Kill>(&effect)) {
    const JobRecord& record = journal_.jobs.at(kill->key.job);
    Require(record.generation == kill->key.generation && record.processes == Processes::kEnding,
            absl::StrCat("the kill of ", KeyText(kill->key), " is not journaled"));
  } else if (const auto* reply = std::get_if<Reply>(&effect)) {
    Require(!reply->status.ok() || journal_.jobs.count(reply->job) != 0,
            "a reply about a job that is not journaled");
  }
}

// Journal, then act; and a plan adds up to the global batch.
void Inspector::CheckDirective(const GenerationKey& key, const Directive& directive) {
  const auto found = journal_.jobs.find(key.job);
  if (!Require(found != journal_.jobs.end(), "a directive for a job that is not journaled")) return;
  const JobRecord& record = found->second;
  Require(record.generation == key.generation, "a directive for an older generation");
  Require(record.directive == directive,
          absl::StrCat("directive ", directive.number, " of ", KeyText(key), " is not journaled"));
  const auto& sequences = directive.plan.sequences;
  const int32_t sum = std::accumulate(sequences.begin(), sequences.end(), 0);
  Require(sum == record.spec.train().global_batch(),
          absl::StrCat("the plan of ", KeyText(key), " adds up to ", sum));
  Require(sequences.size() == record.nodes.size(), "the plan has another number of ranks");
}

void Inspector::CheckLaunch(const Launch& launch) {
  const JobRecord& record = journal_.jobs.at(launch.key.job);
  Require(record.generation == launch.key.generation && record.nodes == launch.nodes &&
              record.state == JobState::kLaunching,
          absl::StrCat("the launch of ", KeyText(launch.key), " is not journaled"));
  for (const auto& world : worlds_) {
    if (world->over() || !world->options().external_id.empty()) continue;
    Require(world->job() != launch.key.job,
            absl::StrCat(KeyText(launch.key), " is launched while generation ",
                         world->generation().value(), " runs"));
    for (const NodeName& node : world->options().nodes) {
      const auto& nodes = launch.nodes;
      Require(std::find(nodes.begin(), nodes.end(), node) == nodes.end(),
              absl::StrCat(KeyText(launch.key), " is launched on ", node.text(), " where ",
                           world->job().text(), " runs"));
    }
  }
}

void Inspector::OnCommit(const World& world) {
  const GenerationKey key{world.job(), world.generation()};
  const auto found = journal_.jobs.find(key.job);
  if (!Require(found != journal_.jobs.end(), "a step of a job that is not journaled")) return;
  const JobRecord& record = found->second;
  // A hand-started world that was given up goes on until it hears of it.
  if (!world.options().external_id.empty() && record.processes == Processes::kNone) return;
  Require(record.generation == key.generation || !world.options().external_id.empty(),
          absl::StrCat(KeyText(key), " commits a step, but the newest generation is ",
                       record.generation.value()));
  if (record.generation != key.generation) return;
  Require(record.state != JobState::kPausedSoft && record.state != JobState::kPausedHard &&
              !IsFinal(record.state),
          absl::StrCat(KeyText(key), " commits a step while ", JobStateName(record.state)));
  for (const auto& other : worlds_) {
    Require(other.get() == &world || other->over() || other->job() != world.job() ||
                !other->options().external_id.empty(),
            absl::StrCat("two generations of ", world.job().text(), " are alive"));
  }
}

void Inspector::OnRestart() {
  coordinator_starts_.push_back(scene_.timeline.now());
  states_.clear();
  steps_.clear();
  for (const auto& [id, record] : journal_.jobs) states_[id] = record.state;
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
