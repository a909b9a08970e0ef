#include "coordinator/core/node_health.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/names.h"
#include "coordinator/core/queue.h"

namespace espalier {
namespace {

bool CanSpare(const ClusterState& state, const JobRecord& record, const NodeName& name) {
  int32_t others = 0;
  for (const NodeHealth& node : state.nodes) {
    const bool usable = !IsSetAside(node) && MayUse(record, node.name);
    if (usable && node.name != name) ++others;
  }
  return others >= record.spec.parallel().min_nodes();
}

void SetAside(Context& context, NodeHealth& node, const std::string& reason) {
  const NodePolicy policy;
  if (context.now() - node.set_aside_until > policy.good_spell) node.set_asides = 0;
  absl::Duration span = policy.first_set_aside;
  for (int32_t i = 0; i < node.set_asides && span < policy.longest_set_aside; ++i) span *= 2;
  span = std::min(span, policy.longest_set_aside);
  ++node.set_asides;
  node.set_aside_until = context.now() + span;
  node.set_aside_reason = absl::StrCat(node.faults.size(), " faults within ",
                                       absl::FormatDuration(policy.window), ", the last: ", reason);
  node.faults.clear();
}

}  // namespace

bool IsSetAside(const NodeHealth& node) { return !node.set_aside_reason.empty(); }

const NodeHealth* FindNode(const ClusterState& state, const NodeName& name) {
  const auto found = std::find_if(state.nodes.begin(), state.nodes.end(),
                                  [&](const NodeHealth& node) { return node.name == name; });
  return found == state.nodes.end() ? nullptr : &*found;
}

NodeHealth* FindNode(ClusterState& state, const NodeName& name) {
  return const_cast<NodeHealth*>(FindNode(std::as_const(state), name));
}

void BlameNode(Context& context, const Job& job, Rank rank, const std::string& reason) {
  const auto index = static_cast<size_t>(rank.value());
  if (IsExternal(job.record) || index >= job.record.nodes.size()) return;
  NodeHealth* node = FindNode(context.state(), job.record.nodes[index]);
  if (node == nullptr || IsSetAside(*node)) return;
  const NodePolicy policy;
  auto& faults = node->faults;
  faults.erase(std::remove_if(faults.begin(), faults.end(),
                              [&](absl::Time at) { return context.now() - at > policy.window; }),
               faults.end());
  faults.push_back(context.now());
  if (faults.size() >= policy.faults && CanSpare(context.state(), job.record, node->name)) {
    SetAside(context, *node, reason);
  }
  context.Persist(*node);
}

void ReturnNodes(Context& context) {
  for (NodeHealth& node : context.state().nodes) {
    if (!IsSetAside(node) || context.now() < node.set_aside_until) continue;
    node.set_aside_reason.clear();
    context.Persist(node);
    context.QueueChanged();
  }
}

}  // namespace espalier
