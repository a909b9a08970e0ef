// SimJournal: what survives the simulated coordinator. Used by inspector.h, sim_coordinator.h and
// tests/scenarios/stage.h. One thread.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "coordinator/core/effect.h"

namespace espalier::sim {

struct SimJournal {
  std::map<JobId, JobRecord> jobs;
  std::map<NodeName, NodeRecord> nodes;
  std::map<JobId, std::vector<AppendEvent>> history;
  std::set<GenerationKey> launches;

  // The launches of what runs no more go with the record that says so.
  void Put(const JobRecord& record) {
    jobs[record.id] = record;
    for (auto it = launches.lower_bound({record.id, Generation()}); it != launches.end();) {
      const bool runs = it->generation == record.generation && record.processes != Processes::kNone;
      if (it->job != record.id || runs) break;
      it = launches.erase(it);
    }
  }

  CoordinatorStarted Contents(const std::vector<NodeName>& cluster) const {
    CoordinatorStarted start{.nodes = cluster};
    for (const auto& [name, node] : nodes) start.records.push_back(node);
    for (const auto& [id, record] : jobs) start.jobs.push_back(record);
    start.launches.assign(launches.begin(), launches.end());
    return start;
  }
};

}  // namespace espalier::sim
