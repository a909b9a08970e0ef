// Memories: what of a job outlives its processes in the memory of simulated nodes, as the registry
// of shared segments holds it: one for each job and node, with at most one process that has it.
// Used by scene.h. One thread.
#pragma once

#include <map>

#include "common/base/ids.h"
#include "espalier/v1/node.pb.h"

namespace espalier::sim {

class Memories {
 public:
  // A process of this generation takes what is there of this history, or begins with nothing.
  // False: another process has it.
  bool Take(const JobId& job, const NodeName& node, int64_t history, Generation generation) {
    Memory& memory = nodes_[node][job];
    if (memory.taken_by != 0) return false;
    if (memory.history != history) memory = {.history = history};
    memory.taken_by = generation.value();
    return true;
  }
  Step At(const JobId& job, const NodeName& node) const {
    const auto there = nodes_.find(node);
    if (there == nodes_.end()) return Step(0);
    const auto memory = there->second.find(job);
    return memory == there->second.end() ? Step(0) : memory->second.step;
  }
  // Of who has taken it.
  void Keep(const JobId& job, const NodeName& node, Step step) { nodes_[node][job].step = step; }
  void LetGo(const JobId& job, const NodeName& node) { nodes_[node][job].taken_by = 0; }
  void GiveBack(const JobId& job, const NodeName& node) { nodes_[node].erase(job); }

  // An agent gives back what is not newer, unless a process has it.
  void Drop(const NodeName& node, const JobId& job, int64_t history, Step step) {
    auto& jobs = nodes_[node];
    const auto found = jobs.find(job);
    if (found == jobs.end() || found->second.taken_by != 0) return;
    const Memory& memory = found->second;
    const bool newer =
        memory.history > history || (memory.history == history && memory.step > step);
    if (!newer) jobs.erase(found);
  }
  // The machine's power was cut.
  void Lose(const NodeName& node) { nodes_.erase(node); }

  void AddTo(v1::NodeReport& report, const NodeName& node) const {
    const auto there = nodes_.find(node);
    if (there == nodes_.end()) return;
    for (const auto& [job, memory] : there->second) {
      v1::WarmState& warm = *report.add_warm();
      warm.set_job_id(job.text());
      warm.set_history(memory.history);
      warm.set_step(memory.step.value());
      warm.set_taken_by(memory.taken_by);
    }
  }
  bool Any(const NodeName& node) const {
    const auto there = nodes_.find(node);
    return there != nodes_.end() && !there->second.empty();
  }

 private:
  struct Memory {
    int64_t history = 0;
    Step step;
    int64_t taken_by = 0;
  };
  std::map<NodeName, std::map<JobId, Memory>> nodes_;
};

}  // namespace espalier::sim
