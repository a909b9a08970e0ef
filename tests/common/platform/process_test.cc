#include "common/platform/process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/coordinator/scratch_folder.h"
#include "tests/coordinator/wait_until.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

class Gated : public ::testing::Test {
 protected:
  GatedProcess Spawn(const std::string& script) {
    absl::StatusOr<GatedProcess> process =
        GatedProcess::Spawn({.argv = {"/bin/sh", "-c", script},
                             .environment = {"ESPALIER_TEST_WORD=seen"},
                             .log_path = folder_.path("log")});
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  }
  ExitStatus Wait(int64_t pid) {
    ExitStatus status;
    EXPECT_TRUE(WaitUntil([&] {
      absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(pid);
      if (!exit.ok() || !exit->has_value()) return false;
      status = **exit;
      return true;
    }));
    return status;
  }
  ScratchFolder folder_;
};

TEST_F(Gated, RunsInItsOwnSessionWithOutputInTheLog) {
  GatedProcess process = Spawn("echo out $ESPALIER_TEST_WORD; echo err >&2; exit 3");
  process.Release();
  EXPECT_EQ(Wait(process.identity().pid).code, 3);
  EXPECT_EQ(folder_.Read("log"), "out seen\nerr\n");
}

TEST_F(Gated, DoesNothingBeforeItIsReleased) {
  const int64_t pid = [&] {
    GatedProcess process = Spawn("echo visible");
    const pid_t child = static_cast<pid_t>(process.identity().pid);
    EXPECT_EQ(getsid(child), child);
    EXPECT_TRUE(IsAlive(process.identity()));
    return process.identity().pid;
  }();
  EXPECT_EQ(Wait(pid).code, 0) << "closing the gate ends it";
  EXPECT_EQ(folder_.Read("log"), "");
}

TEST_F(Gated, SeesTheEndOfItsParentAtTheGate) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    GatedProcess process = Spawn("echo visible");
    const int64_t pid = process.identity().pid;
    (void)!write(ends[1], &pid, sizeof(pid));
    for (;;) pause();
  }
  int64_t pid = 0;
  ASSERT_EQ(read(ends[0], &pid, sizeof(pid)), static_cast<ssize_t>(sizeof(pid)));
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  EXPECT_TRUE(WaitUntil([&] { return !IdentifyProcess(pid).ok(); }));
  EXPECT_EQ(folder_.Read("log"), "");
  close(ends[0]);
  close(ends[1]);
}

TEST_F(Gated, LeavesNoDescriptorsOpenInTheProgram) {
  GatedProcess process = Spawn("ls /proc/self/fd /dev/fd 2>/dev/null | grep -c '^[3-9]'");
  process.Release();
  Wait(process.identity().pid);
  // `ls` itself has the folders it lists open.
  EXPECT_THAT(folder_.Read("log"), ::testing::MatchesRegex("[0-2]\n"));
}

TEST_F(Gated, HoldsNothingOfItsParentAtTheGate) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int high = fcntl(ends[1], F_DUPFD, 200);
  ASSERT_GE(high, 200);
  const GatedProcess process = Spawn("echo visible");
  close(high);
  close(ends[1]);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "nobody can write any more";
  EXPECT_TRUE(IsAlive(process.identity()));
  close(ends[0]);
}

TEST_F(Gated, SpeaksThroughTheDescriptorsThatItIsGiven) {
  int in[2], out[2], errors[2];
  ASSERT_EQ(pipe(in) + pipe(out) + pipe(errors), 0);
  GatedProcess process = *GatedProcess::Spawn(
      {.argv = {"/bin/sh", "-c", "read word; echo got $word; echo complaint >&2"},
       .input = in[0],
       .output = out[1],
       .errors = errors[1]});
  process.Release();
  for (const int end : {in[0], out[1], errors[1]}) close(end);
  ASSERT_EQ(write(in[1], "this\n", 5), 5);
  EXPECT_EQ(Wait(process.identity().pid).code, 0);
  char text[32] = {};
  EXPECT_EQ(read(out[0], text, sizeof(text)), 9);
  EXPECT_STREQ(text, "got this\n");
  EXPECT_EQ(read(errors[0], text, sizeof(text)), 10);
  for (const int end : {in[1], out[0], errors[0]}) close(end);
}

TEST_F(Gated, AGroupOfItsOwnStaysInTheSession) {
  GatedProcess process = *GatedProcess::Spawn({.argv = {"/bin/sh", "-c", "sleep 1000 & wait"},
                                               .log_path = folder_.path("log"),
                                               .apart = SpawnOptions::Apart::kGroup});
  const pid_t child = static_cast<pid_t>(process.identity().pid);
  EXPECT_EQ(getsid(child), getsid(0));
  EXPECT_EQ(getpgid(child), child);
  process.Release();
  EXPECT_EQ(kill(-child, SIGKILL), 0);
  EXPECT_EQ(Wait(child).signal, SIGKILL);
  EXPECT_TRUE(WaitUntil([&] { return kill(-child, 0) != 0; }));
}

TEST_F(Gated, AMissingProgramIsNamed) {
  const absl::Status status =
      GatedProcess::Spawn({.argv = {"no-such-program"}, .log_path = folder_.path("log")}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no-such-program"));
}

TEST_F(Gated, AProgramThatCannotStartSaysSoInItsLog) {
  const std::string script = folder_.WriteScript("broken", "#!/no/such/interpreter\n");
  GatedProcess process = *GatedProcess::Spawn({.argv = {script}, .log_path = folder_.path("log")});
  process.Release();
  EXPECT_EQ(Wait(process.identity().pid).code, 127);
  EXPECT_THAT(folder_.Read("log"), HasSubstr("cannot start the program"));
}

TEST_F(Gated, ASessionEndsWithItsGrandchildrenEvenWithoutItsLeader) {
  GatedProcess process = Spawn("sleep 1000 & sleep 1000 & echo ready; wait");
  const ProcessIdentity leader = process.identity();
  process.Release();
  ASSERT_TRUE(WaitUntil([&] { return folder_.Read("log") == "ready\n"; }));
  EXPECT_EQ(SignalSession(leader, 0), 3);
  kill(static_cast<pid_t>(leader.pid), SIGKILL);
  Wait(leader.pid);
  EXPECT_EQ(SignalSession(leader, SIGKILL), 2);
  EXPECT_TRUE(WaitUntil([&] { return SignalSession(leader, 0) == 0; }));
}

TEST_F(Gated, AStrangersSessionIsNeverTouched) {
  GatedProcess process = Spawn("sleep 1000");
  const ProcessIdentity leader = process.identity();
  process.Release();
  EXPECT_EQ(SignalSession({leader.pid, leader.start + "0"}, SIGKILL), 0);
  EXPECT_TRUE(IsAlive(leader));
  EXPECT_GT(SignalSession(leader, SIGKILL), 0);
  Wait(leader.pid);
}

TEST(ProcessIdentity, IsStableAndDiffersFromAPidAlone) {
  const ProcessIdentity self = *IdentifyProcess(getpid());
  EXPECT_EQ(*IdentifyProcess(getpid()), self);
  EXPECT_TRUE(IsAlive(self));
  EXPECT_TRUE(IsOfThisBoot(self));
  EXPECT_FALSE(IsAlive({self.pid, self.start + "0"}));
  EXPECT_FALSE(IsOfThisBoot({self.pid, "another-boot/1"}));
}

TEST(ProcessIdentity, IsOfABootWhateverTheClockSaysOfItsTime) {
  const std::string boot = "9C1E35DA-2E0B-4C0E-9B57-0D2B8D0B4A11";
  EXPECT_TRUE(IsOfBoot({7, boot + "/1764000000.123456"}, boot));
  EXPECT_TRUE(IsOfBoot({7, boot + "/1.000001"}, boot)) << "the clock was set forward by years";
  EXPECT_FALSE(IsOfBoot({7, boot + "/1764000000.123456"}, "9C1E35DA"));
  EXPECT_FALSE(IsOfBoot({7, "1764000000.123456"}, boot)) << "says nothing of its boot";
  EXPECT_FALSE(IsOfBoot({7, ""}, boot));
  EXPECT_EQ(IdentifyProcess(getpid())->start.find(BootId() + "/"), 0u);
  EXPECT_FALSE(BootId().empty());
}

TEST(ProcessIdentity, AZombieHasEnded) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  EXPECT_TRUE(WaitUntil([&] { return !IdentifyProcess(child).ok(); }));
  EXPECT_EQ(kill(child, 0), 0) << "it is still there for its parent";
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace espalier
