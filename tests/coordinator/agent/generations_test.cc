// Generations against real processes: a script plays Open MPI's daemon.
#include "coordinator/agent/generations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/config/rules.h"
#include "tests/coordinator/scratch_folder.h"
#include "tests/coordinator/wait_until.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const GenerationKey kKey = {JobId("job-1"), Generation(3)};

class OnThisNode : public ::testing::Test {
 protected:
  ~OnThisNode() override {
    if (!generations_) return;
    for (const GenerationKey& key : generations_->running()) generations_->End(key);
    EXPECT_TRUE(WaitUntil([&] {
      generations_->Poll(RealClock().Monotonic());
      return generations_->empty();
    }));
  }

  Generations& Open() {
    generations_.reset();
    absl::StatusOr<Generations> opened = Generations::Open({.state_dir = folder_.path("state"),
                                                            .open_mpi_folder = folder_.root(),
                                                            .grace = absl::Milliseconds(200)});
    EXPECT_TRUE(opened.ok()) << opened.status();
    return generations_.emplace(*std::move(opened));
  }
  // The daemon does as `script` says.
  void Daemon(const std::string& script) { folder_.WriteScript("orted", "#!/bin/sh\n" + script); }
  v1::StartDaemon Request() const {
    v1::StartDaemon request;
    request.set_exec_id(7);
    *request.mutable_generation() = NameOf(kKey);
    for (const char* word : {" orted", "--daemonize", "-mca", "ess", "\"env\""}) {
      request.add_command(word);
    }
    request.set_orphan_limit_seconds(60);
    return request;
  }
  int64_t Start() {
    const absl::StatusOr<int64_t> pid = generations_->Start(Request());
    EXPECT_TRUE(pid.ok()) << pid.status();
    return pid.ok() ? *pid : 0;
  }
  // What is told until nothing is left.
  std::vector<v1::AgentMessage> AwaitGone() {
    std::vector<v1::AgentMessage> all;
    EXPECT_TRUE(WaitUntil([&] {
      for (v1::AgentMessage& news : generations_->Poll(RealClock().Monotonic())) {
        all.push_back(std::move(news));
      }
      return generations_->empty();
    }));
    return all;
  }
  std::string Output() { return folder_.Read("state/generations/job-1.3/output"); }
  bool Said(const std::string& text) {
    return WaitUntil([&] { return absl::StrContains(Output(), text); });
  }

  ScratchFolder folder_;
  std::optional<Generations> generations_;
};

// Every process of the session that a daemon leads.
bool SessionLives(int64_t leader) {
  for (int64_t pid : ListProcessIds()) {
    if (getsid(static_cast<pid_t>(pid)) == leader && IdentifyProcess(pid).ok()) return true;
  }
  return false;
}

TEST_F(OnThisNode, ADaemonRunsWithTheParsedArgumentsInItsOwnFolderAndSession) {
  Open();
  Daemon("echo \"args: $*\"; pwd; echo up; exec sleep 1000");
  const int64_t pid = Start();
  ASSERT_TRUE(Said("up"));
  EXPECT_THAT(Output(),
              AllOf(HasSubstr("args: -mca ess env\n"), HasSubstr("generations/job-1.3\n")));
  EXPECT_EQ(getsid(static_cast<pid_t>(pid)), pid);
}

// See TemporaryFilesOfAGenerationHaveAFolderOfTheirOwnThatGoesWithIt of the launcher.
TEST_F(OnThisNode, ADaemonHasAFolderForTemporaryFilesOfItsOwn) {
  Open();
  Daemon("touch $TMPDIR/left && echo $TMPDIR");
  Start();
  const std::vector<v1::AgentMessage> news = AwaitGone();
  ASSERT_FALSE(news.empty());
  EXPECT_EQ(news[0].exited().output(), folder_.path("state/generations/job-1.3/tmp\n"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path("state/generations")));
}

TEST_F(OnThisNode, ADaemonGetsNothingThatChangesWhichCodeRuns) {
  Open();
  setenv("OMPI_MCA_plm_rsh_agent", "/tmp/evil", 1);
  setenv("ESPALIER_EXEC_SECRET", "secret", 1);
  setenv("BASH_ENV", "/tmp/evil", 1);
  Daemon("env; echo up; exec sleep 1000");
  Start();
  ASSERT_TRUE(Said("up"));
  for (const char* name : {"OMPI_MCA_plm_rsh_agent", "ESPALIER_EXEC_SECRET", "BASH_ENV"}) {
    EXPECT_THAT(Output(), Not(HasSubstr(name)));
    unsetenv(name);
  }
  EXPECT_THAT(Output(), HasSubstr("PATH="));
}

TEST_F(OnThisNode, WhatADaemonSaidLastIsToldWithItsEnd) {
  Open();
  Daemon("echo out of luck >&2; exit 3");
  Start();
  const std::vector<v1::AgentMessage> news = AwaitGone();
  ASSERT_EQ(news.size(), 2u);
  EXPECT_EQ(news[0].exited().exec_id(), 7);
  EXPECT_EQ(news[0].exited().code(), 3);
  EXPECT_EQ(news[0].exited().output(), "out of luck\n");
  EXPECT_EQ(KeyOf(news[1].gone().generation()), kKey);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("state/generations/job-1.3")));
}

TEST_F(OnThisNode, EndReachesAStubbornDaemonAndItsRanks) {
  Open();
  Daemon("trap '' TERM; (trap '' TERM; sleep 1000) & echo up; while :; do sleep 0.01; done");
  const int64_t pid = Start();
  ASSERT_TRUE(Said("up"));
  generations_->End(kKey);
  generations_->End(kKey);
  const std::vector<v1::AgentMessage> news = AwaitGone();
  EXPECT_EQ(news.at(0).exited().signal(), SIGKILL);
  EXPECT_FALSE(SessionLives(pid));
}

TEST_F(OnThisNode, RanksThatOutliveTheirDaemonAreEnded) {
  Open();
  Daemon("sleep 1000 & echo up; wait");
  const int64_t pid = Start();
  ASSERT_TRUE(Said("up"));
  kill(static_cast<pid_t>(pid), SIGKILL);
  AwaitGone();
  EXPECT_FALSE(SessionLives(pid));
}

TEST_F(OnThisNode, TheNextAgentKnowsWhatAnEarlierOneLeftAndEndsIt) {
  Open();
  Daemon("sleep 1000 & echo up; wait");
  const int64_t pid = Start();
  ASSERT_TRUE(Said("up"));
  Open();
  EXPECT_THAT(generations_->running(), ::testing::ElementsAre(kKey));
  EXPECT_THAT(generations_->Poll(RealClock().Monotonic()), IsEmpty()) << "it goes on";
  generations_->End(kKey);
  AwaitGone();
  EXPECT_FALSE(SessionLives(pid));
}

TEST_F(OnThisNode, ARecordOfAnEarlierBootIsNobodysProcess) {
  std::filesystem::create_directories(folder_.path("state/generations/job-1.3"));
  folder_.Write("state/generations/job-1.3/record", absl::StrCat(getpid(), " another-boot/1 60\n"));
  std::filesystem::create_directories(folder_.path("state/generations/half"));
  Open();
  EXPECT_THAT(AwaitGone(), ::testing::SizeIs(1));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("state/generations/half")));
}

TEST_F(OnThisNode, AFolderWhoseRecordIsNoneIsRemoved) {
  std::filesystem::create_directories(folder_.path("state/generations/job-1.3"));
  folder_.Write("state/generations/job-1.3/record", "x\n");
  EXPECT_TRUE(Open().empty());
  EXPECT_FALSE(std::filesystem::exists(folder_.path("state/generations/job-1.3")));
}

// Finder leaves .DS_Store where somebody looks.
TEST_F(OnThisNode, AFileBesideTheGenerationsIsLeftAlone) {
  std::filesystem::create_directories(folder_.path("state/generations"));
  folder_.Write("state/generations/.DS_Store", "x");
  EXPECT_TRUE(Open().empty());
  EXPECT_TRUE(std::filesystem::exists(folder_.path("state/generations/.DS_Store")));
}

TEST_F(OnThisNode, ARecordThatCannotBeReadIsNotForgotten) {
  const std::string record = folder_.path("state/generations/job-1.3/record");
  std::filesystem::create_directories(record);
  const absl::StatusOr<Generations> opened =
      Generations::Open({.state_dir = folder_.path("state"), .open_mpi_folder = folder_.root()});
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(std::string(opened.status().message()), AllOf(HasSubstr(record), HasSubstr("mend")));
  EXPECT_TRUE(std::filesystem::exists(record));
}

TEST_F(OnThisNode, AGenerationEndsWithoutTheCoordinatorWhenItsTimeIsUp) {
  Open();
  Daemon("echo up; exec sleep 1000");
  const int64_t pid = Start();
  ASSERT_TRUE(Said("up"));
  generations_->EndOrphans(absl::Seconds(59));
  EXPECT_FALSE(generations_->ending());
  generations_->EndOrphans(absl::Seconds(60));
  AwaitGone();
  EXPECT_FALSE(SessionLives(pid));
}

TEST_F(OnThisNode, EndOfSomethingUnknownIsConfirmedAtOnce) {
  Open();
  generations_->End(kKey);
  const std::vector<v1::AgentMessage> news = generations_->Poll(RealClock().Monotonic());
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(KeyOf(news[0].gone().generation()), kKey);
}

TEST_F(OnThisNode, ARefusedCommandLeavesNothingBehind) {
  Open();
  Daemon("echo visible > " + folder_.path("visible"));
  v1::StartDaemon request = Request();
  request.add_command("; touch /tmp/evil");
  EXPECT_EQ(generations_->Start(request).status().code(), absl::StatusCode::kInvalidArgument);
  request = Request();
  request.mutable_generation()->set_job_id("../../etc");
  EXPECT_EQ(generations_->Start(request).status().code(), absl::StatusCode::kInvalidArgument);
  request = Request();
  request.set_command(0, "prted");
  EXPECT_EQ(generations_->Start(request).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(generations_->empty());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path("state/generations")));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("visible")));
}

TEST_F(OnThisNode, AJobOfTheLongestNameRuns) {
  Open();
  Daemon("exec sleep 1000");
  const std::string name(kNameLengthMax, 'a');
  ASSERT_TRUE(IsName(name));
  v1::StartDaemon request = Request();
  request.mutable_generation()->set_job_id(
      absl::StrCat(name, "-", std::numeric_limits<int64_t>::max()));
  const absl::StatusOr<int64_t> pid = generations_->Start(request);
  EXPECT_TRUE(pid.ok()) << pid.status();
}

TEST_F(OnThisNode, AGenerationHasOneDaemonHere) {
  Open();
  Daemon("echo up; exec sleep 1000");
  Start();
  EXPECT_EQ(generations_->Start(Request()).status().code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace espalier
