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
  std::map<NodeName, NodeHealth> nodes;
  std::map<JobId, std::vector<AppendEvent>> history;
  std::set<GenerationKey> launches;

  CoordinatorStarted Contents(const std::vector<NodeName>& cluster) const {
    CoordinatorStarted start{.nodes = cluster};
    for (const auto& [name, node] : nodes) start.health.push_back(node);
    for (const auto& [id, record] : jobs) start.jobs.push_back(record);
    start.launches.assign(launches.begin(), launches.end());
    return start;
  }
};

}  // namespace espalier::sim
