#include "coordinator/core/holders.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/facts.h"

namespace espalier {
namespace {

HolderRecord* Find(JobRecord& record, const NodeName& node) {
  const auto found = std::find_if(record.holders.begin(), record.holders.end(),
                                  [&](const HolderRecord& holder) { return holder.node == node; });
  return found == record.holders.end() ? nullptr : &*found;
}

// The agent has seen it in the node's state folder.
bool AgentHas(const Node& node, const JobId& job, Step step) {
  if (node.agent.state != AgentState::kAttached || !node.agent.report) return false;
  const auto& held = node.agent.report->held();
  return std::any_of(held.begin(), held.end(), [&](const v1::HeldState& one) {
    return one.job_id() == job.text() && one.step() >= step.value();
  });
}

}  // namespace

Step NewestHeld(const JobRecord& record) {
  Step newest(0);
  for (const HolderRecord& holder : record.holders) newest = std::max(newest, holder.step);
  return newest;
}

bool StateIsGone(const JobRecord& record) {
  return !record.holders.empty() && NewestHeld(record) == Step(0) && record.checkpoint &&
         record.checkpoint->step > Step(0);
}

bool NeedsHolder(const JobRecord& record) {
  if (IsExternal(record)) return false;
  if (StateIsGone(record)) return true;
  return !record.spec.checkpoint().shared() && NewestHeld(record) > Step(0);
}

bool HoldsNewest(const ClusterState& state, const JobRecord& record, const NodeName& node) {
  const Step newest = NewestHeld(record);
  if (newest == Step(0)) return false;
  const Node* const known = state.nodes.Find(node);
  if (known != nullptr && AgentHas(*known, record.id, newest)) return true;
  const std::vector<NodeName> holders = HoldersOfNewest(record);
  return std::any_of(holders.begin(), holders.end(), [&](const NodeName& holder) {
    if (holder == node) return true;
    const Node* const other = state.nodes.Find(holder);
    return known != nullptr && other != nullptr && !known->address.empty() &&
           known->address == other->address;
  });
}

std::vector<NodeName> HoldersOfNewest(const JobRecord& record) {
  std::vector<NodeName> nodes;
  const Step newest = NewestHeld(record);
  for (const HolderRecord& holder : record.holders) {
    if (newest > Step(0) && holder.step == newest) nodes.push_back(holder.node);
  }
  return nodes;
}

std::string WhomItWaitsFor(const JobRecord& record) {
  const std::string otherwise =
      absl::StrCat("; to do without it: espalier resume ", record.id.text(), " --from-scratch");
  if (StateIsGone(record)) {
    return absl::StrCat("its state of step ", record.checkpoint->step.value(),
                        ", which no node holds any more; put the checkpoint back", otherwise);
  }
  const std::vector<NodeName> holders = HoldersOfNewest(record);
  return absl::StrCat(NodeList(holders), holders.size() == 1 ? ", which holds" : ", which hold",
                      " its state of step ", NewestHeld(record).value(), otherwise);
}

bool NoteHolder(JobRecord& record, const NodeName& node, Step step) {
  HolderRecord* known = Find(record, node);
  if (known == nullptr) {
    record.holders.push_back({node, step});
    return true;
  }
  const bool more = step > known->step;
  if (more) known->step = step;
  return more;
}

std::optional<Step> NoteFound(JobRecord& record, const NodeName& node, Step step) {
  HolderRecord* known = Find(record, node);
  if (known == nullptr) {
    if (step > Step(0)) record.holders.push_back({node, step});
    return std::nullopt;
  }
  const Step before = std::exchange(known->step, step);
  if (before <= step) return std::nullopt;
  return before;
}

void ForgetHolders(JobRecord& record) {
  record.holders.clear();
  record.checkpoint.reset();
}

}  // namespace espalier
