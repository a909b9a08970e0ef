// The launcher against real processes: a script plays mpirun.
#include "coordinator/launcher/mpirun_launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "tests/coordinator/launcher/launching.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FakeAgents : public NodeAgents {
 public:
  bool Attached(const NodeName& node) const override { return attached.count(node) > 0; }
  std::string Admit(const GenerationKey&) override { return "a-secret"; }
  Ending End(const GenerationKey&, const NodeName& node) override {
    asked.insert(node);
    return ending;
  }
  void Forget(const GenerationKey& key) override { forgotten.insert(key); }

  std::set<NodeName> attached = {NodeName("a")};
  std::set<NodeName> asked;
  std::set<GenerationKey> forgotten;
  Ending ending = Ending::kUnderWay;
};

TEST_F(Launching, APreparedGenerationDoesNothingUntilReleased) {
  auto launcher = Make("echo visible");
  ASSERT_TRUE(launcher->Prepare(Request()).ok());
  EXPECT_TRUE(launcher->Poll(RealClock().Monotonic()).empty());
  EXPECT_EQ(GenerationLog(), "");
  launcher->Release(kKey);
  EXPECT_EQ(AwaitEnd(*launcher), "mpirun exited with status 0");
  EXPECT_EQ(GenerationLog(), "visible\n");
}

// Its address may be gone with the cable that joined it to others.
TEST_F(Launching, ThisMachineAloneNeedsNoNetworkWhateverJoinsItToOthers) {
  const std::vector<LocalNetwork> networks = LocalNetworks();
  ASSERT_FALSE(networks.empty());
  cluster_.mutable_nodes(0)->set_address(networks.back().address);
  cluster_.mutable_launcher()->set_network("203.0.113.0/24");
  auto launcher = Make("echo $@");
  Start(*launcher);
  AwaitEnd(*launcher);
  EXPECT_THAT(GenerationLog(),
              AllOf(HasSubstr("btl_tcp_if_include 127.0.0.0/8"), HasSubstr("--host 127.0.0.1 ")));
}

TEST_F(Launching, TheReasonOfAFailureQuotesTheLog) {
  auto launcher = Make("echo '[rank 0] no such data'; exit 7");
  Start(*launcher);
  EXPECT_EQ(AwaitEnd(*launcher), "mpirun exited with status 7: [rank 0] no such data");
}

TEST_F(Launching, AnEndWithTheStatusOfBadInputIsToldApartAndNamesItsRank) {
  const std::string named = "echo '[rank 1] error: no data'; echo 'Process name: [[57914,1],1]'; ";
  auto launcher = Make(named + "exit 2");
  Start(*launcher);
  EXPECT_EQ(AwaitEnd(*launcher), "mpirun exited with status 2: Process name: [[57914,1],1]");
  EXPECT_TRUE(ended_.bad_input);
  EXPECT_EQ(ended_.culprit, Rank(1));
  launcher = Make(named + "exit 3");
  Start(*launcher);
  AwaitEnd(*launcher);
  EXPECT_FALSE(ended_.bad_input);
  EXPECT_EQ(ended_.culprit, std::nullopt) << "it may have followed another";
}

TEST_F(Launching, TemporaryFilesOfAGenerationHaveAFolderOfTheirOwnThatGoesWithIt) {
  auto launcher = Make("touch $TMPDIR/left; echo $TMPDIR; kill -9 $$");
  Start(*launcher);
  AwaitEnd(*launcher);
  EXPECT_EQ(GenerationLog(), folder_.path("jobs/job-1/tmp/gen-0001\n"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("jobs/job-1/tmp/gen-0001")));
}

TEST_F(Launching, EndIsPoliteFirst) {
  auto launcher = Make("trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.01; done");
  Start(*launcher);
  ASSERT_TRUE(WaitUntil([&] { return GenerationLog() == "up\n"; }));
  launcher->End(kKey);
  EXPECT_EQ(AwaitEnd(*launcher), "mpirun exited with status 0");
  EXPECT_THAT(GenerationLog(), HasSubstr("asked"));
}

TEST_F(Launching, EndByForceReachesAStoppedProcessAndItsDescendants) {
  auto launcher = Make("trap '' TERM; sleep 1000 & echo up; kill -STOP $$; wait");
  const ProcessIdentity leader = Start(*launcher);
  ASSERT_TRUE(WaitUntil([&] { return GenerationLog() == "up\n"; }));
  launcher->End(kKey);
  launcher->End(kKey);
  EXPECT_THAT(AwaitEnd(*launcher), HasSubstr("killed by signal 9"));
  EXPECT_EQ(SignalSession(leader, 0), 0);
}

TEST_F(Launching, OrphansOfADeadMpirunAreEnded) {
  auto launcher = Make("sleep 1000 & echo up; wait");
  const ProcessIdentity leader = Start(*launcher);
  ASSERT_TRUE(WaitUntil([&] { return GenerationLog() == "up\n"; }));
  kill(static_cast<pid_t>(leader.pid), SIGKILL);
  EXPECT_THAT(AwaitEnd(*launcher), HasSubstr("killed by signal 9"));
  EXPECT_EQ(SignalSession(leader, 0), 0);
}

TEST_F(Launching, EndBeforeReleaseStartsNothing) {
  auto launcher = Make("echo visible");
  ASSERT_TRUE(launcher->Prepare(Request()).ok());
  launcher->End(kKey);
  AwaitEnd(*launcher);
  EXPECT_EQ(GenerationLog(), "");
}

TEST_F(Launching, StrayWorkersOfOtherNodesAreEndedThroughTheRemoteShell) {
  cluster_.mutable_nodes(0)->set_address("203.0.113.9");  // TEST-NET-3: never ours
  cluster_.mutable_launcher()->set_network("203.0.113.0/24");
  auto launcher = Make("exit 1");
  Start(*launcher);
  launcher->NoteWorker(kKey, {NodeName("a"), 4711});
  launcher->NoteWorker(kKey, {NodeName("a"), 4711});
  launcher->NoteWorker(kKey, {NodeName("unknown"), 4712});
  AwaitEnd(*launcher);
  EXPECT_THAT(
      folder_.Read("shell.log"),
      AllOf(HasSubstr("203.0.113.9 "), HasSubstr("for p in 4711;"),
            HasSubstr("--job-id job-1 --generation 1 "), ::testing::Not(HasSubstr("4712"))));
  EXPECT_TRUE(unconfirmed_.empty());
}

TEST_F(Launching, WhereTheRemoteShellFailsTheEndIsReportedAsUnconfirmed) {
  cluster_.mutable_nodes(0)->set_address("203.0.113.9");
  cluster_.mutable_launcher()->set_network("203.0.113.0/24");
  cluster_.mutable_launcher()->set_remote_shell(
      folder_.WriteScript("unreachable", "#!/bin/sh\nexit 255"));
  auto launcher = Make("exit 1");
  Start(*launcher);
  launcher->NoteWorker(kKey, {NodeName("a"), 4711});
  AwaitEnd(*launcher);
  EXPECT_EQ(unconfirmed_, std::vector<NodeName>{NodeName("a")});
}

// Who has not attached again after a restart cannot be ended by its number.
TEST_F(Launching, AdoptedWorkersOfOtherNodesThatNobodyKnowsAreReportedAsUnconfirmed) {
  cluster_.mutable_nodes(0)->set_address("203.0.113.9");
  auto launcher = Make("exit 0");
  launcher->Adopt(kKey, {getpid(), "another-boot/1"}, {.nodes = {NodeName("a")}});
  AwaitEnd(*launcher);
  EXPECT_EQ(unconfirmed_, std::vector<NodeName>{NodeName("a")});
}

TEST_F(Launching, ARemoteShellThatHangsHasItsTimeAndIsThenEnded) {
  cluster_.mutable_nodes(0)->set_address("203.0.113.9");
  cluster_.mutable_launcher()->set_network("203.0.113.0/24");
  cluster_.mutable_launcher()->set_remote_shell(folder_.WriteScript(
      "hang", "#!/bin/sh\necho $$ > " + folder_.path("shell.pid") + "\nexec sleep 1000\n"));
  auto launcher = Make("exit 1");
  Start(*launcher);
  launcher->NoteWorker(kKey, {NodeName("a"), 4711});
  const absl::Duration start = absl::Hours(1);
  int32_t shell = 0;
  ASSERT_TRUE(WaitUntil([&] {
    EXPECT_TRUE(launcher->Poll(start).empty()) << "the shell was not waited for";
    return absl::SimpleAtoi(folder_.Read("shell.pid"), &shell);
  }));
  const absl::Duration limit = MpirunLauncherOptions{}.remote_limit;
  EXPECT_TRUE(launcher->Poll(start + limit - absl::Seconds(1)).empty()) << "it has time left";
  EXPECT_EQ(kill(shell, 0), 0);
  std::vector<LaunchEnded> ended;
  EXPECT_TRUE(WaitUntil([&] { return !(ended = launcher->Poll(start + limit)).empty(); }));
  EXPECT_THAT(ended[0].unconfirmed, testing::ElementsAre(NodeName("a")));
  EXPECT_NE(kill(shell, 0), 0) << "it is left behind";
}

TEST_F(Launching, TheSecretOfAGenerationIsInNoCommandLine) {
  FakeAgents agents;
  agents_ = &agents;
  auto launcher = Make("echo \"$* / $ESPALIER_EXEC_SECRET $ESPALIER_EXEC_NODES\"");
  Start(*launcher);
  ASSERT_TRUE(WaitUntil([&] { return GenerationLog() != ""; }));
  EXPECT_THAT(GenerationLog(), AllOf(HasSubstr(" / a-secret " + AgentHost(NodeName("a")) + "=a"),
                                     HasSubstr("/opt/espalier-agent exec")));
  const std::string log = GenerationLog();
  EXPECT_EQ(log.substr(0, log.find(" / ")).find("a-secret"), std::string::npos);
  agents.ending = NodeAgents::Ending::kGone;
  AwaitEnd(*launcher);
}

// Its mpirun would crash (prte_check_host_is_local).
TEST_F(Launching, OpenMpiFiveStartsRanksItselfWhereNothingButLoopbackIsUp) {
  FakeAgents agents;
  agents_ = &agents;
  version_ = OpenMpiVersion::kFive;
  cluster_.mutable_nodes(0)->set_address("10.77.0.1");
  cluster_.mutable_nodes(0)->mutable_tls()->set_ca("/ca.crt");
  std::vector<LocalNetwork> up = {{"127.0.0.1", 8}, {"10.77.0.1", 24}};
  networks_ = [&up] { return up; };
  auto launcher = Make("echo $@; exit 1");
  launcher->SetCoordinator("10.77.0.1:7070");
  up.pop_back();  // the cable is pulled
  Start(*launcher);
  launcher->NoteWorker(kKey, {NodeName("a"), 4711});
  AwaitEnd(*launcher);
  EXPECT_TRUE(unconfirmed_.empty()) << "they were of mpirun's session";
  EXPECT_THAT(GenerationLog(),
              AllOf(HasSubstr("--host 127.0.0.1 "), Not(HasSubstr("espalier-agent")),
                    HasSubstr("--coordinator " + folder_.root()), Not(HasSubstr("--tls-ca"))));
  EXPECT_TRUE(agents.asked.empty());
}

TEST_F(Launching, AgentsAreAskedWhereAnotherNetworkIsUpAndByOpenMpiFour) {
  FakeAgents agents;
  agents.ending = NodeAgents::Ending::kGone;
  agents_ = &agents;
  std::vector<LocalNetwork> up = {{"127.0.0.1", 8}};
  networks_ = [&up] { return up; };
  auto launcher = Make("echo $@");
  Start(*launcher);
  AwaitEnd(*launcher);
  EXPECT_THAT(GenerationLog(), HasSubstr("--host " + AgentHost(NodeName("a"))));
  version_ = OpenMpiVersion::kFive;
  up.push_back({"192.168.7.2", 24});
  launcher = Make("echo $@");
  Start(*launcher);
  AwaitEnd(*launcher);
  EXPECT_THAT(GenerationLog(), HasSubstr("--host " + AgentHost(NodeName("a"))));
}

// Its mpirun takes a daemon of its own host's name for itself, and waits for ever.
TEST_F(Launching, OpenMpiSixStartsRanksOfItsOwnMachineItself) {
  FakeAgents agents;
  agents.ending = NodeAgents::Ending::kGone;
  agents_ = &agents;
  version_ = OpenMpiVersion::kSix;
  networks_ = [] { return std::vector<LocalNetwork>{{"127.0.0.1", 8}, {"10.77.0.1", 24}}; };
  auto launcher = Make("echo $@");
  Start(*launcher);
  AwaitEnd(*launcher);
  EXPECT_THAT(GenerationLog(),
              AllOf(HasSubstr("--host 127.0.0.1 "), Not(HasSubstr("espalier-agent"))));
  cluster_.mutable_nodes(0)->set_address("10.77.0.1");
  launcher = Make("echo $@");
  Start(*launcher);
  AwaitEnd(*launcher);
  EXPECT_THAT(GenerationLog(),
              AllOf(HasSubstr("--host 127.0.0.1 "), Not(HasSubstr("espalier-agent"))));
  EXPECT_TRUE(agents.asked.empty());
  cluster_.mutable_nodes(0)->set_address("10.77.0.2");  // another machine
  launcher = Make("echo $@");
  Start(*launcher);
  AwaitEnd(*launcher);
  EXPECT_THAT(GenerationLog(), HasSubstr("--host " + AgentHost(NodeName("a"))));
}

TEST_F(Launching, AnEndIsReportedWhenTheAgentsHaveConfirmedIt) {
  FakeAgents agents;
  agents_ = &agents;
  auto launcher = Make("exit 0");
  Start(*launcher);
  ASSERT_TRUE(WaitUntil([&] {
    EXPECT_TRUE(launcher->Poll(RealClock().Monotonic()).empty());
    return agents.asked.count(NodeName("a")) > 0;
  }));
  agents.ending = NodeAgents::Ending::kGone;
  AwaitEnd(*launcher);
  EXPECT_EQ(agents.forgotten.count(kKey), 1u);
}

TEST_F(Launching, WhereAnAgentIsAwayTheEndIsReportedAsUnconfirmed) {
  FakeAgents agents;
  agents_ = &agents;
  agents.ending = NodeAgents::Ending::kAway;
  auto launcher = Make("exit 1");
  Start(*launcher);
  absl::Duration now;
  ASSERT_TRUE(WaitUntil([&] {
    EXPECT_TRUE(launcher->Poll(now).empty());
    return !agents.asked.empty();
  }));
  const absl::Duration limit = MpirunLauncherOptions{}.remote_limit;
  EXPECT_TRUE(launcher->Poll(now + limit - absl::Milliseconds(1)).empty()) << "it may come back";
  const std::vector<LaunchEnded> ended = launcher->Poll(now + limit);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_THAT(ended[0].unconfirmed, testing::ElementsAre(NodeName("a")));
}

TEST_F(Launching, AnAgentThatIsThereAndNeverConfirmsAnEndIsGivenUp) {
  FakeAgents agents;
  agents_ = &agents;
  auto launcher = Make("exit 1");
  Start(*launcher);
  absl::Duration now;
  ASSERT_TRUE(WaitUntil([&] {
    EXPECT_TRUE(launcher->Poll(now).empty());
    return !agents.asked.empty();
  }));
  EXPECT_TRUE(launcher->Poll(now + kConfirmLimit - absl::Seconds(1)).empty()) << "it has time left";
  const std::vector<LaunchEnded> ended = launcher->Poll(now + kConfirmLimit);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_THAT(ended[0].reason, HasSubstr("agent of node a has not confirmed the end within 1m"));
  EXPECT_THAT(ended[0].unconfirmed, testing::ElementsAre(NodeName("a")));
}

// In the kernel, waiting for a disk or a device that does not answer.
TEST_F(Launching, AProcessHereThatDoesNotEndIsGivenUpAndReportedAsUnconfirmed) {
  int asked = 0;
  signal_session_ = [&](const ProcessIdentity&, int) { return ++asked, 2; };
  auto launcher = Make("exit 1");
  Start(*launcher);
  absl::Duration now;
  ASSERT_TRUE(WaitUntil([&] {
    EXPECT_TRUE(launcher->Poll(now).empty());
    return asked > 0;
  }));
  EXPECT_TRUE(launcher->Poll(now + kConfirmLimit - absl::Seconds(1)).empty()) << "it has time left";
  const std::vector<LaunchEnded> ended = launcher->Poll(now + kConfirmLimit);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_THAT(ended[0].reason,
              HasSubstr("2 processes of it on this machine did not end within 1m"));
  EXPECT_THAT(ended[0].unconfirmed, testing::ElementsAre(NodeName("a")));
}

TEST_F(Launching, AnAdoptedGenerationIsEndedOnTheNodesThatHaveAgents) {
  FakeAgents agents;
  agents_ = &agents;
  auto launcher = Make("exit 0");
  launcher->Adopt(kKey, kDead, {{NodeName("a")}, {NodeName("a")}});
  EXPECT_TRUE(launcher->Poll(RealClock().Monotonic()).empty());
  EXPECT_EQ(agents.asked.count(NodeName("a")), 1u);
  agents.ending = NodeAgents::Ending::kGone;
  AwaitEnd(*launcher);
}

TEST_F(Launching, AnAdoptedGenerationIsNotOverBeforeAgentsThatComeBackLaterHaveSaidSo) {
  FakeAgents agents;
  agents_ = &agents;
  agents.attached.clear();
  agents.ending = NodeAgents::Ending::kAway;
  auto launcher = Make("exit 0");
  launcher->Adopt(kKey, kDead, {{NodeName("a")}, {NodeName("a")}});
  const absl::Duration start = absl::Hours(1);
  EXPECT_TRUE(launcher->Poll(start).empty());
  EXPECT_TRUE(launcher->Poll(start + absl::Milliseconds(500)).empty());
  agents.attached.insert(NodeName("a"));
  agents.ending = NodeAgents::Ending::kUnderWay;
  EXPECT_TRUE(launcher->Poll(start + absl::Seconds(1)).empty());
  agents.ending = NodeAgents::Ending::kGone;
  EXPECT_EQ(launcher->Poll(start + absl::Seconds(2)).size(), 1u);
}

TEST_F(Launching, AnAdoptedGenerationWithoutAgentsWaitsForNone) {
  FakeAgents agents;
  agents_ = &agents;
  auto launcher = Make("exit 0");
  launcher->Adopt(kKey, kDead, {{NodeName("a")}, {}});
  AwaitEnd(*launcher);
  EXPECT_TRUE(agents.asked.empty());
}

TEST_F(Launching, AMissingMpirunIsNamed) {
  auto launcher = MakeWith("/no/such/mpirun");
  const absl::Status status = launcher->Prepare(Request()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/mpirun"));
}

}  // namespace
}  // namespace espalier
