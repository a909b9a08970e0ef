#include "coordinator/launcher/mpirun.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/launcher/network.h"
#include "tests/coordinator/scratch_folder.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Commands : public ::testing::Test {
 protected:
  Commands() { cluster_.mutable_launcher()->set_mpirun("mpirun"); }

  void AddNode(const std::string& name, const std::string& address) {
    v1::NodeSpec& node = *cluster_.add_nodes();
    node.set_name(name);
    node.set_address(address);
    request_.nodes.emplace_back(name);
  }
  std::string Command() {
    absl::StatusOr<std::vector<std::string>> words =
        MpirunCommand({.cluster = &cluster_,
                       .coordinator = "10.0.0.1:7070",
                       .default_worker = "/opt/espalier-worker",
                       .network = network_,
                       .version = version_,
                       .agents = SharedAgents(cluster_, request_.nodes, attached_),
                       .agent_program = agent_program_},
                      request_);
    return words.ok() ? absl::StrJoin(*words, " ") : words.status().ToString();
  }

  std::string network_ = "10.0.0.0/24";
  OpenMpiVersion version_ = OpenMpiVersion::kFour;
  std::set<NodeName> attached_;
  std::string agent_program_ = "/opt/espalier-agent";
  v1::ClusterSpec cluster_;
  LaunchRequest request_ = {.key = {JobId("job-1"), Generation(3)}};
};

TEST_F(Commands, EachRankHasItsNodeInTheOrderGiven) {
  AddNode("studio", "10.0.0.1");
  AddNode("macbook", "10.0.0.2");
  const std::string command = Command();
  EXPECT_THAT(command, ::testing::StartsWith("mpirun "));
  EXPECT_THAT(command,
              ::testing::EndsWith(
                  "--map-by seq -np 2 --host 10.0.0.1,10.0.0.2 /opt/espalier-worker --coordinator "
                  "10.0.0.1:7070 --job-id job-1 --generation 3 --rank-count 2 --node studio "
                  "--node macbook"));
}

// mpirun of Open MPI 5.0 as distributions build it dies of more than one application context.
TEST_F(Commands, OneContextStartsAllRanksAndEachIsToldItsOwn) {
  AddNode("a", "10.0.0.1");
  AddNode("b", "10.0.0.2");
  cluster_.mutable_nodes(1)->set_threads(6);
  cluster_.mutable_nodes(0)->set_device("mps");
  cluster_.mutable_nodes(1)->mutable_tls()->set_ca("ca.pem");
  cluster_.mutable_nodes(1)->mutable_tls()->set_certificate("b.pem");
  cluster_.mutable_nodes(1)->mutable_tls()->set_key("b.key");
  version_ = OpenMpiVersion::kFive;
  EXPECT_THAT(Command(), AllOf(Not(HasSubstr(" : ")), HasSubstr("--threads 0 --threads 6"),
                               HasSubstr("--device mps --device auto"),
                               HasSubstr("--tls-ca  --tls-ca ca.pem --tls-cert  --tls-cert b.pem "
                                         "--tls-key  --tls-key b.key")));
}

TEST_F(Commands, NodesWithAgentsAreReachedThroughThemByNamesThatMeanNothingToOthers) {
  AddNode("studio", "10.0.0.1");
  AddNode("mac.book", "10.0.0.2");
  attached_ = {NodeName("studio"), NodeName("mac.book")};
  EXPECT_THAT(Command(), AllOf(HasSubstr("--mca plm_rsh_agent /opt/espalier-agent exec --mca "
                                         "plm_rsh_no_tree_spawn 1 --mca if_base_do_not_resolve 1"),
                               HasSubstr(absl::StrCat("--host ", AgentHost(NodeName("studio")), ",",
                                                      AgentHost(NodeName("mac.book")), " ")),
                               HasSubstr("-studio,"), HasSubstr("-mac-book ")));
  version_ = OpenMpiVersion::kFive;
  EXPECT_THAT(Command(), AllOf(HasSubstr("--prtemca plm_ssh_agent /opt/espalier-agent exec "
                                         "--prtemca plm_ssh_no_tree_spawn 1"),
                               Not(HasSubstr("do_not_resolve"))));
}

TEST_F(Commands, WhereARankIsLostTheDaemonsOfOpenMpi4DoNotWaitForTheOthers) {
  AddNode("studio", "10.0.0.1");
  EXPECT_THAT(Command(), HasSubstr("--mca odls_base_sigkill_timeout 0"));
  version_ = OpenMpiVersion::kFive;
  EXPECT_THAT(Command(), Not(HasSubstr("odls")));
}

TEST_F(Commands, NodesWithAndWithoutAgentsRunOneJob) {
  AddNode("studio", "10.0.0.1");
  AddNode("macbook", "10.0.0.2");
  attached_ = {NodeName("macbook")};
  EXPECT_THAT(
      Command(),
      AllOf(HasSubstr(absl::StrCat("--host 10.0.0.1,", AgentHost(NodeName("macbook")))),
            HasSubstr("plm_rsh_agent /opt/espalier-agent exec"), Not(HasSubstr("do_not_resolve"))));
}

// Else each rank would take the whole machine for itself.
TEST_F(Commands, NodesOfOneAddressShareOneAgent) {
  AddNode("left", "127.0.0.1");
  AddNode("right", "127.0.0.1");
  attached_ = {NodeName("left"), NodeName("right")};
  const std::string host = AgentHost(NodeName("left"));
  EXPECT_THAT(Command(), HasSubstr(absl::StrCat("--host ", host, ",", host, " ")));
}

TEST_F(Commands, NamesThatDifferInADotOnlyAreTwoHosts) {
  EXPECT_NE(AgentHost(NodeName("a.b")), AgentHost(NodeName("a-b")));
  EXPECT_THAT(AgentHost(NodeName("a.b")), Not(HasSubstr(".")));
}

TEST_F(Commands, AnAgentAtAPathWithASpaceIsRefused) {
  AddNode("studio", "10.0.0.1");
  attached_ = {NodeName("studio")};
  agent_program_ = "/opt/my programs/espalier-agent";
  EXPECT_THAT(Command(), AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("without any")));
}

TEST_F(Commands, ProgramsAtDifferentPlacesNeedOpenMpi4) {
  AddNode("a", "10.0.0.1");
  AddNode("b", "10.0.0.2");
  cluster_.mutable_nodes(1)->set_worker("/other/worker");
  EXPECT_THAT(Command(),
              AllOf(HasSubstr("-np 1 --host 10.0.0.1:1 /opt/espalier-worker --coordinator"),
                    HasSubstr("--node a : -np 1 --host 10.0.0.2:1 /other/worker --coordinator")));
  version_ = OpenMpiVersion::kFive;
  EXPECT_THAT(Command(), AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("different places")));
}

TEST_F(Commands, OpenMpi5IsNotToldOfLoopback) {
  AddNode("left", "127.0.0.1");
  network_ = "127.0.0.0/8";
  EXPECT_THAT(Command(), HasSubstr("oob_tcp_if_include 127.0.0.0/8"));
  version_ = OpenMpiVersion::kFive;
  EXPECT_THAT(Command(), AllOf(HasSubstr("btl_tcp_if_include 127.0.0.0/8"),
                               Not(HasSubstr("prte_if_include"))));
}

TEST_F(Commands, TheTransportIsTheJobs) {
  AddNode("a", "10.0.0.1");
  request_.spec.mutable_parallel()->set_links(3);
  request_.spec.mutable_parallel()->set_socket_buffer_bytes(1000);
  EXPECT_THAT(Command(), AllOf(HasSubstr("btl_tcp_links 3"), HasSubstr("btl_tcp_sndbuf 1000"),
                               HasSubstr("btl_tcp_if_include 10.0.0.0/24")));
}

TEST_F(Commands, NodesOnLoopbackAreThisMachineWithASlotEach) {
  AddNode("left", "127.0.0.1");
  AddNode("right", "127.0.0.2");
  EXPECT_THAT(Command(),
              AllOf(HasSubstr("--host 127.0.0.1,127.0.0.1 "), Not(HasSubstr("127.0.0.2"))));
}

TEST_F(Commands, ANodeMayHaveItsOwnWorkerThreadsDeviceAndIdentity) {
  AddNode("a", "10.0.0.1");
  v1::NodeSpec& node = *cluster_.mutable_nodes(0);
  node.set_worker("/other/worker");
  node.set_threads(6);
  node.set_device("mps");
  node.mutable_tls()->set_ca("ca.pem");
  node.mutable_tls()->set_certificate("w.pem");
  node.mutable_tls()->set_key("w.key");
  EXPECT_THAT(Command(), AllOf(HasSubstr(" /other/worker "), HasSubstr("--threads 6"),
                               HasSubstr("--device mps"),
                               HasSubstr("--tls-ca ca.pem --tls-cert w.pem --tls-key w.key")));
}

TEST_F(Commands, TheJobsWishComesBeforeTheNodes) {
  AddNode("a", "10.0.0.1");
  cluster_.mutable_nodes(0)->set_threads(6);
  cluster_.mutable_nodes(0)->set_device("mps");
  request_.spec.mutable_launch()->set_threads(2);
  request_.spec.mutable_launch()->set_device("cpu");
  EXPECT_THAT(Command(), AllOf(HasSubstr("--threads 2"), HasSubstr("--device cpu")));
}

TEST_F(Commands, AutomaticThreadsAndDeviceAreLeftToTheWorker) {
  AddNode("a", "10.0.0.1");
  request_.spec.mutable_launch()->set_device("auto");
  EXPECT_THAT(Command(), AllOf(Not(HasSubstr("--threads")), Not(HasSubstr("--device"))));
}

TEST_F(Commands, ANodeThatLeftTheClusterFileIsNamed) {
  request_.nodes.emplace_back("gone");
  EXPECT_THAT(Command(), AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("'gone'")));
}

TEST_F(Commands, RemoteKillTouchesOnlyTheGeneration) {
  AddNode("a", "10.0.0.2");
  cluster_.mutable_launcher()->set_remote_shell("ssh -o BatchMode=yes");
  const std::vector<std::string> words =
      RemoteKillCommand(cluster_, cluster_.nodes(0), {JobId("job-1"), Generation(3)}, {11, 12});
  ASSERT_EQ(words.size(), 5u) << "the script is one word";
  EXPECT_EQ(words[0] + words[1] + words[2] + words[3], "ssh-oBatchMode=yes10.0.0.2");
  EXPECT_THAT(words[4], AllOf(HasSubstr("for p in 11 12;"),
                              HasSubstr("grep -q -e '--job-id job-1 --generation 3 '")));
}

// A process that waits to be ended, with the arguments of a worker of generation 3.
pid_t StartWorkerLike() {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[0], STDIN_FILENO);
    close(ends[1]);
    execl("/bin/sh", "sh", "-c", "read line", "worker", "--job-id", "job-1", "--generation", "3",
          "--rank", static_cast<char*>(nullptr));
    _exit(127);
  }
  close(ends[0]);
  return child;  // the other end stays open until the test ends
}

int RunKill(const v1::ClusterSpec& cluster, pid_t pid) {
  const std::string script =
      RemoteKillCommand(cluster, cluster.nodes(0), {JobId("job-1"), Generation(3)}, {pid}).back();
  const int status = std::system(script.c_str());
  return WEXITSTATUS(status);
}

TEST_F(Commands, ARemoteKillSucceedsWhenNoneIsLeft) {
  AddNode("a", "10.0.0.2");
  const pid_t child = StartWorkerLike();
  EXPECT_EQ(RunKill(cluster_, child), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_EQ(RunKill(cluster_, child), 0) << "none is left";
}

// Without ps nothing can be seen, so nothing is confirmed.
TEST_F(Commands, ARemoteKillThatSeesNoProcessesFails) {
  AddNode("a", "10.0.0.2");
  const std::string path = getenv("PATH");
  setenv("PATH", "/nonexistent", 1);
  const int code = RunKill(cluster_, getpid());
  setenv("PATH", path.c_str(), 1);
  EXPECT_NE(code, 0);
}

struct NetworkCase {
  const char* name;
  std::vector<std::string> addresses;
  const char* expected;
};

class Joining : public ::testing::TestWithParam<NetworkCase> {};

INSTANTIATE_TEST_SUITE_P(
    All, Joining,
    ::testing::Values(NetworkCase{"Loopback", {"127.0.0.1", "127.0.0.2"}, "127.0.0.0/8"},
                      NetworkCase{"TheSmallest", {"10.77.0.1", "10.77.0.9"}, "10.77.0.0/24"},
                      NetworkCase{"TheWiderWhenNeeded", {"10.77.0.1", "10.9.0.2"}, "10.0.0.0/8"},
                      NetworkCase{"None", {"192.168.1.2"}, "launcher.network"},
                      NetworkCase{"Mixed", {"10.77.0.1", "127.0.0.1"}, "cannot be reached"},
                      NetworkCase{"NoAddress", {"studio.local"}, "not an IPv4 address"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(Joining, IsFoundByAddressOrRefusedWithAdvice) {
  const std::vector<LocalNetwork> networks = {{"127.0.0.1", 8}, {"10.77.0.1", 24}, {"10.1.1.1", 8}};
  absl::StatusOr<std::string> network = JoiningNetwork(GetParam().addresses, networks);
  EXPECT_THAT(network.ok() ? *network : network.status().ToString(),
              HasSubstr(GetParam().expected));
}

TEST(LocalNetworks, HoldLoopback) {
  EXPECT_TRUE(IsOwnAddress("127.0.0.1", LocalNetworks()));
  EXPECT_FALSE(IsOwnAddress("203.0.113.9", LocalNetworks()));
}

absl::StatusOr<OpenMpiVersion> Probe(const ScratchFolder& folder, const std::string& script) {
  return ProbeOpenMpi({.mpirun = folder.WriteScript("mpirun", "#!/bin/sh\n" + script),
                       .scratch = folder.path("scratch"),
                       .limit = absl::Seconds(1)},
                      RealClock());
}

TEST(ProbeOpenMpi, KnowsAllVersions) {
  ScratchFolder folder;
  EXPECT_EQ(*Probe(folder, "echo 'mpirun (Open MPI) 4.1.4'"), OpenMpiVersion::kFour);
  EXPECT_EQ(*Probe(folder, "echo 'mpirun (Open MPI) 5.0.9'"), OpenMpiVersion::kFive);
  EXPECT_EQ(*Probe(folder, "echo 'mpirun (Open MPI) 6.0.0rc2'"), OpenMpiVersion::kSix);
  EXPECT_FALSE(std::filesystem::exists(folder.path("scratch")));
}

TEST(ProbeOpenMpi, NamesWhatItFoundInstead) {
  ScratchFolder folder;
  const absl::Status status = Probe(folder, "echo 'HYDRA build details'").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("HYDRA"));
}

TEST(ProbeOpenMpi, DoesNotWaitForEver) {
  ScratchFolder folder;
  EXPECT_EQ(Probe(folder, "sleep 1000").status().code(), absl::StatusCode::kDeadlineExceeded);
}

// As macOS does with a program that is started for the first time.
TEST(RememberingProbe, AsksAgainWhereThereWasNoAnswerInTime) {
  ScratchFolder folder;
  const std::string asked = folder.path("asked");
  const std::string answer = "echo 'mpirun (Open MPI) 5.0.9'";
  const std::string script = absl::StrCat("if [ -e ", asked, " ]; then ", answer, "; else touch ",
                                          asked, "; sleep 1000; fi");
  const auto version =
      RememberingProbe({.mpirun = folder.WriteScript("mpirun", "#!/bin/sh\n" + script),
                        .scratch = folder.path("scratch"),
                        .limit = absl::Seconds(1),
                        .later_limit = absl::Seconds(20)},
                       RealClock());
  EXPECT_TRUE(std::filesystem::exists(asked)) << "it asks at once";
  EXPECT_EQ(*version(), OpenMpiVersion::kFive);
  folder.WriteScript("mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'");
  EXPECT_EQ(*version(), OpenMpiVersion::kFive) << "an answer is remembered";
}

TEST(ProbeOpenMpi, TheInstalledOneIsKnown) {
  ScratchFolder folder;
  EXPECT_TRUE(
      ProbeOpenMpi({.mpirun = "mpirun", .scratch = folder.path("scratch")}, RealClock()).ok());
}

// All ranks go at once then, and whichever is heard of first is not the one that failed.
TEST(LastWords, OfALostDaemonNameTheRankThatWasThere) {
  const std::string oak = AgentHost(NodeName("oak")), ash = AgentHost(NodeName("ash"));
  const std::string text = absl::StrCat(
      "ORTE has lost communication with a remote daemon. HNP daemon : [[24583,0],0] on node vm ",
      "Remote daemon: [[24583,0],3] on node ", ash);
  EXPECT_EQ(RankOfLostDaemon(text, {oak, ash}), Rank(1));
  EXPECT_EQ(RankOfLostDaemon(absl::StrCat(text, " This is usually due to"), {ash, oak}), Rank(0));
  EXPECT_EQ(RankOfLostDaemon(text, {oak, ash, ash}), std::nullopt) << "two of one machine";
  EXPECT_EQ(RankOfLostDaemon(text, {oak, ""}), std::nullopt);
  EXPECT_EQ(RankOfLostDaemon("Remote daemon: [[1,0],3] on node ", {oak, ""}), std::nullopt)
      << "cut off";
  EXPECT_EQ(RankOfLostDaemon(absl::StrCat("rank 1 on node ", ash), {oak, ash}), std::nullopt);
}

}  // namespace
}  // namespace espalier
