#include "tests/cluster/cluster.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "common/base/clock.h"
#include "common/base/shared_segment.h"

namespace espalier::cluster {

void Must(const std::string& command) {
  const CommandResult result = Shell(command);
  if (result.exit_code != 0) {
    ADD_FAILURE() << command << "\nexit " << result.exit_code << "\n" << result.output;
  }
}

CommandResult Shell(const std::string& command) {
  FILE* pipe = popen(("{ " + command + "\n} 2>&1").c_str(), "r");
  CommandResult result;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) result.output.append(buffer, n);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

bool Eventually(const std::function<bool()>& condition, double seconds) {
  Clock& clock = RealClock();
  const absl::Duration deadline = clock.Monotonic() + absl::Seconds(seconds);
  while (clock.Monotonic() < deadline) {
    if (condition()) return true;
    clock.Sleep(absl::Milliseconds(100));
  }
  return condition();
}

Cluster::Cluster(Nodes nodes) : nodes_(nodes), suffix_(std::to_string(getpid())) {
  const char* bin = std::getenv("ESPALIER_BIN");
  if (bin == nullptr) {
    ADD_FAILURE() << "ESPALIER_BIN must name the folder of the programs";
    return;
  }
  bin_ = bin;
  char folder[] = "/tmp/espalier-cluster-XXXXXX";
  folder_ = mkdtemp(folder);
  std::filesystem::create_directories(folder_ + "/.local/state");
  std::filesystem::create_symlink(folder_ + "/state", folder_ + "/.local/state/espalier");
  MakeNetwork();
  MakeCertificates();
  WriteFiles();
  Must(bin_ + "/espalier data prepare --output " + folder_ +
       "/data " ESPALIER_SOURCE_DIR "/coordinator " ESPALIER_SOURCE_DIR "/common");
  StartCoordinator();
  if (nodes_ != Nodes::kAgents) return;
  for (const char* machine : {"studio", "macbook"}) Join(machine);
}

Cluster::~Cluster() {
  for (const nlohmann::json& job : nlohmann::json::parse(Cli("-o json jobs").output, nullptr, false)
                                       .value("jobs", nlohmann::json::array())) {
    Cli("cancel " + job.value("id", ""));
  }
  // Whatever still lives in the namespaces goes with them.
  if (coordinator_pid_ > 0) kill(coordinator_pid_, SIGTERM);
  for (const auto& [machine, pid] : agent_pids_) kill(pid, SIGTERM);
  for (const char* machine : {"studio", "macbook"}) {
    Eventually([&] { return Shell("ip netns pids " + Namespace(machine)).output.empty(); }, 5);
    Shell("ip netns pids " + Namespace(machine) + " | xargs -r kill -9");
    Shell("ip netns del " + Namespace(machine));
  }
  if (coordinator_pid_ > 0) waitpid(coordinator_pid_, nullptr, 0);
  for (const auto& [machine, pid] : agent_pids_) waitpid(pid, nullptr, 0);
  GiveBackMemory();
  if (!testing::Test::HasFailure()) std::filesystem::remove_all(folder_);
}

// That nobody was left to give back.
void Cluster::GiveBackMemory() const {
  std::error_code gone;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_, gone)) {
    const std::filesystem::path file = entry.path();
    if (file.parent_path().filename() != "warm") continue;
    RemoveSegment(file.parent_path(), file.filename());
  }
}

std::string Cluster::Namespace(const std::string& machine) const {
  return "esp-" + machine + "-" + suffix_;
}

void Cluster::MakeNetwork() const {
  const std::string studio = Namespace("studio"), macbook = Namespace("macbook");
  Must("ip netns add " + studio + " && ip netns add " + macbook);
  Must("ip link add v0 netns " + studio + " type veth peer name v1 netns " + macbook);
  Must("ip -n " + studio + " addr add " + kStudioAddress + "/24 dev v0");
  Must("ip -n " + macbook + " addr add " + kMacbookAddress + "/24 dev v1");
  for (const std::string& space : {studio, macbook}) Must("ip -n " + space + " link set lo up");
  for (const std::string& end : {studio + " link set v0 up", macbook + " link set v1 up"}) {
    Must("ip -n " + end);
  }
}

// As macOS and most of Linux do, the machine takes the address from what has no cable.
void Cluster::CutCable() {
  cut_ = true;
  Must("ip -n " + Namespace("studio") + " link set v0 down");
  Must("ip -n " + Namespace("studio") + " addr flush dev v0");
}

void Cluster::RestoreCable() {
  Must("ip -n " + Namespace("studio") + " addr add " + kStudioAddress + "/24 dev v0");
  Must("ip -n " + Namespace("studio") + " link set v0 up");
  Must("ip -n " + Namespace("macbook") + " link set v1 up");
  cut_ = false;
}

CommandResult Cluster::On(const std::string& machine, const std::string& command) const {
  return Shell("ip netns exec " + Namespace(machine) + " " + command);
}

std::string Cluster::Credentials(const std::string& identity) const {
  const std::string base = folder_ + "/pki/";
  return " --tls-ca " + base + "ca.crt --tls-cert " + base + identity + ".crt --tls-key " + base +
         identity + ".key ";
}

CommandResult Cluster::Cli(const std::string& arguments, const std::string& identity) const {
  if (cut_) return Shell(bin_ + "/espalier --coordinator " + folder_ + "/state " + arguments);
  return On("studio",
            bin_ + "/espalier --coordinator " + kCoordinator + Credentials(identity) + arguments);
}

int Cluster::Start(const std::string& machine, const std::string& command,
                   const std::string& log) const {
  const std::string space = Namespace(machine);
  const int pid = fork();
  if (pid != 0) return pid;
  if (freopen(log.c_str(), "a", stdout) == nullptr || dup2(1, 2) < 0) _exit(126);
  execlp("ip", "ip", "netns", "exec", space.c_str(), "bash", "-c", command.c_str(), nullptr);
  _exit(127);
}

void Cluster::StartCoordinator() {
  const std::string log = folder_ + "/espalierd.log";
  coordinator_pid_ =
      Start("studio", "exec " + bin_ + "/espalierd --cluster " + folder_ + "/cluster.yaml", log);
  EXPECT_TRUE(Eventually([&] { return Cli("jobs").exit_code == 0; }, 20))
      << Cli("jobs").output << Shell("cat " + log).output;
}

void Cluster::KillCoordinator() {
  kill(coordinator_pid_, SIGKILL);
  waitpid(coordinator_pid_, nullptr, 0);
  coordinator_pid_ = 0;
}

std::string Cluster::Submit(const std::vector<std::string>& settings,
                            const std::string& file) const {
  std::string arguments = "-o json submit " + folder_ + "/" + file;
  for (const std::string& setting : settings) arguments += " --set " + setting;
  const CommandResult result = Cli(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return nlohmann::json::parse(result.output, nullptr, false).value("job_id", "");
}

nlohmann::json Cluster::Job(const std::string& id) const {
  const nlohmann::json answer =
      nlohmann::json::parse(Cli("-o json job " + id).output, nullptr, false);
  return answer.is_object() && answer.contains("status") ? answer["status"]
                                                         : nlohmann::json::object();
}

std::string Cluster::StateOf(const std::string& id) const { return Job(id).value("state", ""); }

int64_t Cluster::StepOf(const std::string& id) const {
  const nlohmann::json job = Job(id);
  if (!job.contains("step")) return 0;
  return job["step"].is_string() ? std::stoll(job["step"].get<std::string>())
                                 : job["step"].get<int64_t>();
}

std::vector<RankInfo> Cluster::Ranks(const std::string& id) const {
  std::vector<RankInfo> ranks;
  for (const nlohmann::json& rank : Job(id).value("ranks", nlohmann::json::array())) {
    const nlohmann::json& pid = rank.value("pid", nlohmann::json(0));
    ranks.push_back({.rank = rank.value("rank", 0),
                     .node = rank.value("node", ""),
                     .pid = pid.is_string() ? std::stoi(pid.get<std::string>()) : pid.get<int>()});
  }
  return ranks;
}

std::vector<int> Cluster::Pids(const std::string& id) const {
  std::vector<int> pids;
  for (const RankInfo& rank : Ranks(id)) pids.push_back(rank.pid);
  return pids;
}

std::string Cluster::RunningJob(const std::vector<std::string>& settings) const {
  std::string job = Submit(settings);
  WaitForState(job, "RUNNING");
  WaitForStepAfter(job, 5);
  return job;
}

bool Cluster::WaitForState(const std::string& id, const std::string& state, double seconds) const {
  const bool reached = Eventually([&] { return StateOf(id) == state; }, seconds);
  EXPECT_TRUE(reached) << "never " << state << ":\n" << Story(id);
  return reached;
}

bool Cluster::WaitForStepAfter(const std::string& id, int64_t step, double seconds) const {
  const bool reached = Eventually([&] { return StepOf(id) > step; }, seconds);
  EXPECT_TRUE(reached) << "no step after " << step << ":\n" << Story(id);
  return reached;
}

std::string Cluster::Story(const std::string& id) const {
  return Cli("job " + id).output + Cli("events " + id).output +
         Shell("tail -n 40 " + folder_ + "/state/jobs/" + id + "/logs/* " + folder_ +
               "/espalierd.log")
             .output;
}

}  // namespace espalier::cluster
