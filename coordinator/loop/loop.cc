// The loop's way in: from inputs to events, decisions and the effects to be applied.
#include "coordinator/loop/loop.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/config/cluster_file.h"
#include "common/config/job_file.h"
#include "coordinator/core/advance.h"
#include "coordinator/journal/record.h"
#include "coordinator/loop/messages.h"

namespace espalier {
namespace {

constexpr char kNodePrefix[] = "node/";
constexpr char kWorldKey[] = "world-key";
constexpr int kWorldKeyBytes = 32;
constexpr char kLastNumber[] = "last-job-number";
// No espalierd gets there; a folder that names more is not of a job.
constexpr int64_t kNumberMax = 1'000'000'000'000;

// The highest number of the jobs that have a folder here, as one does whose journal was lost: its
// checkpoints and logs must not become those of another job.
absl::StatusOr<int64_t> HighestNumber(FileSystem& files, const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(folder);
  if (absl::IsNotFound(names.status())) return 0;
  RETURN_IF_ERROR(names.status());
  int64_t highest = 0;
  for (const std::string& name : *names) {
    int64_t number = 0;
    const bool is_job = absl::SimpleAtoi(name.substr(name.rfind('-') + 1), &number);
    if (is_job && number <= kNumberMax) highest = std::max(highest, number);
  }
  return highest;
}

// Later rows of a job replace earlier ones of the same transaction.
void PutJob(std::vector<JobRow>& rows, const JobRecord& record) {
  const auto same = std::find_if(rows.begin(), rows.end(),
                                 [&](const JobRow& row) { return row.id == record.id; });
  if (same != rows.end()) rows.erase(same);
  rows.push_back({record.id, EncodeJob(record)});
}

// True: the effect belongs to the journal and is in the batch now.
bool IntoBatch(const Effect& effect, JournalBatch& batch) {
  if (const auto* job = std::get_if<PersistJob>(&effect)) {
    PutJob(batch.jobs, job->record);
    return true;
  }
  if (const auto* job = std::get_if<ForgetJob>(&effect)) {
    batch.forgotten.push_back(job->job);
    return true;
  }
  if (const auto* node = std::get_if<PersistNode>(&effect)) {
    batch.settings.push_back(
        {absl::StrCat(kNodePrefix, node->record.name.text()), EncodeNode(node->record)});
    return true;
  }
  if (const auto* event = std::get_if<AppendEvent>(&effect)) {
    batch.events.push_back({event->job, event->number, ToUnixMs(event->time),
                            static_cast<int32_t>(event->state), event->text});
    return true;
  }
  return false;
}

}  // namespace

Loop::Loop(LoopParts parts, LoopOptions options)
    : parts_(parts), options_(std::move(options)), time_(*parts.clock) {}

absl::Status Loop::Start() {
  ASSIGN_OR_RETURN(const JournalContents contents, parts_.journal->Load());
  CoordinatorStarted started;
  started.versions.set_espalier(ESPALIER_VERSION);
  for (const v1::NodeSpec& node : options_.cluster.nodes()) {
    started.nodes.emplace_back(node.name());
    started.specs[NodeName(node.name())] = node;
  }
  ASSIGN_OR_RETURN(started.last_number, HighestNumber(*parts_.files, options_.state_dir + "/jobs"));
  std::set<NodeName> with_agents;
  for (const SettingRow& row : contents.settings) {
    if (row.key == kWorldKey) world_key_ = row.value;
    if (row.key == kLastNumber && !absl::SimpleAtoi(row.value, &last_number_)) {
      return absl::DataLossError(
          absl::StrCat("the journal's ", kLastNumber, " is '", row.value, "', which is no number"));
    }
    if (!absl::StartsWith(row.key, kNodePrefix)) continue;
    ASSIGN_OR_RETURN(NodeRecord node, DecodeNode(row.value));
    if (node.has_agent) with_agents.insert(node.name);
    if (node.joined) FillNodeDefaults(*node.joined);  // of fields that are newer than the journal
    if (node.invitation) FillNodeDefaults(node.invitation->spec);
    started.records.push_back(std::move(node));
  }
  for (const JobRow& row : contents.jobs) {
    ASSIGN_OR_RETURN(JobRecord record, DecodeJob(row.record));
    FillJobDefaults(record.spec);  // of fields that are newer than the journal
    started.jobs.push_back(std::move(record));
  }
  for (const LaunchRow& row : contents.launches) {
    const auto job =
        std::find_if(started.jobs.begin(), started.jobs.end(),
                     [&](const JobRecord& record) { return record.id == row.key.job; });
    AdoptedNodes nodes = {.with_agents = with_agents};
    if (job != started.jobs.end()) nodes.nodes = job->nodes;
    parts_.launcher->Adopt(row.key, row.process, std::move(nodes));
    started.launches.push_back(row.key);
    launches_.insert(row.key);
  }
  started.last_number = std::max(started.last_number, last_number_);
  if (world_key_.empty()) {
    world_key_ = RandomHex(kWorldKeyBytes);
    batch_.settings.push_back({kWorldKey, world_key_});
  }
  Decide({std::move(started)});
  for (const Node& node : state_.nodes) {
    if (node.record.joined) parts_.launcher->NoteNode(*node.record.joined);
  }
  for (const auto& [id, job] : state_.jobs) {
    touched_.insert(id);
    last_states_.emplace(id, job.record.state);
  }
  RETURN_IF_ERROR(parts_.journal->Commit(batch_));
  batch_ = {};
  Publish();
  return absl::OkStatus();
}

absl::Status Loop::Run() {
  while (!stopping_) Turn();
  parts_.inbox->Close();
  const absl::Status stopping =
      absl::UnavailableError("espalierd is stopping; ask again when it is back");
  for (Input& input : parts_.inbox->Take(absl::ZeroDuration())) {
    if (auto* call = std::get_if<OperatorCall>(&input)) call->reply(stopping);
  }
  for (auto& [id, reply] : std::exchange(waiting_, {})) reply(stopping);
  return journal_status_;
}

void Loop::Stop() {
  stopping_ = true;
  parts_.inbox->Wake();
}

void Loop::Turn() {
  const absl::Duration now = parts_.clock->Monotonic();
  const absl::Duration until_tick = next_tick_ ? *next_tick_ - now : absl::ZeroDuration();
  const bool hurry = !later_.empty();
  std::vector<Event> events = std::exchange(later_, {});
  for (Input& input : parts_.inbox->Take(hurry ? absl::ZeroDuration()
                                               : std::max(absl::ZeroDuration(), until_tick))) {
    Take(std::move(input), events);
  }
  TakeTick(events);
  if (stopping_) return;
  Decide(std::move(events));
  Apply();
}

void Loop::Take(Input input, std::vector<Event>& events) {
  if (auto* message = std::get_if<StreamMessage>(&input)) {
    TakeMessage(std::move(*message), events);
  } else if (auto* closed = std::get_if<StreamClosed>(&input)) {
    Touch(closed->stream);
    events.push_back(WorkerDetached{closed->stream});
  } else if (auto* agent = std::get_if<AgentInput>(&input)) {
    events.push_back(std::move(agent->event));
    if (agent->taken) taken_.push_back(std::move(agent->taken));
  } else {
    TakeCall(std::get<OperatorCall>(std::move(input)), events);
  }
}

void Loop::TakeMessage(StreamMessage message, std::vector<Event>& events) {
  Touch(message.stream);
  const auto worker = state_.streams.find(message.stream);
  if (worker != state_.streams.end()) {
    parts_.observer->Heard(worker->second, message.message, parts_.clock->Monotonic());
  }
  const absl::Status spec = CheckExternalSpec(message.message);
  if (!spec.ok()) {
    effects_.push_back(CloseStream{message.stream, spec});
  } else if (std::optional<Event> event = WorkerEvent(message.stream, message.message)) {
    events.push_back(*std::move(event));
  }
  taken_.push_back(std::move(message.taken));
}

void Loop::Touch(StreamId stream) {
  const auto worker = state_.streams.find(stream);
  if (worker != state_.streams.end()) touched_.insert(worker->second.job);
}

void Loop::TakeCall(OperatorCall call, std::vector<Event>& events) {
  const RequestId id = std::exchange(next_request_, next_request_.next());
  events.push_back(CallEvent(id, call.request));
  if (std::holds_alternative<v1::SubmitRequest>(call.request)) submissions_.insert(id);
  waiting_[id] = std::move(call.reply);
}

void Loop::TakeTick(std::vector<Event>& events) {
  const absl::Duration now = parts_.clock->Monotonic();
  if (next_tick_ && now < *next_tick_) return;
  next_tick_ = now + options_.tick;
  for (LaunchEnded& ended : parts_.launcher->Poll(now)) {
    // One that an earlier espalierd left behind causes no transition any more.
    const auto job = state_.jobs.find(ended.key.job);
    if (job != state_.jobs.end()) ForgetLaunches(job->second.record);
    events.push_back(ProcessesExited{ended.key, std::move(ended.reason), ended.culprit,
                                     std::move(ended.unconfirmed), ended.bad_input});
  }
  if (parts_.versions != nullptr) {
    parts_.versions->Look();
    if (parts_.versions->complete()) {
      events.push_back(VersionsFound{std::exchange(parts_.versions, nullptr)->versions()});
    }
  }
  events.push_back(Tick{});
}

void Loop::Decide(std::vector<Event> events) {
  for (Event& event : events) {
    NoteClock(event, parts_.clock->Now());
    DecideOne(event);
  }
  if (const int64_t given = state_.next_job - 1; given > last_number_) {
    last_number_ = given;
    batch_.settings.push_back({kLastNumber, absl::StrCat(given)});
  }
  stats_.events += static_cast<int64_t>(events.size());
}

void Loop::DecideOne(const Event& event) {
  for (Effect& effect : Advance(state_, event, time_.Now())) {
    if (const auto* job = std::get_if<PersistJob>(&effect)) {
      Moved(job->record, event);
      ForgetLaunches(job->record);
    }
    if (const auto* job = std::get_if<ForgetJob>(&effect)) touched_.insert(job->job);
    if (const auto* node = std::get_if<PersistNode>(&effect); node && node->record.joined) {
      parts_.launcher->NoteNode(*node->record.joined);
    }
    if (!IntoBatch(effect, batch_)) effects_.push_back(std::move(effect));
  }
}

void Loop::ForgetLaunches(const JobRecord& record) {
  for (auto it = launches_.lower_bound({record.id, Generation()}); it != launches_.end();) {
    const bool runs = it->generation == record.generation && record.processes != Processes::kNone;
    if (it->job != record.id || runs) break;
    batch_.ended_launches.push_back(*it);
    it = launches_.erase(it);
  }
}

void Loop::Moved(const JobRecord& record, const Event& event) {
  touched_.insert(record.id);
  const auto [last, is_new] = last_states_.emplace(record.id, record.state);
  if (is_new) return;
  parts_.observer->Moved(record.id, last->second, record.state, event, parts_.clock->Monotonic());
  last->second = record.state;
}

}  // namespace espalier
