// What the agent reports of its machine (NodeReport): what the platform says, versions, disk, and
// the checkpoints and data folders that lie here. Used by coordinator/agent/agent.h. One thread;
// construction asks other programs for their versions and waits for them, at most for a bound.
#pragma once

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

struct NodeFactsOptions {
  // Its file system is the one whose free space is told; programs write their answers here.
  std::string state_dir;
  // Path or name in PATH.
  std::string mpirun = "mpirun";
  // Beside the agent.
  std::string worker;
  // Folders as espalierd keeps them, JOB/checkpoints/step-N; missing ones hold nothing.
  std::vector<std::string> job_folders;
  // Prepared data.
  std::vector<std::string> data_folders;
};

class NodeFacts {
 public:
  NodeFacts(NodeFactsOptions options, Clock& clock);

  v1::NodeReport Report();
  // "(Open MPI) 4.1.4" and the like; empty: unknown.
  const std::string& open_mpi() const { return versions_.open_mpi(); }

 private:
  const NodeFactsOptions options_;
  Clock& clock_;
  v1::NodeVersions versions_;
};

// What follows `label` in a text, up to a space, bracket or line end: "4.1.4" after "(Open MPI) ".
std::string VersionAfter(const std::string& text, const std::string& label);

}  // namespace espalier
