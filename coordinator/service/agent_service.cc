#include "coordinator/service/agent_service.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/base/utf8.h"
#include "common/rpc/local_access.h"
#include "coordinator/core/node.h"
#include "coordinator/service/agent_stream.h"

namespace espalier {
namespace {

// Streams of agents and of workers are told apart by their numbers.
constexpr StreamId kFirstStream(int64_t{1} << 40);

absl::Status SecondHello(const NodeName& node) {
  return absl::FailedPreconditionError(
      absl::StrCat("this stream speaks for node ", AsUtf8(node.text()),
                   " already; hello is said once, and another node needs a stream of its own"));
}

absl::Status Stopping() { return absl::UnavailableError("espalierd is stopping; attach again"); }

// mpirun runs on the machine of espalierd, and comes by the Unix socket.
bool IsRemote(const std::string& peer) {
  if (absl::StartsWith(peer, "ipv4:")) return !absl::StartsWith(peer, "ipv4:127.");
  return absl::StartsWith(peer, "ipv6:");
}

GenerationKey KeyOf(const v1::GenerationName& name) {
  return {JobId(name.job_id()), espalier::Generation(name.generation())};
}

v1::GenerationName NameOf(const GenerationKey& key) {
  v1::GenerationName name;
  name.set_job_id(key.job.text());
  name.set_generation(key.generation.value());
  return name;
}

v1::AgentCommand EndCommand(const v1::GenerationName& name) {
  v1::AgentCommand command;
  *command.mutable_end()->mutable_generation() = name;
  return command;
}

}  // namespace

AgentService::AgentService(Inbox& inbox, AgentServiceOptions options)
    : inbox_(inbox),
      options_(std::move(options)),
      places_("agents", options_.places),
      next_stream_(kFirstStream) {}

AgentService::~AgentService() = default;

grpc::ServerBidiReactor<v1::AgentMessage, v1::AgentCommand>* AgentService::Attach(
    grpc::CallbackServerContext* context) {
  const Caller caller = CallerOf(*context);
  std::shared_ptr<AgentStream> stream;
  absl::Status refusal;
  {
    absl::MutexLock lock(&mutex_);
    const StreamId id = std::exchange(next_stream_, next_stream_.next());
    refusal = closing_ ? Stopping() : places_.Take(id, caller, options_.clock->Monotonic());
    stream = std::make_shared<AgentStream>(
        [this, id](const v1::AgentMessage& message) { Heard(id, message); },
        [this, id] { Detached(id); },
        [this, id] {
          Detached(id);
          std::map<StreamId, Agent>::node_type last;  // destroyed after the lock
          absl::MutexLock lock(&mutex_);
          last = agents_.extract(id);
          places_.Free(id);
        });
    agents_[id] = {.stream = stream, .caller = caller};
  }
  if (refusal.ok()) {
    stream->ReadOn();
  } else {
    stream->Close(refusal);
  }
  return stream.get();
}

std::shared_ptr<AgentStream> AgentService::StreamOf(StreamId id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = agents_.find(id);
  return found == agents_.end() ? nullptr : found->second.stream;
}

void AgentService::Send(StreamId id, v1::AgentCommand command) {
  std::shared_ptr<AgentStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    const auto agent = agents_.find(id);
    if (agent == agents_.end()) return;
    stream = agent->second.stream;
    stream->Put(std::move(command));
  }
  stream->Act();
}

void AgentService::Close(StreamId id, const absl::Status& status) {
  if (const auto stream = StreamOf(id)) stream->Close(status);
}

void AgentService::ReadOn(StreamId id) {
  if (const auto stream = StreamOf(id)) stream->ReadOn();
}

void AgentService::Heard(StreamId id, const v1::AgentMessage& message) {
  {
    absl::MutexLock lock(&mutex_);
    if (const auto agent = agents_.find(id); agent != agents_.end()) {
      agent->second.heard_at = options_.clock->Monotonic();
    }
  }
  switch (message.body_case()) {
    case v1::AgentMessage::kHello:
      return Introduce(id, message.hello());
    case v1::AgentMessage::kReport:
      if (!inbox_.Put(
              AgentInput{AgentReported{id, message.report()}, [this, id] { ReadOn(id); }})) {
        Close(id, Stopping());
      }
      return;
    case v1::AgentMessage::kStarted:
    case v1::AgentMessage::kExited:
      Answer(id, message);
      break;
    case v1::AgentMessage::kGone:
      Confirm(id, message.gone());
      break;
    case v1::AgentMessage::BODY_NOT_SET:
      break;
  }
  ReadOn(id);
}

void AgentService::Introduce(StreamId id, const v1::AgentHello& hello) {
  const NodeName node(hello.node());
  Caller caller;
  absl::Status speaks;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = agents_.find(id);
    if (found == agents_.end() || found->second.gone) return;
    Agent& agent = found->second;
    caller = agent.caller;
    speaks = agent.node ? SecondHello(*agent.node) : CheckSpeaksFor(caller, node);
    if (speaks.ok()) {
      agent.node = node;
      places_.HelloSaid(id);
    }
  }
  if (!speaks.ok()) return Close(id, speaks);
  AgentAttached event = {.stream = id,
                         .node = node,
                         .report = hello.report(),
                         .instance = hello.instance(),
                         .certificate = caller.fingerprint,
                         .serial = caller.serial};
  if (!inbox_.Put(AgentInput{std::move(event), [this, id, hello] { Welcome(id, hello); }})) {
    Close(id, Stopping());
  }
}

void AgentService::Welcome(StreamId id, const v1::AgentHello& hello) {
  std::shared_ptr<AgentStream> stream;
  v1::AgentCommand welcome;
  welcome.mutable_welcome()->set_report_interval_seconds(absl::ToDoubleSeconds(kAgentReportEvery));
  welcome.mutable_welcome()->set_job_folder(options_.job_folder);
  welcome.mutable_welcome()->set_warm_folder(options_.warm_folder);
  {
    absl::MutexLock lock(&mutex_);
    const auto found = agents_.find(id);
    // Once it is gone, nobody would take it out of nodes_ again.
    if (found == agents_.end() || found->second.gone) return;
    stream = found->second.stream;
    if (stream->closing()) return;
    nodes_[*found->second.node] = id;
    stream->Put(std::move(welcome));
    for (const v1::GenerationName& name : hello.running()) {
      if (generations_.count(KeyOf(name)) == 0) stream->Put(EndCommand(name));
    }
  }
  stream->ReadOn();
}

// Gives what became of a daemon to who waits for it.
void AgentService::Answer(StreamId id, const v1::AgentMessage& message) {
  const bool started = message.has_started();
  const int64_t exec = started ? message.started().exec_id() : message.exited().exec_id();
  std::shared_ptr<ExecStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = waits_.find(exec);
    if (found == waits_.end() || found->second.agent != id) return;
    stream = found->second.stream;
  }
  v1::ExecResponse response;
  if (started) {
    *response.mutable_started() = message.started();
  } else {
    *response.mutable_exited() = message.exited();
  }
  stream->Send(std::move(response));
  if (!started) stream->Close(absl::OkStatus());
}

void AgentService::Confirm(StreamId id, const v1::GenerationGone& gone) {
  absl::MutexLock lock(&mutex_);
  const auto agent = agents_.find(id);
  const auto generation = generations_.find(KeyOf(gone.generation()));
  if (agent == agents_.end() || generation == generations_.end() || !agent->second.node) return;
  generation->second.gone.insert(*agent->second.node);
}

void AgentService::Detached(StreamId id) {
  std::vector<std::shared_ptr<ExecStream>> alone;
  NodeName node;
  {
    absl::MutexLock lock(&mutex_);
    const auto agent = agents_.find(id);
    if (agent == agents_.end() || std::exchange(agent->second.gone, true)) return;
    node = agent->second.node.value_or(NodeName());
    std::erase_if(nodes_, [&](const auto& speaks) { return speaks.second == id; });
    for (const auto& [exec, wait] : waits_) {
      if (wait.agent == id) alone.push_back(wait.stream);
    }
  }
  inbox_.Put(AgentInput{AgentDetached{id}, nullptr});
  for (const auto& stream : alone) {
    stream->Close(absl::UnavailableError(
        absl::StrCat("the agent of node ", node.text(), " is not attached any more")));
  }
}

grpc::ServerWriteReactor<v1::ExecResponse>* AgentService::Exec(grpc::CallbackServerContext* context,
                                                               const v1::ExecRequest* request) {
  const bool remote = IsRemote(context->peer());
  std::shared_ptr<ExecStream> stream;
  int64_t id = 0;
  {
    absl::MutexLock lock(&mutex_);
    id = next_exec_++;
    stream = std::make_shared<ExecStream>([this, id] {
      std::map<int64_t, Wait>::node_type last;  // destroyed after the lock
      absl::MutexLock lock(&mutex_);
      last = waits_.extract(id);
    });
    waits_[id] = {.stream = stream};
  }
  const absl::Status passed =
      remote
          ? absl::PermissionDeniedError("only mpirun on the machine of espalierd may start daemons")
          : Pass(stream, id, *request);
  if (!passed.ok()) stream->Close(passed);
  return stream.get();
}

// Hands the request to the node's agent.
absl::Status AgentService::Pass(const std::shared_ptr<ExecStream>& stream, int64_t id,
                                const v1::ExecRequest& request) {
  const GenerationKey key = KeyOf(request.generation());
  const NodeName node(request.node());
  if (!SameSecret(request.secret(), Secret(key))) {
    return absl::PermissionDeniedError("the secret is not that of the generation");
  }
  v1::AgentCommand command;
  v1::StartDaemon& start = *command.mutable_start();
  start.set_exec_id(id);
  *start.mutable_generation() = request.generation();
  *start.mutable_command() = request.command();
  start.set_orphan_limit_seconds(absl::ToDoubleSeconds(kOrphanLimit));
  std::shared_ptr<AgentStream> agent;
  {
    absl::MutexLock lock(&mutex_);
    if (closing_) return Stopping();
    const auto generation = generations_.find(key);
    if (generation == generations_.end() || generation->second.ending) {
      return absl::FailedPreconditionError(absl::StrCat("generation ", key.generation.value(),
                                                        " of job ", AsUtf8(key.job.text()),
                                                        " is being ended"));
    }
    const std::optional<Speaker> speaker = SpeakerOf(node);
    if (!speaker) {
      return absl::UnavailableError(
          absl::StrCat("the agent of node ", AsUtf8(node.text()), " is not attached any more"));
    }
    if (const auto wait = waits_.find(id); wait != waits_.end()) wait->second.agent = speaker->id;
    agent = speaker->stream;
    agent->Put(std::move(command));
  }
  agent->Act();
  return absl::OkStatus();
}

std::optional<AgentService::Speaker> AgentService::SpeakerOf(const NodeName& node) const {
  const auto speaks = nodes_.find(node);
  if (speaks == nodes_.end()) return std::nullopt;
  const auto agent = agents_.find(speaks->second);
  if (agent == agents_.end()) return std::nullopt;
  return Speaker{agent->first, agent->second.stream, agent->second.heard_at};
}

bool AgentService::Attached(const NodeName& node) const {
  absl::MutexLock lock(&mutex_);
  return SpeakerOf(node).has_value();
}

std::string AgentService::Secret(const GenerationKey& key) const {
  const std::string text = absl::StrCat(key.job.text(), "/", key.generation.value());
  return HmacSha256Hex(options_.exec_key, text);
}

std::string AgentService::Admit(const GenerationKey& key) {
  absl::MutexLock lock(&mutex_);
  generations_[key];
  return Secret(key);
}

NodeAgents::Ending AgentService::End(const GenerationKey& key, const NodeName& node) {
  const absl::Duration now = options_.clock->Monotonic();
  std::shared_ptr<AgentStream> stream;
  Ending ending = Ending::kAway;
  {
    absl::MutexLock lock(&mutex_);
    Generation& generation = generations_[key];
    if (!std::exchange(generation.ending, true)) generation.gone.clear();
    if (generation.gone.count(node) > 0) return Ending::kGone;
    std::optional<Speaker> speaker = SpeakerOf(node);
    if (!speaker) return Ending::kAway;
    // Told all the same: it may wake up.
    const bool silent = now - speaker->heard_at > kAgentSilence;
    ending = silent ? Ending::kAway : Ending::kUnderWay;
    if (!generation.told.insert(speaker->id).second) return ending;
    stream = std::move(speaker->stream);
    stream->Put(EndCommand(NameOf(key)));
  }
  stream->Act();
  return ending;
}

void AgentService::Forget(const GenerationKey& key) {
  absl::MutexLock lock(&mutex_);
  generations_.erase(key);
}

void AgentService::CloseSilent() {
  std::vector<StreamId> overdue;
  absl::Status why;
  {
    absl::MutexLock lock(&mutex_);
    overdue = places_.TakeOverdue(options_.clock->Monotonic());
    if (!overdue.empty()) why = places_.Overdue();
  }
  for (const StreamId id : overdue) Close(id, why);
}

void AgentService::CloseAll() {
  std::vector<std::shared_ptr<AgentStream>> agents;
  std::vector<std::shared_ptr<ExecStream>> waits;
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    for (const auto& [id, agent] : agents_) agents.push_back(agent.stream);
    for (const auto& [id, wait] : waits_) waits.push_back(wait.stream);
  }
  for (const auto& stream : agents) stream->Close(Stopping());
  for (const auto& stream : waits) stream->Close(Stopping());
}

}  // namespace espalier
