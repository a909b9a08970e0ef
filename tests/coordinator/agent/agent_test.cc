// The agent as a whole, with a clock of the test and an espalierd that only listens.
#include "coordinator/agent/agent.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/agent/generations.h"
#include "espalier/v1/agent.grpc.pb.h"
#include "tests/coordinator/scratch_folder.h"
#include "tests/coordinator/wait_until.h"

namespace espalier {
namespace {

constexpr absl::Duration kOrphanLimit = absl::Minutes(1);
// Enough for every loop of the agent to come round.
constexpr int kManyLooks = 10;

// Real time, and what the test adds to it.
class LeapingClock : public Clock {
 public:
  absl::Time Now() override { return RealClock().Now() + leapt(); }
  absl::Duration Monotonic() override {
    absl::MutexLock lock(&mutex_);
    ++looks_;
    leapt_ += step_;
    return RealClock().Monotonic() + leapt_;
  }
  void Sleep(absl::Duration duration) override { RealClock().Sleep(duration); }

  void Leap(absl::Duration duration) {
    absl::MutexLock lock(&mutex_);
    leapt_ += duration;
  }
  // From now on with each look at it.
  void LeapAtEachLook(absl::Duration duration) {
    absl::MutexLock lock(&mutex_);
    step_ = duration;
  }
  int looks() {
    absl::MutexLock lock(&mutex_);
    return looks_;
  }

 private:
  absl::Duration leapt() {
    absl::MutexLock lock(&mutex_);
    return leapt_;
  }

  absl::Mutex mutex_;
  int looks_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration leapt_ ABSL_GUARDED_BY(mutex_);
  absl::Duration step_ ABSL_GUARDED_BY(mutex_);
};

// As the test says.
class ScriptedSleep : public SleepNotice {
 public:
  struct Script {
    std::atomic<bool> about_to_sleep{false};
    std::atomic<bool> allowed{false};
  };
  explicit ScriptedSleep(Script& script) : script_(script) {}
  bool about_to_sleep() override { return script_.about_to_sleep; }
  void Allow() override { script_.allowed = true; }

 private:
  Script& script_;
};

// Counts who wants the machine awake.
class CountedAwake : public KeepAwake {
 public:
  explicit CountedAwake(std::atomic<int>& count) : count_(count) { ++count_; }
  ~CountedAwake() override { --count_; }

 private:
  std::atomic<int>& count_;
};

// Welcomes, and remembers the last hello and the last report.
class Listener final : public v1::AgentService::Service {
 public:
  grpc::Status Attach(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::AgentCommand, v1::AgentMessage>* stream) override {
    v1::AgentMessage message;
    while (stream->Read(&message)) {
      absl::MutexLock lock(&mutex_);
      if (message.has_report()) report_ = message.report();
      v1::AgentCommand command;
      if (ends_ && message.has_report()) {
        *command.mutable_end()->mutable_generation() = *ends_;
        stream->Write(command);
      }
      if (!message.has_hello()) continue;
      hello_ = message.hello();
      command.mutable_welcome()->set_report_interval_seconds(1);
      stream->Write(command);
    }
    return grpc::Status::OK;
  }
  std::optional<v1::AgentHello> hello() {
    absl::MutexLock lock(&mutex_);
    return hello_;
  }
  v1::NodeReport report() {
    absl::MutexLock lock(&mutex_);
    return report_;
  }
  // Upon the next report.
  void End(const v1::GenerationName& generation) {
    absl::MutexLock lock(&mutex_);
    ends_ = generation;
  }

 private:
  absl::Mutex mutex_;
  std::optional<v1::AgentHello> hello_ ABSL_GUARDED_BY(mutex_);
  v1::NodeReport report_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::GenerationName> ends_ ABSL_GUARDED_BY(mutex_);
};

class AnAgent : public ::testing::Test {
 protected:
  ~AnAgent() override {
    if (agent_) agent_->Stop();
    if (runs_.joinable()) runs_.join();
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    if (daemon_) WaitUntil([this] { return SignalSession(*daemon_, SIGKILL) == 0; });
  }

  // A generation of an earlier agent, which may be without espalierd for kOrphanLimit.
  void LeaveGeneration() {
    folder_.WriteScript("orted", "#!/bin/sh\nexec sleep 1000\n");
    absl::StatusOr<Generations> earlier =
        Generations::Open({.state_dir = folder_.path("state"), .open_mpi_folder = folder_.root()});
    ASSERT_TRUE(earlier.ok()) << earlier.status();
    v1::StartDaemon request;
    *request.mutable_generation() = NameOf({JobId("job-1"), Generation(3)});
    for (const char* word : {"orted", "-mca", "ess", "env"}) request.add_command(word);
    request.set_orphan_limit_seconds(absl::ToDoubleSeconds(kOrphanLimit));
    const absl::StatusOr<int64_t> pid = earlier->Start(request);
    ASSERT_TRUE(pid.ok()) << pid.status();
    const absl::StatusOr<ProcessIdentity> daemon = IdentifyProcess(*pid);
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *daemon;
  }
  void StartAgent() {
    absl::StatusOr<std::unique_ptr<Agent>> agent =
        Agent::Start({.target = {.address = address()},
                      .node = "left",
                      .facts = {.state_dir = folder_.path("state"),
                                .mpirun = folder_.path("mpirun"),
                                .worker = "/no/worker"},
                      .sleep = std::make_unique<ScriptedSleep>(sleep_),
                      .keep_awake = [this]() -> absl::StatusOr<std::unique_ptr<KeepAwake>> {
                        return std::make_unique<CountedAwake>(awake_);
                      }},
                     clock_);
    ASSERT_TRUE(agent.ok()) << agent.status();
    agent_ = *std::move(agent);
    runs_ = std::thread([this] { EXPECT_TRUE(agent_->Run().ok()); });
    AwaitTurns();
  }
  // Several of the agent's turns have passed.
  void AwaitTurns() {
    const int before = clock_.looks();
    EXPECT_TRUE(WaitUntil([&] { return clock_.looks() > before + kManyLooks; }));
  }
  void StartEspalierd() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
    builder.RegisterService(&espalierd_);
    server_ = builder.BuildAndStart();
    ASSERT_TRUE(server_);
  }
  std::string address() const { return "unix:" + folder_.path("socket"); }
  bool GenerationLives() { return SignalSession(*daemon_, 0) > 0; }

  ScratchFolder folder_;
  LeapingClock clock_;
  Listener espalierd_;
  ScriptedSleep::Script sleep_;
  std::atomic<int> awake_{0};
  std::unique_ptr<grpc::Server> server_;
  std::optional<ProcessIdentity> daemon_;
  std::unique_ptr<Agent> agent_;
  std::thread runs_;
};

TEST_F(AnAgent, ThatSleptDoesNotCountThatAsTimeAlone) {
  LeaveGeneration();
  StartAgent();
  clock_.Leap(absl::Hours(13));
  AwaitTurns();
  EXPECT_TRUE(GenerationLives());
}

TEST_F(AnAgent, ThatIsAwakeAndAloneForTooLongEndsItsGenerations) {
  LeaveGeneration();
  StartAgent();
  clock_.LeapAtEachLook(absl::Seconds(1));
  EXPECT_TRUE(WaitUntil([this] { return !GenerationLives(); }));
}

TEST_F(AnAgent, SaysInItsHelloWhatIsSoWhenItConnects) {
  StartAgent();
  clock_.Leap(absl::Hours(2));
  const absl::Time connected = clock_.Now();
  StartEspalierd();
  ASSERT_TRUE(WaitUntil([this] { return espalierd_.hello().has_value(); }));
  EXPECT_GE(espalierd_.hello()->report().unix_seconds(),
            absl::ToDoubleSeconds(connected - absl::UnixEpoch()));
}

TEST_F(AnAgent, ThatIsAboutToSleepSaysSoAndLetsItBeWhenNothingRunsThereAnyMore) {
  LeaveGeneration();
  StartEspalierd();
  StartAgent();
  ASSERT_TRUE(WaitUntil([this] { return espalierd_.hello().has_value(); }));
  sleep_.about_to_sleep = true;
  ASSERT_TRUE(WaitUntil([this] { return espalierd_.report().condition().about_to_sleep(); }));
  AwaitTurns();
  EXPECT_FALSE(sleep_.allowed) << "a generation runs";
  espalierd_.End(NameOf({JobId("job-1"), Generation(3)}));
  EXPECT_TRUE(WaitUntil([this] { return sleep_.allowed.load(); }));
  EXPECT_FALSE(GenerationLives());
  sleep_.about_to_sleep = false;
  EXPECT_TRUE(WaitUntil([this] { return !espalierd_.report().condition().about_to_sleep(); }));
}

// Its workers, which kept the machine awake, are gone, and the job may go on here in a moment.
TEST_F(AnAgent, KeepsTheMachineAwakeForAWhileAfterAGeneration) {
  LeaveGeneration();
  StartEspalierd();
  StartAgent();
  ASSERT_TRUE(WaitUntil([this] { return espalierd_.hello().has_value(); }));
  AwaitTurns();
  EXPECT_EQ(awake_, 0) << "that is for its workers to say, who may be paused";
  espalierd_.End(NameOf({JobId("job-1"), Generation(3)}));
  EXPECT_TRUE(WaitUntil([this] { return awake_ == 1; }));
  clock_.Leap(absl::Minutes(5));
  EXPECT_TRUE(WaitUntil([this] { return awake_ == 0; }));
}

TEST_F(AnAgent, ThatIsAboutToSleepWaitsForNobodyWhileItIsAlone) {
  LeaveGeneration();
  StartAgent();
  sleep_.about_to_sleep = true;
  EXPECT_TRUE(WaitUntil([this] { return sleep_.allowed.load(); }));
  EXPECT_TRUE(GenerationLives());
}

TEST_F(AnAgent, StopsWhileNobodyAnswers) {
  StartAgent();
  agent_->Stop();
  runs_.join();
}

absl::Duration PauseAfter(int times, const absl::Status& ended) {
  absl::Duration pause = NextPause(absl::ZeroDuration(), ended, /*was_welcomed=*/true);
  for (int i = 0; i < times; ++i) pause = NextPause(pause, ended, /*was_welcomed=*/false);
  return pause;
}

TEST(NextPause, IsAMinuteInTheEndWhereAPersonHasToMendIt) {
  for (const absl::Status& refusal :
       {absl::UnauthenticatedError("node mini was forgotten"), absl::NotFoundError("no node")}) {
    EXPECT_EQ(PauseAfter(100, refusal), absl::Minutes(1));
    EXPECT_LT(PauseAfter(1, refusal), absl::Seconds(1)) << "it may be mended at once";
  }
}

TEST(NextPause, StaysShortWhileEspalierdMayComeBack) {
  EXPECT_EQ(PauseAfter(100, absl::UnavailableError("nobody listens")), absl::Seconds(2));
}

TEST(NextPause, IsShortAgainWhenEspalierdIsThereAfterARefusal) {
  const absl::Duration minute = PauseAfter(100, absl::NotFoundError("no node"));
  EXPECT_LE(NextPause(minute, absl::UnavailableError("x"), false), absl::Seconds(2));
  EXPECT_LT(NextPause(minute, absl::UnavailableError("x"), true), absl::Seconds(1));
}

}  // namespace
}  // namespace espalier
