#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "coordinator/core/advance.h"
#include "coordinator/core/holders.h"
#include "coordinator/core/usable.h"

namespace espalier {
namespace {

void EnterState(Transaction& transaction, Node& node, AgentState state) {
  if (node.agent.state == state) return;
  node.agent.state = state;
  node.agent.state_since = transaction.now();
  transaction.QueueChanged();
}

// The job's history says what a rehearsal for it has found, when that is new.
void NoteRehearsal(Transaction& transaction, Node& node) {
  const std::string text = TakeRehearsal(node, transaction.now());
  Job* job =
      text.empty() ? nullptr : transaction.FindJob(JobId(node.agent.report->rehearsal().job_id()));
  if (job != nullptr && !IsFinal(job->record.state)) transaction.Note(*job, text);
}

void NoteTurn(Transaction& transaction, Node& node) {
  node.record.illness = node.agent.health.illness();
  transaction.Persist(node.record);
  transaction.QueueChanged();
}

// Of AgentAttached and of AgentReported.
template <typename Message>
void TakeReport(Transaction& transaction, Node& node, const Message& message) {
  AgentSession& agent = node.agent;
  const Obstacle before = NodeObstacle(transaction.state(), node);
  const std::optional<v1::NodeReport> last = std::move(agent.report);
  agent.heard_at = transaction.now();
  agent.clock_ahead = message.clock_ahead;
  agent.report = message.report;
  const bool may_look = transaction.now() - agent.attached_at <= kAgentSilence;
  if (last && agent.report->warm_unknown() && may_look) {
    *agent.report->mutable_warm() = last->warm();
  }
  const bool is_news =
      agent.state != AgentState::kAttached || agent.attached_at == transaction.now();
  EnterState(transaction, node, AgentState::kAttached);
  bool turned = agent.health.Hear(node.spec, *agent.report, transaction.moment());
  if (is_news) {
    turned = agent.health.Tick(node.spec, *agent.report, transaction.moment()) || turned;
  }
  if (turned) NoteTurn(transaction, node);
  agent.share.Look(node.spec, *agent.report, transaction.moment());
  if (NodeObstacle(transaction.state(), node) != before || MemoryChanged(node, last)) {
    transaction.QueueChanged();
  }
  NoteRehearsal(transaction, node);
  if (const Job* job = WantsRehearsal(transaction.state(), node)) {
    transaction.Do(Rehearse{message.stream, job->record.id, node.record.name});
  }
  for (const v1::WarmState& spare : TakeSpareMemory(transaction.state(), node)) {
    transaction.Do(DropMemory{.stream = message.stream,
                              .job = JobId(spare.job_id()),
                              .history = spare.history(),
                              .step = Step(spare.step())});
  }
}

bool SameProcess(const AgentSession& agent, const AgentAttached& hello) {
  return !hello.instance.empty() && hello.instance == agent.instance;
}

absl::Status Refused(const NodeName& node) {
  return absl::PermissionDeniedError(
      absl::StrCat("node ", node.text(),
                   " was forgotten and its certificate is refused from then on; to have "
                   "the machine join again, run `espalier nodes add ",
                   node.text(), "`"));
}

// Why the newcomer may not speak for the node; OK: it may.
absl::Status CheckNewcomer(const ClusterState& state, const Node& node,
                           const AgentAttached& hello) {
  const AgentSession& agent = node.agent;
  if (state.revoked.count(hello.serial) > 0) return Refused(hello.node);
  if (!agent.stream || *agent.stream == hello.stream || SameProcess(agent, hello)) {
    return absl::OkStatus();
  }
  const absl::Duration silent = state.now - agent.heard_at;
  if (silent > kAgentSilence) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "another agent speaks for node ", hello.node.text(), " already, heard of ",
      absl::FormatDuration(absl::Trunc(silent, absl::Milliseconds(1))),
      " ago; a node has one agent: end one of the two, or give this machine another name (the "
      "other's place is free ",
      absl::FormatDuration(kAgentSilence), " after its last word)"));
}

bool Holds(const std::vector<std::string>& serials, const std::string& serial) {
  return std::find(serials.begin(), serials.end(), serial) != serials.end();
}

void AddSerial(std::vector<std::string>& to, const std::string& serial) {
  if (!serial.empty() && !Holds(to, serial)) to.push_back(serial);
}

void Remember(Transaction& transaction, Node& node, const AgentAttached& hello) {
  NodeRecord& record = node.record;
  const bool known = hello.serial.empty() || Holds(record.serials, hello.serial);
  if (record.has_agent && record.certificate == hello.certificate && known) return;
  record.has_agent = true;
  record.certificate = hello.certificate;
  AddSerial(record.serials, hello.serial);
  transaction.Persist(record);
}

// Null: nothing is known of the name.
const NodeRecord* FindRecord(const ClusterState& state, const NodeName& name) {
  if (const Node* node = state.nodes.Find(name)) return &node->record;
  const auto absent = state.absent.find(name);
  return absent == state.absent.end() ? nullptr : &absent->second;
}

absl::Status CheckInvitation(const ClusterState& state, const NodeName& name) {
  const Node* node = state.nodes.Find(name);
  if (node == nullptr) return absl::OkStatus();
  if (!node->record.joined) {
    return absl::AlreadyExistsError(absl::StrCat(
        "the cluster file names a node '", name.text(),
        "' already, and where its certificate lies: make that with `espalier pki issue ",
        name.text(),
        " --role worker`, or take the node out of the cluster file, start espalierd "
        "again and add it, or choose another name"));
  }
  return absl::AlreadyExistsError(absl::StrCat(
      "a machine has joined as node '", name.text(),
      "' and has a certificate of that name; choose "
      "another name, or, if this machine is to take its place, run `espalier nodes forget ",
      name.text(), "` first, after which the old certificate is refused"));
}

std::string When(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

absl::Status CheckJoin(const NodeRecord* record, const NodeJoined& request, Moment at) {
  const std::string again =
      absl::StrCat("run `espalier nodes add ", request.node.text(), "` again");
  if (record == nullptr || !record->invitation ||
      !SameSecret(record->invitation->token_sha256, request.token_sha256)) {
    return absl::PermissionDeniedError(
        absl::StrCat("the token is not one for a node '", request.node.text(),
                     "': it was copied wrongly, is for "
                     "another name, or a newer one was made for this name; ",
                     again, " where espalierd is operated, and use the line that it prints"));
  }
  const Invitation& invitation = *record->invitation;
  if (invitation.used_at) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the token was used on ", When(*invitation.used_at),
        ", and a token is good for one "
        "machine, once; if that was not you, or its answer was lost, run `espalier nodes forget ",
        request.node.text(), "`, after which the certificate made then is refused, and ", again));
  }
  if (at.now >= invitation.expires_at) {
    return absl::PermissionDeniedError(
        absl::StrCat("the token expired on ", When(at.wall - (at.now - invitation.expires_at)),
                     " (a token lives ", absl::FormatDuration(kInvitationLife), "); ", again));
  }
  return absl::OkStatus();
}

absl::Status CheckForgotten(const ClusterState& state, const NodeForgotten& request) {
  const std::string& name = request.node.text();
  const Node* node = state.nodes.Find(request.node);
  if (node == nullptr) {
    const auto absent = state.absent.find(request.node);
    if (absent != state.absent.end() && absent->second.invitation) return absl::OkStatus();
    return NoSuchNode(state.nodes, request.node);
  }
  const NodeRecord& record = node->record;
  if (const JobId* holder = state.nodes.HolderOf(request.node)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", holder->text(), " runs on node ", name, "; run `espalier pause --hard ",
        holder->text(), "` or cancel it, and forget the node then"));
  }
  if (request.revoke && record.serials.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no certificate of node ", name,
                     " is known that could be refused, because "
                     "no agent has shown one; forget it without --revoke"));
  }
  const bool stays_out = !record.serials.empty() && (record.joined || request.revoke);
  if (node->agent.stream && !stays_out) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the agent of node ", name,
        " is attached and would speak for it again at once; stop espalier-agent there first",
        record.serials.empty() ? "" : ", or have its certificate refused with --revoke"));
  }
  return absl::OkStatus();
}

absl::Status CheckSet(const ClusterState& state, const NodeName& name) {
  const Node* node = state.nodes.Find(name);
  if (node == nullptr) return NoSuchNode(state.nodes, name);
  if (node->record.joined) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the cluster file names node '", name.text(),
      "' and says what jobs may do there: change that file, and start espalierd again"));
}

// What is remembered of it no more, and what is refused for ever.
void Revoke(ClusterState& state, NodeRecord& record) {
  for (const std::string& serial : record.serials) {
    AddSerial(record.revoked, serial);
    state.revoked.insert(serial);
  }
  record.serials.clear();
}

void Forget(Transaction& transaction, Node& node, bool revoke) {
  ClusterState& state = transaction.state();
  const NodeName name = node.record.name;
  if (node.agent.stream) {
    for (const v1::WarmState& memory : node.agent.report->warm()) {
      transaction.Do(DropMemory{.stream = *node.agent.stream,
                                .job = JobId(memory.job_id()),
                                .history = memory.history(),
                                .step = Step(memory.step())});
    }
    state.agents.erase(*node.agent.stream);
    transaction.Do(CloseStream{*node.agent.stream, Refused(name)});
  }
  node.agent = AgentSession{.state_since = transaction.now()};
  node.record.illness = {};
  node.record.has_agent = false;
  node.record.certificate.clear();
  node.record.invitation.reset();
  if (revoke) Revoke(state, node.record);
  if (std::exchange(node.record.joined, std::nullopt)) {
    NodeRecord& absent = state.absent[name];
    absent = {.name = name, .revoked = std::move(node.record.revoked)};
    state.nodes.Remove(name);
    return transaction.Persist(absent);
  }
  transaction.Persist(node.record);
}

}  // namespace

void OnAgent(Transaction& transaction, const AgentAttached& hello) {
  ClusterState& state = transaction.state();
  Node* node = state.nodes.Edit(hello.node);
  if (node == nullptr) {
    const absl::Status none = NoSuchNode(state.nodes, hello.node);
    transaction.Do(CloseStream{
        hello.stream,
        absl::NotFoundError(absl::StrCat(none.message(),
                                         "; add it with `espalier nodes add` or in the cluster "
                                         "file, or give the agent one of these names"))});
    return;
  }
  if (absl::Status status = CheckNewcomer(state, *node, hello); !status.ok()) {
    transaction.Do(CloseStream{hello.stream, std::move(status)});
    return;
  }
  AgentSession& agent = node->agent;
  if (agent.stream && *agent.stream != hello.stream) {
    state.agents.erase(*agent.stream);
    transaction.Do(
        CloseStream{*agent.stream, absl::AbortedError("the node's agent attached anew")});
  }
  agent.stream = hello.stream;
  agent.instance = hello.instance;
  agent.attached_at = transaction.now();
  state.agents[hello.stream] = hello.node;
  TakeReport(transaction, *node, hello);
  Remember(transaction, *node, hello);
}

void OnAgent(Transaction& transaction, const AgentReported& report) {
  const auto found = transaction.state().agents.find(report.stream);
  if (found == transaction.state().agents.end()) {
    transaction.Do(CloseStream{report.stream, absl::UnavailableError("attach first")});
    return;
  }
  TakeReport(transaction, *transaction.state().nodes.Edit(found->second), report);
}

void OnAgent(Transaction& transaction, const AgentDetached& gone) {
  const auto found = transaction.state().agents.find(gone.stream);
  if (found == transaction.state().agents.end()) return;
  Node& node = *transaction.state().nodes.Edit(found->second);
  transaction.state().agents.erase(found);
  node.agent.stream.reset();
  EnterState(transaction, node, AgentState::kGone);
}

void OnNode(Transaction& transaction, const NodeInvited& request) {
  const NodeName name(request.spec.name());
  const absl::Status status = CheckInvitation(transaction.state(), name);
  if (status.ok()) {
    NodeRecord& record = transaction.state().absent[name];
    record.name = name;
    record.invitation = Invitation{.token_sha256 = request.token_sha256,
                                   .expires_at = transaction.now() + kInvitationLife,
                                   .spec = request.spec};
    transaction.Persist(record);
  }
  transaction.Do(Reply{.request = request.request, .status = status});
}

void OnNode(Transaction& transaction, const NodeJoined& request) {
  ClusterState& state = transaction.state();
  const NodeRecord* known = FindRecord(state, request.node);
  absl::Status status = CheckJoin(known, request, transaction.moment());
  if (status.ok()) status = CheckInvitation(state, request.node);
  if (status.ok()) {
    NodeRecord record = *known;
    state.absent.erase(request.node);
    record.invitation->used_at = transaction.moment().wall;
    record.joined = record.invitation->spec;
    record.joined_as = state.nodes.empty() ? 1 : (state.nodes.end() - 1)->record.joined_as + 1;
    *record.joined->mutable_tls() = request.files;
    if (!request.worker.empty()) record.joined->set_worker(request.worker);
    record.has_agent = true;
    record.certificate = request.certificate;
    AddSerial(record.serials, request.serial);
    state.nodes.Add(record, *record.joined);
    state.nodes.Edit(request.node)->agent.state_since = transaction.now();
    transaction.Persist(record);
    transaction.QueueChanged();
  }
  transaction.Do(Reply{.request = request.request, .status = status});
}

void OnNode(Transaction& transaction, const NodeForgotten& request) {
  ClusterState& state = transaction.state();
  const absl::Status status = CheckForgotten(state, request);
  if (Node* node = status.ok() ? state.nodes.Edit(request.node) : nullptr) {
    Forget(transaction, *node, request.revoke || node->record.joined.has_value());
    transaction.QueueChanged();
  } else if (status.ok()) {
    NodeRecord& record = state.absent.at(request.node);
    record.invitation.reset();
    transaction.Persist(record);
  }
  transaction.Do(Reply{.request = request.request, .status = status});
}

void OnNode(Transaction& transaction, const NodeSet& request) {
  Reply reply{.request = request.request,
              .status = CheckSet(transaction.state(), request.node),
              .explanation = "jobs heed it from their next step on"};
  if (reply.status.ok()) {
    Node& node = *transaction.state().nodes.Edit(request.node);
    node.Adopt(request.policy, request.clear_hours, request.clear_quiet_hours,
               transaction.moment());
    NoteTurn(transaction, node);
  }
  transaction.Do(std::move(reply));
}

namespace {

void WatchHours(Transaction& transaction, const Node& node) {
  NodeHealth health = node.agent.health;
  NodeShare share = node.agent.share;
  const v1::NodeReport& report = *node.agent.report;
  share.Look(node.spec, report, transaction.moment());
  const bool turns = health.Tick(node.spec, report, transaction.moment());
  if (!turns && share.why() == node.agent.share.why()) return;
  Node& turned = *transaction.state().nodes.Edit(node.record.name);
  turned.agent.health = std::move(health);
  turned.agent.share = std::move(share);
  if (turns) NoteTurn(transaction, turned);
}

}  // namespace

void WatchAgents(Transaction& transaction) {
  NodeTable& nodes = transaction.state().nodes;
  for (const Node& node : nodes) {
    const AgentSession& agent = node.agent;
    const bool attached = agent.state == AgentState::kAttached;
    if (attached && transaction.now() - agent.heard_at > kAgentSilence) {
      EnterState(transaction, *nodes.Edit(node.record.name), AgentState::kSilent);
    } else if (attached && (!node.spec.hours().empty() || !node.spec.quiet_hours().empty())) {
      WatchHours(transaction, node);
    } else if (!attached && agent.report && agent.report->warm_size() > 0 &&
               transaction.now() - agent.state_since > kAgentSilence) {
      nodes.Edit(node.record.name)->agent.report->clear_warm();  // who waits goes on without
      transaction.QueueChanged();
    }
  }
}

}  // namespace espalier
