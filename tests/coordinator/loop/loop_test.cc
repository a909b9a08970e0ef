#include "coordinator/loop/loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "coordinator/journal/record.h"
#include "tests/coordinator/loop/loop_world.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kQueuedAndLaunched[] = "journal state 1 state 2";

TEST(Loop, InvariantJournalThenAct_ASubmissionIsJournaledThenLaunchedThenAnswered) {
  LoopWorld world;
  world.Submit();
  world.Turn();
  EXPECT_EQ(world.TakeTrace(),
            std::string(kQueuedAndLaunched) + "; prepare 1; journal pid 1001; release 1; reply OK");
  EXPECT_EQ(world.Record().state, JobState::kLaunching);
}

TEST(Loop, InvariantJournalThenAct_NothingIsDoneWhileTheJournalIsFull) {
  LoopWorld world;
  world.journal.full = true;
  int sleeps = 0;
  world.clock.on_sleep = [&] {
    EXPECT_EQ(world.TakeTrace(), "") << "after " << sleeps << " attempts";
    if (++sleeps == 3) world.journal.full = false;
  };
  world.Submit();
  world.Turn();
  EXPECT_EQ(sleeps, 3);
  EXPECT_THAT(world.TakeTrace(), ::testing::StartsWith(kQueuedAndLaunched));
  EXPECT_EQ(world.observer.stats.journal_failures, 3);
}

TEST(Loop, InvariantJournalThenAct_StoppedWithAFullJournalItHasDoneNothing) {
  LoopWorld world;
  world.journal.full = true;
  world.clock.on_sleep = [&] { world.loop->Stop(); };
  world.Submit();
  world.Turn();
  EXPECT_EQ(world.TakeTrace(), "");
  EXPECT_TRUE(world.loop->Run().ok());
  EXPECT_EQ(world.TakeTrace(), "reply UNAVAILABLE");
}

// Nothing that espalierd could do would mend it, and what was decided may not be acted on.
TEST(Loop, AJournalThatCannotBeWrittenAgainEndsTheRunWithItsReason) {
  LoopWorld world;
  world.journal.failure = absl::PermissionDeniedError("attempt to write a readonly database");
  int sleeps = 0;
  world.clock.on_sleep = [&] {
    if (++sleeps > 3) world.loop->Stop();
  };
  world.Submit();
  const absl::Status status = world.loop->Run();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("readonly database"));
  EXPECT_EQ(sleeps, 0);
  EXPECT_EQ(world.TakeTrace(), "reply UNAVAILABLE");
}

TEST(Loop, AnErrorOfTheJournalsDiskIsGivenSomeTimeToPass) {
  LoopWorld world;
  world.journal.failure = absl::InternalError("disk I/O error");
  int sleeps = 0;
  world.clock.on_sleep = [&] {
    if (++sleeps == 5) world.journal.failure = absl::OkStatus();
  };
  world.Submit();
  world.Turn();
  EXPECT_EQ(sleeps, 5);
  EXPECT_THAT(world.TakeTrace(), ::testing::StartsWith(kQueuedAndLaunched));
  world.journal.failure = absl::InternalError("disk I/O error");
  world.clock.on_sleep = {};
  world.Submit("another");
  EXPECT_TRUE(absl::IsInternal(world.loop->Run()));
}

TEST(Loop, AllThatWaitsIsJournaledInOneTransaction) {
  LoopWorld world;
  for (int i = 0; i < 5; ++i) world.Submit("request-" + std::to_string(i));
  world.Turn();
  const std::string trace = world.TakeTrace();
  EXPECT_THAT(trace, ::testing::StartsWith("journal state 1 state 2 state 1 state 1"));
  EXPECT_EQ(world.observer.state.jobs.size(), 5u);
}

// The first words of a mpirun of one rank that a person started.
v1::AttachRequest HelloByHand(const std::string& node) {
  v1::AttachRequest message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_world_size(1);
  hello.set_node(node);
  hello.set_external_id("mpirun-1");
  v1::JobSpec& spec = *hello.mutable_external_spec();
  spec.set_name("by-hand");
  spec.mutable_model()->set_preset("nano");
  spec.mutable_data()->set_path("/data");
  spec.mutable_launch()->set_mode(v1::LAUNCH_MODE_EXTERNAL);
  return message;
}

TEST(Loop, AgentsAreToldToDropTheMemoryOfJobsThatNobodyKnows) {
  LoopWorld world;
  AgentAttached hello{.stream = StreamId(50), .node = NodeName("left"), .instance = "a"};
  v1::WarmState& warm = *hello.report.add_warm();
  warm.set_job_id("old-7");
  warm.set_history(1);
  warm.set_step(500);
  world.inbox->Put(AgentInput{hello, nullptr});
  world.Turn();
  EXPECT_THAT(world.TakeTrace(), ::testing::HasSubstr("tell agent 50 to drop old-7 up to 1/500"));
}

TEST(Loop, WorkersAreWelcomedWithTheSpecAndTheJobRuns) {
  LoopWorld world;
  world.Submit();
  world.Turn();
  world.TakeTrace();
  world.AttachAll(1);
  EXPECT_THAT(world.TakeTrace(), HasSubstr("welcome 1; worker left pid 500"));
  const v1::Welcome& welcome = world.streams.last[StreamId(1)].welcome();
  EXPECT_EQ(welcome.spec().name(), "test");
  EXPECT_EQ(welcome.generation(), 1);
  EXPECT_EQ(welcome.checkpoint_directory(),
            world.folder.root() + "/jobs/" + world.job + "/checkpoints");
  EXPECT_EQ(world.Record().state, JobState::kRunning);
  EXPECT_EQ(world.taken, 4) << "every message was given back to its stream";
}

TEST(Loop, AWorkerOnANodeThatJoinedIsToldTheLimitOfItsInvitation) {
  LoopWorld world;
  NodeInvited invited{.token_sha256 = "0a"};
  invited.spec.set_name("macbook");
  invited.spec.set_address("10.77.0.2");
  invited.spec.set_memory_limit_bytes(int64_t{24} << 30);
  world.Ask(invited);
  world.Turn();
  world.Ask(NodeJoined{.node = NodeName("macbook"), .token_sha256 = "0a", .serial = "5e"});
  world.Turn();
  world.Say(1, HelloByHand("macbook"));
  world.Turn();
  EXPECT_EQ(world.streams.last[StreamId(1)].welcome().memory_limit_bytes(), int64_t{24} << 30);
}

TEST(Loop, AnOlderGenerationIsFenced) {
  LoopWorld world;
  world.Submit();
  world.Turn();
  v1::AttachRequest message;
  message.mutable_hello()->set_job_id(world.job);
  message.mutable_hello()->set_generation(0);
  message.mutable_hello()->set_world_size(2);
  message.mutable_hello()->set_node("left");
  world.Say(9, message);
  world.Turn();
  EXPECT_THAT(world.TakeTrace(), HasSubstr("close 9 FAILED_PRECONDITION"));
}

TEST(Loop, AHandStartedJobIsCheckedBeforeTheCoreSeesIt) {
  LoopWorld world;
  v1::AttachRequest message = HelloByHand("left");
  message.mutable_hello()->mutable_external_spec()->clear_data();
  world.Say(1, message);
  world.Turn();
  EXPECT_THAT(world.TakeTrace(), HasSubstr("close 1 FAILED_PRECONDITION")) << "it names no data";
  EXPECT_TRUE(world.observer.state.jobs.empty());
  world.Say(2, HelloByHand("left"));
  world.Turn();
  EXPECT_THAT(world.TakeTrace(), HasSubstr("welcome 2"));
  EXPECT_EQ(world.streams.last[StreamId(2)].welcome().spec().train().steps(), 1000)
      << "the defaults are filled in";
}

TEST(Loop, ALaunchThatFailsIsTriedAgain) {
  LoopWorld world;
  world.launcher.refusal = absl::NotFoundError("no mpirun");
  world.Submit();
  world.Turn();
  world.inbox->Wake();
  world.loop->Turn();
  EXPECT_THAT(world.Record().reason, HasSubstr("no mpirun"));
  world.launcher.refusal = absl::OkStatus();
  for (int i = 0; i < 20; ++i) world.Turn();
  EXPECT_THAT(world.TakeTrace(), HasSubstr("release 2"));
  EXPECT_EQ(world.Record().restarts, 1);
}

TEST(Loop, AnEndedGenerationLeavesTheJournalWithTheTransitionItCaused) {
  LoopWorld world;
  world.Submit();
  world.Turn();
  world.AttachAll(1);
  world.TakeTrace();
  world.launcher.ended = {{{JobId(world.job), Generation(1)}, "mpirun was killed by signal 9", {}}};
  for (int i = 0; i < 200; ++i) world.Turn();  // last words of the workers may be on their way
  EXPECT_THAT(world.TakeTrace(), HasSubstr("journal state 8 ended 1"));
  EXPECT_EQ(world.Record().generation.value(), 2);
}

// By which the ranks know each other; nobody else, nor another generation, may know it.
TEST(Loop, RanksOfAGenerationShareASecretThatNoOtherGenerationHas) {
  LoopWorld world;
  world.Submit();
  world.Turn();
  world.AttachAll(1);
  const auto secret = [&](int64_t stream) {
    return world.streams.welcomes[StreamId(stream)].world_secret();
  };
  const std::string first = secret(1);
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ(secret(2), first);
  world.Restart();
  world.AttachAll(1, /*offset=*/10);
  EXPECT_EQ(secret(11), first) << "after a restart of espalierd";
  world.launcher.ended = {{{JobId(world.job), Generation(1)}, "mpirun was killed by signal 9"}};
  for (int i = 0; i < 200; ++i) world.Turn();
  world.AttachAll(2, /*offset=*/20);
  EXPECT_EQ(secret(21).size(), 64u);
  EXPECT_NE(secret(21), first);
  LoopWorld other;
  other.Submit();
  other.Turn();
  other.AttachAll(1);
  EXPECT_NE(other.streams.welcomes[StreamId(1)].world_secret(), first) << "of another espalierd";
}

// Thousands of heartbeats a second would otherwise make the views of everything as often.
TEST(Loop, WhatHeartbeatsChangeIsPublishedAFewTimesASecondAndDecisionsAtOnce) {
  LoopWorld world;
  world.Submit();
  world.Turn();
  world.AttachAll(1);
  const int before = world.observer.publications;
  v1::AttachRequest message;
  for (int i = 1; i <= 50; ++i) {
    message.mutable_progress()->set_work(i);
    world.clock.Advance(absl::Milliseconds(1));
    world.Say(1, message);
    world.loop->Turn();
  }
  EXPECT_LE(world.observer.publications, before + 1);
  world.Turn();
  EXPECT_EQ(world.observer.state.jobs.at(JobId(world.job)).world.ranks[0].counters.work, 50);
  const int between = world.observer.publications;
  v1::PauseRequest pause;
  pause.set_job_id(world.job);
  world.Ask(pause);
  world.clock.Advance(absl::Milliseconds(1));
  world.loop->Turn();
  EXPECT_EQ(world.observer.publications, between + 1);
}

TEST(Loop, AJobOfAnOlderJournalGetsTheDefaultsOfFieldsThatItDoesNotKnow) {
  LoopWorld world;
  JobRecord record;
  record.id = JobId("old-1");
  record.number = 1;
  record.state = JobState::kPausedHard;
  record.spec.set_name("old");
  ASSERT_TRUE(world.journal.Commit({.jobs = {{record.id, EncodeJob(record)}}}).ok());
  world.Restart();
  const v1::JobSpec& spec = world.observer.state.jobs.at(record.id).record.spec;
  EXPECT_GT(spec.health().failure_timeout_seconds(), 0);
  EXPECT_GT(spec.launch().timeout_seconds(), 0);
}

TEST(Loop, ARestartedOneAdoptsWhatRunsAndWelcomesItsWorkersAgain) {
  LoopWorld world;
  world.Submit();
  world.Turn();
  world.AttachAll(1);
  world.TakeTrace();
  world.Restart();
  EXPECT_THAT(world.TakeTrace(), HasSubstr("adopt 1 pid 1001"));
  EXPECT_EQ(world.Record().state, JobState::kRunning) << "shown before any worker is back";
  world.AttachAll(1, 10);
  EXPECT_THAT(world.TakeTrace(), HasSubstr("welcome 11"));
  EXPECT_EQ(world.Record().generation.value(), 1);
  EXPECT_EQ(world.Record().restarts, 0);
}

TEST(Loop, ARestartedOneSaysWhichNodesOfWhatItAdoptsHaveAgents) {
  LoopWorld world;
  world.Submit();
  world.Turn();
  world.inbox->Put(AgentInput{AgentAttached{.stream = StreamId(90), .node = NodeName("left")}, {}});
  world.Turn();
  world.TakeTrace();
  world.Restart();
  EXPECT_THAT(world.TakeTrace(), HasSubstr("adopt 1 pid 1001; agent left"));
}

TEST(Loop, AGenerationSeenToEndIsKnownToHaveRunUntilItsEndIsDecided) {
  LoopWorld world;
  world.Submit();
  world.Turn();
  world.AttachAll(1);
  world.launcher.ended = {{{JobId(world.job), Generation(1)}, "mpirun exited with status 0", {}}};
  world.Turn();
  world.TakeTrace();
  world.Restart();
  EXPECT_THAT(world.TakeTrace(), HasSubstr("adopt 1 pid 1001"));
}

TEST(Loop, ARestartedOneLaunchesAgainWhatWasNeverReleased) {
  LoopWorld world;
  world.Submit();
  world.Turn();
  JournalContents contents = *world.journal.Load();
  ASSERT_TRUE(
      world.journal.MemoryJournal::Commit({.ended_launches = {{JobId(world.job), Generation(1)}}})
          .ok());
  world.TakeTrace();
  world.Restart();
  for (int i = 0; i < 20; ++i) world.Turn();
  const std::string trace = world.TakeTrace();
  EXPECT_THAT(trace, HasSubstr("release 2"));
  EXPECT_THAT(trace, Not(HasSubstr("adopt")));
}

TEST(Loop, TheJobFileIsKeptForPeople) {
  LoopWorld world;
  world.Submit();
  world.Turn();
  EXPECT_EQ(world.folder.Read("jobs/" + world.job + "/submitted.yaml"), "name: test\n");
  const auto copy = LoadJobFile(world.folder.path("jobs/" + world.job + "/job.yaml"));
  EXPECT_TRUE(copy.ok()) << copy.status();
}

// Else the second job would go on from the first one's checkpoints, and show its logs.
TEST(Loop, AJobOverALostJournalIsGivenNoNumberWhoseFolderIsThere) {
  LoopWorld world;
  for (const char* job : {"nano-gpt-7", "test-1", "notes", "notes-99999999999999999"}) {
    std::filesystem::create_directories(world.folder.path("jobs") + "/" + job);
  }
  world.Restart();
  world.Submit();
  world.Turn();
  EXPECT_EQ(world.job, "test-8");
}

TEST(Loop, ANumberIsNotGivenAgainThoughItsJobAndItsFolderAreForgotten) {
  LoopWorld world;
  world.Submit();
  world.Turn();
  ASSERT_EQ(world.job, "test-1");
  ASSERT_TRUE(world.journal.MemoryJournal::Commit({.forgotten = {JobId("test-1")}}).ok());
  std::filesystem::remove_all(world.folder.path("jobs"));
  world.Restart();
  world.Submit();
  world.Turn();
  EXPECT_EQ(world.job, "test-2");
}

TEST(Loop, AVerbOnAnUnknownJobIsAnsweredWithAnError) {
  LoopWorld world;
  v1::CancelRequest request;
  request.set_job_id("nobody");
  world.Ask(request);
  world.Turn();
  EXPECT_EQ(world.TakeTrace(), "reply NOT_FOUND");
}

TEST(Loop, TheObserverHearsOfEveryWorkerAndTransition) {
  LoopWorld world;
  world.Submit();
  world.Turn();
  EXPECT_THAT(world.observer.told, ::testing::Contains("changed " + world.job));
  world.observer.told.clear();
  world.AttachAll(1);
  EXPECT_THAT(world.observer.told,
              ::testing::IsSupersetOf({std::string("attached 0"), std::string("attached 1"),
                                       std::string("moved to RUNNING"), "changed " + world.job}));
}

TEST(Loop, StopEndsRunFromAnotherThreadAndAnswersWhatWaits) {
  LoopWorld world;
  std::thread runner([&] { EXPECT_TRUE(world.loop->Run().ok()); });
  world.loop->Stop();
  runner.join();
  EXPECT_FALSE(world.inbox->Put(StreamClosed{StreamId(1)})) << "nothing is taken any more";
}

}  // namespace
}  // namespace espalier
