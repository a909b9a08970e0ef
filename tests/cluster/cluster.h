// Cluster: two "machines" (network namespaces "studio" and "macbook" joined by a veth cable), with
// espalierd on studio behind mutual TLS. Used by cluster_test.cc, agents_test.cc and
// adapters_test.cc. Needs root. Single-threaded.
#pragma once

#include <signal.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace espalier::cluster {

inline constexpr char kStudioAddress[] = "10.77.0.1";
inline constexpr char kMacbookAddress[] = "10.77.0.2";
inline constexpr char kCoordinator[] = "10.77.0.1:7070";

struct CommandResult {
  int exit_code = -1;
  std::string output;  // stdout and stderr
};

// Runs a shell command and waits for it.
CommandResult Shell(const std::string& command);

// The same; a failure of the test when it does not exit with 0.
void Must(const std::string& command);

inline bool Alive(int pid) { return kill(pid, 0) == 0; }

// Polls until `condition` holds; false after `seconds`.
bool Eventually(const std::function<bool()>& condition, double seconds = 60);

struct RankInfo {
  int rank = 0;
  std::string node;
  int pid = 0;
};

// How espalierd reaches the machines.
enum class Nodes {
  kRemoteShell,  // named in the cluster file; one disk, as if the state folder were shared
  kAgents,       // joined as README.md tells; macbook's state folder is on a disk of its own
};

class Cluster {
 public:
  explicit Cluster(Nodes nodes = Nodes::kRemoteShell);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Runs a command line inside a machine ("studio" or "macbook").
  CommandResult On(const std::string& machine, const std::string& command) const;
  // Runs `espalier ARGUMENTS` on studio with the operator's certificate (or another's).
  CommandResult Cli(const std::string& arguments, const std::string& identity = "operator") const;

  void StartCoordinator();
  void KillCoordinator();  // SIGKILL

  // With kAgents: `espalier-agent run`, after the machine has joined, until jobs may use it.
  void StartAgent(const std::string& machine);
  void KillAgent(const std::string& machine);  // SIGKILL
  bool Usable(const std::string& machine) const;

  // Submits a job file of folder() with the given settings ("train.steps=100"); returns its id.
  std::string Submit(const std::vector<std::string>& settings = {},
                     const std::string& file = "job.yaml") const;
  nlohmann::json Job(const std::string& id) const;  // JobStatus
  std::string StateOf(const std::string& id) const;
  int64_t StepOf(const std::string& id) const;
  std::vector<RankInfo> Ranks(const std::string& id) const;
  std::vector<int> Pids(const std::string& id) const;  // by rank; 0: not attached
  // Submits a job and waits until it is past its first steps.
  std::string RunningJob(const std::vector<std::string>& settings = {}) const;

  // Waits for a state, or for a step beyond `step`; a failure prints the job, its events and log.
  bool WaitForState(const std::string& id, const std::string& state, double seconds = 60) const;
  bool WaitForStepAfter(const std::string& id, int64_t step, double seconds = 60) const;
  // The job's events and the end of its log, for failure messages.
  std::string Story(const std::string& id) const;

  // Meanwhile studio has no address, and Cli goes by espalierd's socket.
  void CutCable();
  void RestoreCable();
  const std::string& folder() const { return folder_; }

 private:
  void MakeNetwork() const;
  void MakeCertificates() const;
  void WriteFiles() const;
  void Join(const std::string& machine);
  // Starts a command line inside a machine, its output in `log`; the process id.
  int Start(const std::string& machine, const std::string& command, const std::string& log) const;
  std::string Namespace(const std::string& machine) const;
  void GiveBackMemory() const;
  std::string Credentials(const std::string& identity) const;

  const Nodes nodes_;
  std::string folder_;
  std::string suffix_;  // makes the names of this test's namespaces unique
  std::string bin_;
  int coordinator_pid_ = 0;
  bool cut_ = false;
  std::map<std::string, int> agent_pids_;
};

}  // namespace espalier::cluster
