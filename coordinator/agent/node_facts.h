// What the agent reports of its machine (NodeReport): what the platform says, versions, disk, and
// the checkpoints and data folders that lie here. Folders of jobs and data may not answer at all,
// and then what was seen there last is told. Used by coordinator/agent. One thread.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/platform/platform.h"
#include "coordinator/agent/folder_watch.h"
#include "coordinator/launcher/versions.h"
#include "espalier/v1/agent.pb.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

struct NodeFactsOptions {
  // Its file system is the one whose free space is told; programs write their answers here.
  std::string state_dir;
  // Path or name in PATH.
  std::string mpirun = "mpirun";
  // Beside the agent.
  std::string worker;
  // Folders as espalierd keeps them, JOB/checkpoints/step-N; missing ones hold nothing. Empty: the
  // one that espalierd names.
  std::vector<std::string> job_folders;
  // Prepared data.
  std::vector<std::string> data_folders;
  std::string node;
  // What it says of the machine counts instead of what the system says: a NodeCondition as JSON,
  // read for each report. Empty, or nothing there: the system.
  std::string condition_file;
};

// How busy the machine is with what is none of Espalier's, from processor times that are read one
// after the other.
class OtherLoad {
 public:
  // Of the processors, from 0 to 1, since the last times; absent: there are none, or they are too
  // fresh. What of_program used is Espalier's.
  std::optional<double> Measure(const ProcessorTimes& times, absl::Duration monotonic);

 private:
  std::optional<ProcessorTimes> last_;
  absl::Duration at_;
  std::optional<double> load_;
};

class NodeFacts {
 public:
  NodeFacts(NodeFactsOptions options, Clock& clock);

  v1::NodeReport Report();
  // What espalierd said of where jobs lie, which counts when no job folders were given, and where
  // they register memory. Kept for the next agent, whose first report is then as good as the last.
  void NoteFolders(const v1::AgentWelcome& told);
  // Gives memory back, where the folder that registers it answers. Waits for nothing: espalierd
  // asks until it is gone.
  void Drop(const v1::DropWarm& command);

 private:
  void FillCondition(v1::NodeCondition& condition);
  void ReadConditionFile();
  void UseFolders(const std::string& jobs, const std::string& warm);
  std::string FoldersFile() const;

  const NodeFactsOptions options_;
  Clock& clock_;
  ProgramVersions versions_;
  const std::unique_ptr<EnergyMeter> energy_;  // null: the machine does not tell
  OtherLoad other_load_;
  v1::NodeCondition given_condition_;
  std::string condition_problem_;
  std::deque<FolderWatch> folders_;
  std::string told_folder_;
  std::string warm_folder_;
  std::optional<FolderWatch> told_;
  std::optional<FolderWatch> warm_;
};

}  // namespace espalier
