#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/handlers.h"
#include "coordinator/core/usable.h"

namespace espalier {
namespace {

void EnterState(Context& context, Node& node, AgentState state) {
  if (node.agent.state == state) return;
  node.agent.state = state;
  node.agent.state_since = context.now();
  context.QueueChanged();
}

// Of AgentAttached and of AgentReported.
template <typename Message>
void TakeReport(Context& context, Node& node, const Message& message) {
  AgentSession& agent = node.agent;
  const Obstacle before = NodeObstacle(context.state(), node);
  agent.heard_at = context.now();
  agent.clock_ahead = message.clock_ahead;
  agent.report = message.report;
  EnterState(context, node, AgentState::kAttached);
  if (NodeObstacle(context.state(), node) != before) context.QueueChanged();
}

bool SameProcess(const AgentSession& agent, const AgentAttached& hello) {
  return !hello.instance.empty() && hello.instance == agent.instance;
}

// Why the newcomer may not speak for the node; OK: it may.
absl::Status CheckNewcomer(const Node& node, const AgentAttached& hello, absl::Time now) {
  const AgentSession& agent = node.agent;
  if (!agent.stream || *agent.stream == hello.stream || SameProcess(agent, hello)) {
    return absl::OkStatus();
  }
  const absl::Duration silent = now - agent.heard_at;
  if (silent > kAgentSilence) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "another agent speaks for node ", hello.node.text(), " already, heard of ",
      absl::FormatDuration(absl::Trunc(silent, absl::Milliseconds(1))),
      " ago; a node has one agent: end one of the two, or give this machine another name (the "
      "other's place is free ",
      absl::FormatDuration(kAgentSilence), " after its last word)"));
}

void Remember(Context& context, Node& node, const AgentAttached& hello) {
  NodeRecord& record = node.record;
  if (record.has_agent && record.certificate == hello.certificate) return;
  record.has_agent = true;
  record.certificate = hello.certificate;
  context.Persist(record);
}

}  // namespace

void OnAgent(Context& context, const AgentAttached& hello) {
  ClusterState& state = context.state();
  Node* node = state.nodes.Edit(hello.node);
  if (node == nullptr) {
    context.Do(CloseStream{
        hello.stream,
        absl::NotFoundError(absl::StrCat("the cluster file names no node '", hello.node.text(),
                                         "'; it has: ", NamesOfNodes(state.nodes),
                                         "; add it there, or give the agent one of these names"))});
    return;
  }
  if (absl::Status status = CheckNewcomer(*node, hello, context.now()); !status.ok()) {
    context.Do(CloseStream{hello.stream, std::move(status)});
    return;
  }
  AgentSession& agent = node->agent;
  if (agent.stream && *agent.stream != hello.stream) {
    state.agents.erase(*agent.stream);
    context.Do(CloseStream{*agent.stream, absl::AbortedError("the node's agent attached anew")});
  }
  agent.stream = hello.stream;
  agent.instance = hello.instance;
  agent.attached_at = context.now();
  state.agents[hello.stream] = hello.node;
  TakeReport(context, *node, hello);
  Remember(context, *node, hello);
}

void OnAgent(Context& context, const AgentReported& report) {
  const auto found = context.state().agents.find(report.stream);
  if (found == context.state().agents.end()) {
    context.Do(CloseStream{report.stream, absl::UnavailableError("attach first")});
    return;
  }
  TakeReport(context, *context.state().nodes.Edit(found->second), report);
}

void OnAgent(Context& context, const AgentDetached& gone) {
  const auto found = context.state().agents.find(gone.stream);
  if (found == context.state().agents.end()) return;
  Node& node = *context.state().nodes.Edit(found->second);
  context.state().agents.erase(found);
  node.agent.stream.reset();
  EnterState(context, node, AgentState::kGone);
}

void WatchAgents(Context& context) {
  NodeTable& nodes = context.state().nodes;
  for (const Node& node : nodes) {
    const bool silent = context.now() - node.agent.heard_at > kAgentSilence;
    if (node.agent.state != AgentState::kAttached || !silent) continue;
    EnterState(context, *nodes.Edit(node.record.name), AgentState::kSilent);
  }
}

void ShiftDeadlines(NodeTable& nodes, absl::Duration slept) {
  for (const Node& node : nodes) nodes.Edit(node.record.name)->agent.heard_at += slept;
}

}  // namespace espalier
