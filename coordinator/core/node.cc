#include "coordinator/core/node.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace espalier {

void Node::Adopt(const v1::NodeSpec& policy, bool clear_hours, bool clear_quiet_hours, Moment at) {
  if (clear_hours) spec.clear_hours();
  if (clear_quiet_hours) spec.clear_quiet_hours();
  MergePolicy(policy, spec);
  record.joined = spec;
  if (!agent.report) return;
  agent.health.LookAnew(spec, *agent.report, at);
  agent.share.Look(spec, *agent.report, at);
}

void NodeTable::Add(NodeRecord record, v1::NodeSpec spec) {
  const bool fresh = index_.emplace(record.name, nodes_.size()).second;
  ESPALIER_CHECK(fresh, "each node has a name of its own");
  Node& node = nodes_.emplace_back();
  if (record.has_agent) node.agent.state = AgentState::kGone;
  node.record = std::move(record);
  node.spec = std::move(spec);
}

void NodeTable::Remove(const NodeName& name) {
  const auto found = index_.find(name);
  ESPALIER_CHECK(found != index_.end() && HolderOf(name) == nullptr, "a node that nobody holds");
  nodes_.erase(nodes_.begin() + static_cast<std::ptrdiff_t>(found->second));
  index_.erase(found);
  for (size_t i = 0; i < nodes_.size(); ++i) index_[nodes_[i].record.name] = i;
}

const Node* NodeTable::Find(const NodeName& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &nodes_[found->second];
}

Node* NodeTable::Edit(const NodeName& name) {
  const auto found = index_.find(name);
  if (found == index_.end()) return nullptr;
  Node& node = nodes_[found->second];
  ++node.revision;
  return &node;
}

const JobId* NodeTable::HolderOf(const NodeName& name) const {
  const auto found = holders_.find(name);
  return found == holders_.end() ? nullptr : &found->second;
}

void NodeTable::SetHeld(const JobId& job, const std::vector<NodeName>& nodes) {
  const auto known = held_.find(job);
  if (known == held_.end() ? nodes.empty() : known->second == nodes) return;
  if (known != held_.end()) {
    for (const NodeName& name : known->second) Release(job, name);
    held_.erase(known);
  }
  if (nodes.empty()) return;
  for (const NodeName& name : nodes) {
    if (name.empty()) continue;
    holders_[name] = job;
    if (Node* node = Edit(name)) node->holder = job;
  }
  held_[job] = nodes;
}

void NodeTable::Release(const JobId& job, const NodeName& name) {
  const auto found = holders_.find(name);
  if (found == holders_.end() || found->second != job) return;
  holders_.erase(found);
  if (Node* node = Edit(name)) node->holder = JobId();
}

absl::Status NoSuchNode(const NodeTable& nodes, const NodeName& name) {
  return absl::NotFoundError(
      absl::StrCat("there is no node '", name.text(), "'; there are: ", NamesOfNodes(nodes)));
}

std::string NamesOfNodes(const NodeTable& nodes) {
  if (nodes.empty()) return "none";
  return absl::StrJoin(nodes, ", ", [](std::string* out, const Node& node) {
    absl::StrAppend(out, node.record.name.text());
  });
}

}  // namespace espalier
