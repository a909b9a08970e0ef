// Machines that join over TLS, as people have them do it: espalierd, `espalier nodes add` and
// espalier-agent as the processes they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/common/rpc/tls_world.h"
#include "tests/coordinator/service/espalierd_process.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  int code = -1;
  std::string output;
};

class JoiningMachines : public ::testing::Test {
 protected:
  JoiningMachines() {
    const TlsFiles own =
        world_.Issue("coordinator", {.role = Role::kCoordinator, .addresses = {"127.0.0.1"}});
    daemon_.folder().Write(
        "cluster.yaml",
        absl::StrCat("listen: 127.0.0.1:0\nmetrics_listen: 127.0.0.1:0\nlauncher: {worker: ",
                     BinFolder(), "/../tests/stub_worker}\ntls: {ca: ", own.ca,
                     ", certificate: ", own.certificate, ", key: ", own.key, "}\n"));
  }
  ~JoiningMachines() override {
    for (const auto& [name, agent] : agents_) {
      kill(static_cast<pid_t>(agent.pid), SIGKILL);
      WaitUntil([&agent = agent] { return !IsAlive(agent); });
    }
  }

  static std::string BinFolder() {
    const char* bin = std::getenv("ESPALIER_BIN");
    return bin == nullptr ? "." : bin;
  }
  std::string path(const std::string& name) const { return daemon_.folder().path(name); }

  ProcessIdentity Spawn(const std::vector<std::string>& argv, const std::string& log) {
    std::filesystem::remove(path(log));
    absl::StatusOr<GatedProcess> process =
        GatedProcess::Spawn({.argv = argv, .log_path = path(log)});
    EXPECT_TRUE(process.ok()) << process.status();
    process->Release();
    return process->identity();
  }
  Ended RunToEnd(std::vector<std::string> argv) {
    argv[0] = absl::StrCat(BinFolder(), "/", argv[0]);
    const ProcessIdentity process = Spawn(argv, "run.log");
    Ended ended;
    EXPECT_TRUE(WaitUntil([&] {
      const absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(process.pid);
      if (exit.ok() && exit->has_value()) ended.code = (*exit)->code;
      return !exit.ok() || exit->has_value();
    })) << argv[1];
    ended.output = daemon_.folder().Read("run.log");
    return ended;
  }
  Ended Espalier(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"espalier", "--coordinator", path("state")});
    return RunToEnd(arguments);
  }
  Ended Add(const std::string& node) {
    return Espalier({"nodes", "add", node, "--address", "127.0.0.1"});
  }
  // The words of the line that `nodes add` printed.
  std::vector<std::string> LineFor(const std::string& node, const std::string& address = "") {
    const Ended added =
        address.empty() ? Add(node) : Espalier({"nodes", "add", node, "--address", address});
    EXPECT_EQ(added.code, 0) << added.output;
    for (const absl::string_view line : absl::StrSplit(added.output, '\n')) {
      if (absl::StartsWith(line, "espalier-agent join ")) {
        return absl::StrSplit(line, ' ', absl::SkipEmpty());
      }
    }
    ADD_FAILURE() << added.output;
    return {"espalier-agent"};
  }
  std::string StateOf(const std::string& machine) const { return path("agent-" + machine); }
  // Joins and ends.
  Ended Join(std::vector<std::string> line, const std::string& machine) {
    line.insert(line.end(), {"--only", "--state-dir", StateOf(machine)});
    Ended joined = RunToEnd(line);
    if (joined.code == 0) {
      EXPECT_TRUE(absl::StrContains(joined.output, "espalier-agent run --state-dir /") &&
                  absl::StrContains(joined.output, "/agent-" + machine + "\n"))
          << joined.output;
    }
    return joined;
  }
  std::string LogOf(const std::string& machine) const {
    return daemon_.folder().Read("agent-" + machine + ".log");
  }
  void StartAgent(std::vector<std::string> line, const std::string& machine) {
    line[0] = BinFolder() + "/espalier-agent";
    line.insert(line.end(), {"--state-dir", StateOf(machine)});
    agents_[machine] = Spawn(line, "agent-" + machine + ".log");
    EXPECT_TRUE(WaitUntil([&] {
      return absl::StrContains(LogOf(machine), " attached to espalierd") ||
             !IsAlive(agents_[machine]);
    })) << LogOf(machine);
  }
  v1::ListNodesResponse Nodes() {
    BoundedContext context;
    v1::ListNodesResponse nodes;
    EXPECT_TRUE(daemon_.stub().ListNodes(&context, {}, &nodes).ok());
    return nodes;
  }
  bool HasIdentity(const std::string& machine) const {
    if (!std::filesystem::exists(StateOf(machine))) return false;
    for (const auto& entry : std::filesystem::directory_iterator(StateOf(machine))) {
      if (absl::StartsWith(entry.path().filename().string(), "identity")) return true;
    }
    return false;
  }

  TlsWorld world_;
  EspalierdProcess daemon_;
  std::map<std::string, ProcessIdentity> agents_;
};

// Replaces the word after `option`.
std::vector<std::string> With(std::vector<std::string> line, const std::string& option,
                              const std::string& value) {
  for (size_t i = 0; i + 1 < line.size(); ++i) {
    if (line[i] == option) line[i + 1] = value;
  }
  return line;
}

TEST_F(JoiningMachines, TwoMachinesJoinWithTheLineAndAJobRunsOnThem) {
  daemon_.Start();
  StartAgent(LineFor("left", "127.0.0.1"), "left");
  StartAgent(LineFor("right", "127.0.0.2"), "right");
  const std::string job = daemon_.Submit({.steps = 100});
  daemon_.Await(job, v1::JOB_STATE_COMPLETED);
  const v1::ListNodesResponse nodes = Nodes();
  ASSERT_EQ(nodes.nodes_size(), 2);
  for (const v1::NodeStatus& node : nodes.nodes()) {
    EXPECT_EQ(node.agent(), v1::AGENT_STATE_ATTACHED) << node.ShortDebugString();
    EXPECT_EQ(node.certificate().size(), 64u);
  }
  EXPECT_THAT(Espalier({"nodes"}).output, AllOf(HasSubstr("left"), HasSubstr("127.0.0.2")));
}

TEST_F(JoiningMachines, AJobLeavesAMachineWhoseBatteryIsLowAndIsBackWhenItIsCharged) {
  daemon_.Start();
  StartAgent(LineFor("left", "127.0.0.1"), "left");
  std::vector<std::string> line = LineFor("right", "127.0.0.2");
  line.insert(line.end(), {"--condition", path("condition")});
  StartAgent(line, "right");
  const std::string job = daemon_.Submit({.steps = 2000});
  daemon_.AwaitStep(job, 10);
  daemon_.folder().Write("condition", R"({"power": "NODE_POWER_BATTERY", "batteryPercent": 5})");
  const v1::JobStatus waits = daemon_.Await(job, v1::JOB_STATE_QUEUED);
  EXPECT_THAT(waits.reason(), HasSubstr("right has 5 % of its battery left"));
  EXPECT_GT(waits.step(), 0);
  EXPECT_THAT(Espalier({"nodes"}).output, HasSubstr("on battery, 5 %"));
  daemon_.folder().Write("condition", R"({"power": "NODE_POWER_MAINS"})");
  const v1::JobStatus done = daemon_.Await(job, v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(done.restarts(), 0) << Espalier({"events", job}).output;
}

TEST_F(JoiningMachines, WhenAMachineMayBeUsedIsChangedWhileAJobRunsThere) {
  daemon_.Start();
  StartAgent(LineFor("left", "127.0.0.1"), "left");
  StartAgent(LineFor("right", "127.0.0.2"), "right");
  const std::string job = daemon_.Submit({.steps = 2000});
  daemon_.AwaitStep(job, 10);
  const int hour = (absl::ToCivilHour(RealClock().Now(), absl::LocalTimeZone()) + 3).hour();
  const std::string later = absl::StrFormat("%02d:00-%02d:01", hour, hour);
  const Ended set = Espalier({"nodes", "set", "right", "--hours", later});
  EXPECT_EQ(set.code, 0) << set.output;
  const v1::JobStatus waits = daemon_.Await(job, v1::JOB_STATE_QUEUED);
  EXPECT_THAT(waits.reason(), HasSubstr("right may be used at " + later + " only (hours)"));
  EXPECT_EQ(Espalier({"nodes", "set", "right", "--hours", "all"}).code, 0);
  EXPECT_EQ(daemon_.Await(job, v1::JOB_STATE_COMPLETED).restarts(), 0)
      << Espalier({"events", job}).output;
  const Ended nothing = Espalier({"nodes", "set", "right"});
  EXPECT_EQ(nothing.code, 2) << nothing.output;
  EXPECT_THAT(nothing.output, HasSubstr("nothing is to be set"));
  const Ended bad = Espalier({"nodes", "set", "right", "--largest-share", "3"});
  EXPECT_EQ(bad.code, 2) << bad.output;
  EXPECT_THAT(bad.output, HasSubstr("largest_share is 3"));
}

TEST_F(JoiningMachines, WhenAMachineMayBeUsedIsCheckedWhereItIsAdded) {
  daemon_.Start();
  const Ended hours =
      Espalier({"nodes", "add", "mini", "--address", "127.0.0.1", "--hours", "7-9"});
  EXPECT_EQ(hours.code, 2) << hours.output;
  EXPECT_THAT(hours.output, HasSubstr("'7-9' is no part of a day"));
  const Ended battery =
      Espalier({"nodes", "add", "mini", "--address", "127.0.0.1", "--on-battery", "stay"});
  EXPECT_EQ(battery.code, 2) << battery.output;
  EXPECT_THAT(battery.output, HasSubstr("on_battery is 'stay'"));
}

TEST_F(JoiningMachines, TheKeyIsTheOwnersAloneAndTheNextStartNeedsNoWords) {
  daemon_.Start();
  ASSERT_EQ(Join(LineFor("mini"), "mini").code, 0);
  for (const char* file : {"node.key", "node.crt", "ca.crt", "node"}) {
    struct stat status = {};
    ASSERT_EQ(stat((StateOf("mini") + "/identity/" + file).c_str(), &status), 0) << file;
    EXPECT_EQ(status.st_mode & 0777, 0600u) << file;
  }
  StartAgent({"espalier-agent", "run"}, "mini");
  EXPECT_TRUE(WaitUntil([&] { return Nodes().nodes(0).agent() == v1::AGENT_STATE_ATTACHED; }))
      << LogOf("mini");
}

TEST_F(JoiningMachines, ATokenAndWhoHasJoinedOutliveEspalierd) {
  daemon_.Start();
  const std::vector<std::string> line = LineFor("mini");
  EXPECT_THAT(daemon_.folder().Read("state/journal.sqlite") +
                  daemon_.folder().Read("state/journal.sqlite-wal"),
              Not(HasSubstr(line[6])))
      << "the token is kept as a hash";
  daemon_.Kill();
  daemon_.Start();
  ASSERT_EQ(Join(line, "mini").code, 0);
  daemon_.Kill();
  daemon_.Start();
  ASSERT_EQ(Nodes().nodes_size(), 1);
  const Ended again = Join(line, "thief");
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.output, AllOf(HasSubstr("was used on"), HasSubstr("nodes forget mini")));
  EXPECT_FALSE(HasIdentity("thief"));
  const Ended same = Join(line, "mini");
  EXPECT_EQ(same.code, 1);
  EXPECT_THAT(same.output, HasSubstr("has joined 127.0.0.1:"));
  EXPECT_THAT(Add("mini").output, HasSubstr("has a certificate of that name"));
}

TEST_F(JoiningMachines, WhatIsWrongIsSaidAndLeavesNothingBehindNorUsesTheTokenUp) {
  daemon_.Start();
  const std::vector<std::string> line = LineFor("mini");
  const auto expect = [&](const std::vector<std::string>& wrong, const std::string& text) {
    const Ended ended = Join(wrong, "mini");
    EXPECT_EQ(ended.code, 1) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(text));
    EXPECT_FALSE(HasIdentity("mini")) << text;
  };
  expect(With(line, "--token", "wrong"), "espalier nodes add mini");
  expect(With(line, "--name", "studio"), "espalier nodes add studio");
  expect(With(line, "--name", "not a name"), "'not a name'");
  expect(With(line, "--ca-sha256", std::string(64, '0')), "was told nothing");
  expect(With(line, "--ca-sha256", "0"), "64 digits");
  expect(With(line, "join", "127.0.0.1:1"), "nothing listens on 127.0.0.1:1");
  expect(With(line, "join", line[2] + "0"), "");
  EXPECT_EQ(Join(line, "mini").code, 0);
}

TEST_F(JoiningMachines, WithoutTheKeyOfTheCaItIsSaidWhereItBelongs) {
  const std::string key = world_.folder() + "/ca.key";
  std::filesystem::rename(key, key + ".away");
  daemon_.Start();
  const Ended added = Add("mini");
  EXPECT_NE(added.code, 0);
  EXPECT_THAT(added.output, AllOf(HasSubstr(key), HasSubstr("espalier pki issue")));
  std::filesystem::copy_file(world_.folder() + "/other/ca.key", key);
  EXPECT_THAT(Add("mini").output, HasSubstr("does not belong to its certificate"));
  std::filesystem::rename(key + ".away", key);
  EXPECT_EQ(Add("mini").code, 0);
}

TEST_F(JoiningMachines, AForgottenMachineIsRefusedAndMayJoinAnew) {
  daemon_.Start();
  StartAgent(LineFor("mini"), "mini");
  ASSERT_EQ(Nodes().nodes_size(), 1);
  const Ended forgotten = Espalier({"nodes", "forget", "mini"});
  EXPECT_EQ(forgotten.code, 0) << forgotten.output;
  EXPECT_EQ(Nodes().nodes_size(), 0);
  EXPECT_TRUE(WaitUntil([&] { return absl::StrContains(LogOf("mini"), "nodes add mini"); }))
      << LogOf("mini");
  kill(static_cast<pid_t>(agents_["mini"].pid), SIGTERM);
  EXPECT_TRUE(WaitUntil([&] { return !IsAlive(agents_["mini"]); }));
  daemon_.Kill();
  daemon_.Start();
  const Ended run = RunToEnd({"espalier-agent", "run", "--state-dir", StateOf("mini")});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.output, AllOf(HasSubstr("is refused since node mini was forgotten"),
                                HasSubstr("espalier nodes add mini")));
  EXPECT_EQ(Join(LineFor("mini"), "mini-anew").code, 0);
}

TEST_F(JoiningMachines, AnAgentThatHasNotJoinedSaysHowTo) {
  const Ended run = RunToEnd({"espalier-agent", "run", "--state-dir", StateOf("mini")});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.output, HasSubstr("espalier nodes add"));
}

}  // namespace
}  // namespace espalier
