#include "tests/sim/node_rules.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/faults.h"
#include "coordinator/core/usable.h"

namespace espalier::sim {
namespace {

// Empty, or why the agent that speaks for the node should not.
std::string WhyNotThisAgent(const ClusterState& state, const Node& node, const Scene& scene) {
  const auto found = state.agents.find(*node.agent.stream);
  if (found == state.agents.end() || found->second != node.record.name) {
    return absl::StrCat("the stream of the agent of ", node.record.name.text(), " is another's");
  }
  if (!node.record.has_agent) return "an agent that will be forgotten with this coordinator";
  for (const std::string& serial : node.record.serials) {
    if (scene.refused.count(serial) == 0) continue;
    return absl::StrCat("an agent of ", node.record.name.text(),
                        " is taken in, whose certificate is refused");
  }
  return "";
}

}  // namespace

std::string FindWrongHolder(const ClusterState& state) {
  std::map<NodeName, JobId> holders;
  for (const auto& [id, job] : state.jobs) {
    if (!HoldsNodes(job.record)) continue;
    for (const NodeName& node : job.record.nodes) {
      if (node.empty()) continue;
      const auto [there, fresh] = holders.emplace(node, id);
      if (!fresh && there->second != id) {
        return absl::StrCat("node ", node.text(), " is in ", id.text(), " and ",
                            there->second.text());
      }
      const JobId* found = state.nodes.HolderOf(node);
      if (found == nullptr || *found != id) {
        return absl::StrCat("the table of nodes does not know that ", id.text(), " holds ",
                            node.text());
      }
    }
  }
  for (const Node& node : state.nodes) {
    const auto there = holders.find(node.record.name);
    if (node.holder == (there == holders.end() ? JobId() : there->second)) continue;
    return absl::StrCat("the table of nodes has '", node.holder.text(), "' as the holder of ",
                        node.record.name.text());
  }
  return "";
}

std::string FindWrongAgent(const ClusterState& state, const Scene& scene) {
  size_t speaking = 0;
  for (const Node& node : state.nodes) {
    if (!node.agent.stream) continue;
    ++speaking;
    std::string why = WhyNotThisAgent(state, node, scene);
    if (!why.empty()) return why;
  }
  return speaking == state.agents.size() ? "" : "a stream of an agent that speaks for no node";
}

std::string FindForgottenMemory(const ClusterState& state, const JobRecord& record,
                                const std::vector<NodeName>& nodes) {
  const auto memory = [&](const Node& node) {
    int64_t step = 0;
    if (node.agent.state != AgentState::kAttached) return step;
    for (const v1::WarmState& warm : node.agent.report->warm()) {
      // That nobody can have before a process is gone which nobody could end is no choice.
      const bool stuck = warm.taken_by() != 0 && warm.taken_by() + 1 < record.generation.value();
      const bool counts = warm.job_id() == record.id.text() && warm.history() == record.history;
      if (counts && !stuck) step = std::max(step, warm.step());
    }
    return step;
  };
  int64_t known = 0;
  for (const HolderRecord& holder : record.holders) known = std::max(known, holder.step.value());
  // What the last generation had in use when the agent spoke has gone on with it since.
  const auto went_on = [&](const Node& node) {
    if (node.agent.state != AgentState::kAttached) return false;
    const std::vector<NodeName>& trained = record.trained_on;
    const auto& warm = node.agent.report->warm();
    return std::find(trained.begin(), trained.end(), node.record.name) != trained.end() &&
           std::any_of(warm.begin(), warm.end(), [&](const v1::WarmState& one) {
             return one.job_id() == record.id.text() && one.history() == record.history &&
                    one.step() > 0 && one.taken_by() + 1 == record.generation.value();
           });
  };
  for (const NodeName& name : nodes) {
    const Node* node = state.nodes.Find(name);
    if (node == nullptr) continue;
    if (went_on(*node)) return "";
    known = std::max(known, memory(*node) + 1);
  }
  for (const Node& node : state.nodes) {
    if (memory(node) <= known) continue;
    return absl::StrCat(record.id.text(), " starts without ", node.record.name.text(),
                        ", which holds step ", memory(node), " in memory");
  }
  return "";
}

bool CouldGoOn(const ClusterState& state, const JobRecord& record, const NodeName& without) {
  const std::vector<NodeName>& nodes = record.trained_on;
  return !nodes.empty() && std::find(nodes.begin(), nodes.end(), without) == nodes.end() &&
         CanSpare(state, record, without);
}

std::string FindJobOnBarredNode(const ClusterState& state, const std::vector<Effect>& effects) {
  if (state.agents_due != absl::InfinitePast()) return "";
  const auto barred = [&](const NodeName& name) {
    const Node* node = state.nodes.Find(name);
    if (node == nullptr) return false;
    return node->record.drained || IsUnwell(*node);
  };
  const auto on_barred = [&](const JobRecord& record) {
    return !IsExternal(record) && std::any_of(record.nodes.begin(), record.nodes.end(), barred);
  };
  for (const auto& [id, job] : state.jobs) {
    const bool trains = job.record.state == JobState::kRunning &&
                        job.record.processes == Processes::kRunning &&
                        job.record.verdict == Verdict::kOpen;
    // For want of a checkpoint it stays where it is.
    if (trains && job.world.stays.empty() && on_barred(job.record)) {
      return absl::StrCat("job ", id.text(), " trains on a node that is drained or unwell");
    }
  }
  const auto set_aside = [&](const NodeName& name) {
    const Node* node = state.nodes.Find(name);
    return node != nullptr && IsSetAside(node->record);
  };
  for (const Effect& effect : effects) {
    const auto* row = std::get_if<AppendEvent>(&effect);
    if (row == nullptr || !absl::StartsWith(row->text, "starts generation")) continue;
    const auto job = state.jobs.find(row->job);
    if (job == state.jobs.end() || IsExternal(job->second.record)) continue;
    const std::vector<NodeName>& nodes = job->second.record.nodes;
    if (std::any_of(nodes.begin(), nodes.end(), barred)) {
      return absl::StrCat("job ", row->job.text(), " starts on a node that is drained or unwell");
    }
    if (std::any_of(nodes.begin(), nodes.end(), set_aside)) {
      return absl::StrCat("job ", row->job.text(), " starts on a node that is set aside");
    }
  }
  return "";
}

}  // namespace espalier::sim
