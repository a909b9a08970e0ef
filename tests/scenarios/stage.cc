#include "tests/scenarios/stage.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "coordinator/core/facts.h"
#include "tests/sim/describe.h"

namespace espalier::scenarios {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(250);

}  // namespace

Stage::Handler Stage::FindHandler(const std::string& command) {
  static const auto& handlers =
      *new std::map<std::string, Handler>{{"cluster", &Stage::Cluster},
                                          {"submit", &Stage::Submit},
                                          {"pause", &Stage::Ask},
                                          {"resume", &Stage::Ask},
                                          {"cancel", &Stage::Ask},
                                          {"checkpoint", &Stage::Ask},
                                          {"drain", &Stage::AskOfNode},
                                          {"allow", &Stage::AskOfNode},
                                          {"hello", &Stage::Hello},
                                          {"hello-by-hand", &Stage::HelloByHand},
                                          {"agent", &Stage::Agent},
                                          {"agent-report", &Stage::AgentReport},
                                          {"agent-gone", &Stage::AgentReport},
                                          {"found", &Stage::Report},
                                          {"ready", &Stage::Report},
                                          {"progress", &Stage::Report},
                                          {"beat", &Stage::Report},
                                          {"step", &Stage::Report},
                                          {"practised", &Stage::Report},
                                          {"evaluated", &Stage::Report},
                                          {"checkpointed", &Stage::Report},
                                          {"obeyed", &Stage::Report},
                                          {"gone", &Stage::Report},
                                          {"finished", &Stage::Finished},
                                          {"exited", &Stage::Processes},
                                          {"exited-unconfirmed", &Stage::Processes},
                                          {"exited-bad-input", &Stage::Processes},
                                          {"launch-failed", &Stage::Processes},
                                          {"up", &Stage::Up},
                                          {"train", &Stage::Train},
                                          {"wait", &Stage::Wait},
                                          {"hang", &Stage::Wait},
                                          {"sleep", &Stage::Sleep},
                                          {"corrected", &Stage::Correct},
                                          {"crash", &Stage::Crash},
                                          {"jobs", &Stage::Jobs}};
  const auto found = handlers.find(command);
  return found == handlers.end() ? nullptr : found->second;
}

absl::StatusOr<std::string> Stage::Do(const std::string& line) {
  Words probe(line);
  const std::string manner = probe.Text();
  const bool quietly = manner == "quietly";
  dated_ = manner == "dated";
  Words words(quietly || dated_ ? probe.Rest() : line);
  const std::string whole = words.Rest();
  Words again(whole);
  const Handler handler = FindHandler(again.Text());
  if (handler == nullptr) return absl::InvalidArgumentError("unknown command");
  Words arguments(whole);
  absl::StatusOr<std::string> result = (this->*handler)(arguments);
  if (result.ok()) RETURN_IF_ERROR(arguments.status());
  if (result.ok() && quietly) return std::string();
  return result;
}

std::string Stage::Take(const Event& event) {
  std::string text;
  for (const Effect& effect : Advance(state_, event, now_)) {
    if (const auto* persist = std::get_if<PersistJob>(&effect)) {
      journal_.Put(persist->record);
    } else if (const auto* forget = std::get_if<ForgetJob>(&effect)) {
      journal_.jobs.erase(forget->job);
    } else if (const auto* node = std::get_if<PersistNode>(&effect)) {
      journal_.nodes[node->record.name] = node->record;
    } else if (const auto* launch = std::get_if<Launch>(&effect)) {
      journal_.launches.insert(launch->key);
    } else if (const auto* row = std::get_if<AppendEvent>(&effect); row != nullptr && dated_) {
      absl::StrAppend(&text, absl::FormatTime("%d %H:%M:%S ", row->time, absl::UTCTimeZone()));
    }
    absl::StrAppend(&text, sim::Describe(effect), "\n");
  }
  return text;
}

std::string Stage::Start() {
  CoordinatorStarted start = journal_.Contents(nodes_);
  start.versions = DefaultReport().versions();
  start.specs = specs_;
  state_ = ClusterState{};
  return Take(start);
}

Stage::Result Stage::Cluster(Words& words) {
  words.Text();
  while (!words.empty()) {
    ASSIGN_OR_RETURN(const NodeSays node, ReadNode(words));
    nodes_.push_back(node.name);
    specs_[node.name] = node.spec;
  }
  return Start();
}

Stage::Result Stage::Agent(Words& words) {
  words.Text();
  AgentAttached hello{.stream = words.Stream()};
  hello.node = NodeName(words.Text());
  hello.instance = words.Text();
  ASSIGN_OR_RETURN(const AgentSays says, ReadAgent(words));
  hello.report = says.report;
  reports_[hello.stream] = says.report;
  hello.clock_ahead = says.clock_ahead;
  return Take(hello);
}

Stage::Result Stage::AgentReport(Words& words) {
  const std::string what = words.Text();
  const StreamId stream = words.Stream();
  if (what == "agent-gone") return Take(AgentDetached{stream});
  ASSIGN_OR_RETURN(const AgentSays says, ReadAgent(words));
  reports_[stream] = says.report;
  return Take(AgentReported{stream, says.report, says.clock_ahead});
}

Stage::Result Stage::Submit(Words& words) {
  words.Text();
  ASSIGN_OR_RETURN(v1::JobSpec spec, ReadSpec(words));
  request_ = request_.next();
  const std::string request_id = absl::StrCat("request of ", spec.name());
  return Take(SubmitRequested{.request = request_, .request_id = request_id, .spec = spec});
}

Stage::Result Stage::Ask(Words& words) {
  const std::string what = words.Text();
  const JobId job(words.Text());
  const std::string how = words.Text();
  request_ = request_.next();
  if (what == "pause") {
    return Take(PauseRequested{request_, job, how == "hard" ? PauseKind::kHard : PauseKind::kSoft});
  }
  if (what == "resume") return Take(ResumeRequested{request_, job, how == "from-scratch"});
  if (what == "checkpoint") return Take(CheckpointRequested{request_, job});
  return Take(CancelRequested{request_, job, how == "checkpoint"});
}

Stage::Result Stage::AskOfNode(Words& words) {
  const bool drains = words.Text() == "drain";
  const NodeName node(words.Text());
  request_ = request_.next();
  if (drains) return Take(NodeDrained{request_, node, words.Rest()});
  return Take(NodeAllowed{request_, node});
}

Stage::Result Stage::Hello(Words& words) {
  words.Text();
  WorkerAttached hello{.stream = words.Stream()};
  const GenerationKey key = words.Key();
  const Words::Place place = words.RankOf();
  hello.worker = {key.job, key.generation, place.rank};
  hello.world_size = place.world_size;
  hello.node = NodeName(words.Text());
  hello.pid = words.empty() ? 100 + place.rank.value() : words.Integer();
  return Take(hello);
}

Stage::Result Stage::HelloByHand(Words& words) {
  words.Text();
  WorkerAttached hello;
  hello.stream = words.Stream();
  hello.external_id = words.Text();
  const Words::Place place = words.RankOf();
  hello.worker.rank = place.rank;
  hello.world_size = place.world_size;
  hello.node = NodeName(words.Text());
  hello.pid = 100 + place.rank.value();
  ASSIGN_OR_RETURN(hello.external_spec, ReadSpec(words));
  return Take(hello);
}

Stage::Result Stage::Report(Words& words) {
  ASSIGN_OR_RETURN(const Event event, ReadReport(words));
  return Take(event);
}

Stage::Result Stage::Finished(Words& words) {
  words.Text();
  const StreamId stream = words.Stream();
  const Words::Ending ending = words.Outcome();
  const Step step(words.Integer());
  const bool lost = ending.outcome == Outcome::kLost;
  return Take(WorkerFinished{.stream = stream,
                             .outcome = ending.outcome,
                             .reason = words.Rest(),
                             .next_step = step,
                             .code = ending.code,
                             .failed_ranks = lost ? std::vector<Rank>{} : ending.ranks,
                             .silent_ranks = lost ? ending.ranks : std::vector<Rank>{},
                             .of_their_nodes = ending.of_their_nodes});
}

Stage::Result Stage::Processes(Words& words) {
  const std::string what = words.Text();
  const GenerationKey key = words.Key();
  if (what == "launch-failed") return Take(LaunchFailed{key, words.Rest()});
  ProcessesExited exited{key, "mpirun exited with status 1"};
  if (what == "exited-unconfirmed") {
    while (!words.empty()) exited.unconfirmed.emplace_back(words.Text());
  } else if (what == "exited-bad-input") {
    exited.culprit = Rank(words.Integer());
    exited.bad_input = true;
    exited.reason = words.Rest();
  } else if (!words.empty()) {
    exited.reason = words.Rest();
  }
  return Take(exited);
}

// "up KEY STEP STREAM...": the ranks of the generation attach on these streams and are ready.
Stage::Result Stage::Up(Words& words) {
  words.Text();
  const GenerationKey key = words.Key();
  const Step step(words.Integer());
  const std::vector<int64_t> streams = words.Integers();
  const auto job = state_.jobs.find(key.job);
  if (job == state_.jobs.end() || job->second.world.ranks.size() != streams.size() ||
      job->second.record.generation != key.generation) {
    return absl::InvalidArgumentError("no such generation, or another number of ranks");
  }
  std::string text;
  for (size_t i = 0; i < streams.size(); ++i) {
    const auto rank = static_cast<int64_t>(i);
    absl::StrAppend(&text, Take(WorkerAttached{.stream = StreamId(streams[i]),
                                               .worker = {key.job, key.generation, Rank(rank)},
                                               .world_size = static_cast<int32_t>(streams.size()),
                                               .node = job->second.record.nodes[i],
                                               .pid = 100 + rank}));
  }
  for (const int64_t stream : streams) {
    absl::StrAppend(&text, Take(WorkerReady{.stream = StreamId(stream), .next_step = step}));
  }
  return text;
}

double Stage::Noise(double most) {
  noise_ = noise_ * 1664525 + 1013904223;
  return 1 + most * (2 * static_cast<double>(noise_) / 4294967296.0 - 1);
}

std::string Stage::Commit(StreamId stream, double pace) {
  const WorkerId worker = state_.streams.at(stream);
  const Job& job = state_.jobs.at(worker.job);
  const auto rank = static_cast<size_t>(worker.rank.value());
  const int32_t share = job.record.directive.plan.sequences[rank];
  return Take(WorkerStepReported{stream,
                                 {.step = job.world.ranks[rank].counters.step,
                                  .loss = 1,
                                  .tokens = 1000,
                                  .shard = share,
                                  .step_seconds = 1,
                                  .own_seconds = pace * share}});
}

// "train STEPS [noise=PART] STREAM=SECONDS...": the ranks on these streams, which are all of a job,
// commit so many steps; a sequence takes each so long.
Stage::Result Stage::Train(Words& words) {
  words.Text();
  const int64_t steps = words.Integer();
  double noise = 0;
  std::vector<std::pair<StreamId, double>> paces;
  while (!words.empty()) {
    const Words::Setting setting = words.NextSetting();
    int64_t stream = 0;
    if (setting.key == "noise") {
      noise = setting.number;
    } else if (absl::SimpleAtoi(setting.key, &stream) &&
               state_.streams.count(StreamId(stream)) != 0) {
      paces.emplace_back(stream, setting.number);
    } else {
      return absl::InvalidArgumentError("no rank on this stream");
    }
  }
  std::string text;
  for (int64_t i = 0; i < steps; ++i) {
    for (const auto& [stream, pace] : paces) {
      const std::string said = Commit(stream, pace * Noise(noise));
      if (!said.empty()) absl::StrAppend(&text, "after step ", i + 1, " of these:\n", said);
    }
  }
  return text;
}

std::string Stage::Beat(const std::vector<int64_t>& streams) {
  std::string text;
  for (const StreamId stream : std::vector<StreamId>(streams.begin(), streams.end())) {
    if (state_.agents.count(stream) != 0) {
      absl::StrAppend(&text, Take(AgentReported{.stream = stream, .report = reports_[stream]}));
      continue;
    }
    const Counters counters{.phase = Phase::kCompute, .collective = beats_};
    absl::StrAppend(&text, Take(WorkerHeartbeat{.stream = stream, .counters = counters}));
  }
  return text;
}

// "wait TIME [STREAM...]": time passes in ticks; the workers on these streams make progress
// meanwhile, the agents report. "hang" is the same, but these workers only say that they live.
Stage::Result Stage::Wait(Words& words) {
  const bool hang = words.Text() == "hang";
  const absl::Duration time = words.Duration();
  const std::vector<int64_t> streams = words.Integers();
  const absl::Time start = now_;
  std::string text;
  while (now_ < start + time) {
    now_ += kTick;
    if (!hang) ++beats_;
    const std::string said = absl::StrCat(Beat(streams), Take(Tick{now_ + wall_ahead_}));
    if (said.empty()) continue;
    absl::StrAppend(&text, "after ", absl::FormatDuration(now_ - start), ":\n", said);
  }
  return text;
}

// "sleep TIME": the coordinator's machine sleeps; one tick afterwards.
Stage::Result Stage::Sleep(Words& words) {
  words.Text();
  now_ += words.Duration();
  return Take(Tick{now_ + wall_ahead_});
}

// "corrected TIME": the coordinator's clock is set forward; one tick afterwards.
Stage::Result Stage::Correct(Words& words) {
  words.Text();
  wall_ahead_ += words.Duration();
  return Take(Tick{now_ + wall_ahead_});
}

// "crash [KEY...] [NODE...]": espalierd is started again; these launches never got into the
// journal, and the cluster file no longer names these nodes.
Stage::Result Stage::Crash(Words& words) {
  words.Text();
  while (!words.empty()) {
    const std::string word = words.Text();
    if (absl::StrContains(word, '/')) {
      Words key(word);
      journal_.launches.erase(key.Key());
    } else {
      nodes_.erase(std::remove(nodes_.begin(), nodes_.end(), NodeName(word)), nodes_.end());
    }
  }
  return Start();
}

Stage::Result Stage::Jobs(Words&) {
  std::string text;
  for (const auto& [id, job] : state_.jobs) {
    const JobRecord& record = job.record;
    absl::StrAppendFormat(&text, "%s %s step %d/%d restarts %d: %s\n", id.text(),
                          JobStateName(record.state), record.step.value(),
                          record.spec.train().steps(), record.restarts, record.reason);
  }
  return text;
}

}  // namespace espalier::scenarios
