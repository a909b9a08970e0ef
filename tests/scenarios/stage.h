// Stage: the core with a journal and a clock, driven by the commands of a scenario file (README.md
// lists them). Used by scenarios_test.cc. One thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/advance.h"
#include "tests/scenarios/words.h"
#include "tests/sim/sim_journal.h"

namespace espalier::scenarios {

class Stage {
 public:
  // Does what one line says, and gives the effects as text, a line each. INVALID_ARGUMENT: the line
  // is not understood.
  absl::StatusOr<std::string> Do(const std::string& line);

 private:
  using Result = absl::StatusOr<std::string>;
  // Null when the command is of another kind.
  using Handler = Result (Stage::*)(Words&);
  static Handler FindHandler(const std::string& command);

  Result Cluster(Words& words);
  Result Submit(Words& words);
  Result Ask(Words& words);
  Result AskOfNode(Words& words);
  Result Hello(Words& words);
  Result HelloByHand(Words& words);
  Result Agent(Words& words);
  Result AgentReport(Words& words);
  Result Report(Words& words);
  Result Finished(Words& words);
  Result Processes(Words& words);
  Result Up(Words& words);
  Result Train(Words& words);
  Result Wait(Words& words);
  Result Sleep(Words& words);
  Result Correct(Words& words);
  Result Crash(Words& words);
  Result Jobs(Words& words);

  // "dated" before a command: rows of the history with their time.
  bool dated_ = false;
  // The coordinator starts with what the journal holds.
  std::string Start();
  std::string Take(const Event& event);
  // The rank on the stream reports its next step, by the plan in force.
  std::string Commit(StreamId stream, double pace);
  // Within so much of 1, the same in every run.
  double Noise(double most);
  std::string Beat(const std::vector<int64_t>& streams);

  ClusterState state_;
  sim::SimJournal journal_;
  std::vector<NodeName> nodes_;
  std::map<NodeName, v1::NodeSpec> specs_;
  // What agents said last.
  std::map<StreamId, v1::NodeReport> reports_;
  uint32_t noise_ = 1;
  absl::Duration wall_ahead_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000'000);
  RequestId request_;
  int64_t beats_ = 0;
};

}  // namespace espalier::scenarios
