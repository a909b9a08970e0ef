// What the agent reports of its machine (NodeReport): what the platform says, versions, disk, and
// the checkpoints and data folders that lie here. Used by coordinator/agent/agent.h. One thread.
// Other programs are asked for their versions, which come when they have answered.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "coordinator/launcher/process.h"
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

 private:
  // A program that was asked for its version.
  struct Question {
    ProcessIdentity process;
    std::string answer_path;
    // What stands before the version in its answer.
    std::string label;
    std::string* version;
    absl::Duration until;
  };

  void Ask(const std::string& program, const std::string& label, std::string* version);
  // Whether it is over.
  bool Answered(const Question& question);

  const NodeFactsOptions options_;
  Clock& clock_;
  v1::NodeVersions versions_;
  std::vector<Question> questions_;
};

// What follows `label` in a text, up to a space, bracket or line end: "4.1.4" after "(Open MPI) ".
std::string VersionAfter(const std::string& text, const std::string& label);

}  // namespace espalier
