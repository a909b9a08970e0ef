#include "worker/control/attach_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "tests/worker/control/fake_coordinator.h"

namespace espalier {
namespace {

using testing::HasSubstr;
using Body = v1::AttachRequest::BodyCase;

constexpr absl::Duration kLong = absl::Seconds(30);

v1::Welcome WelcomeWithDirective(int64_t number) {
  v1::Welcome welcome;
  welcome.set_job_id("job-1");
  welcome.set_generation(3);
  welcome.mutable_spec()->mutable_health()->set_failure_timeout_seconds(0.4);
  welcome.mutable_directive()->set_number(number);
  return welcome;
}

v1::Directive DirectiveNumber(int64_t number) {
  v1::Directive directive;
  directive.set_number(number);
  return directive;
}

v1::AttachRequest StepMessage(int64_t step) {
  v1::AttachRequest message;
  message.mutable_step()->set_step(step);
  return message;
}

v1::AttachRequest ReadyMessage() {
  v1::AttachRequest message;
  message.mutable_ready()->set_next_step(7);
  return message;
}

v1::Finished Completed() {
  v1::Finished finished;
  finished.set_outcome(v1::OUTCOME_COMPLETED);
  return finished;
}

class AttachClientTest : public testing::Test {
 protected:
  std::unique_ptr<ControlClient> NewClient() {
    AttachOptions options;
    options.target.address = coordinator_.address();
    options.on_fenced = [this](const absl::Status&) { fenced_.Notify(); };
    return *MakeAttachClient(std::move(options), RealClock());
  }
  std::unique_ptr<ControlClient> AttachedClient() {
    std::unique_ptr<ControlClient> client = NewClient();
    v1::Hello hello;
    hello.set_job_id("job-1");
    hello.set_generation(3);
    EXPECT_TRUE(client->Attach(hello, kLong).ok());
    return client;
  }

  FakeCoordinator coordinator_{WelcomeWithDirective(5)};
  absl::Notification fenced_;
};

TEST_F(AttachClientTest, TheWelcomeAnswersWithSpecAndDirective) {
  const std::unique_ptr<ControlClient> client = NewClient();
  const absl::StatusOr<v1::Welcome> welcome = client->Attach(v1::Hello(), kLong);
  ASSERT_TRUE(welcome.ok()) << welcome.status();
  EXPECT_EQ(welcome->job_id(), "job-1");
  EXPECT_EQ(client->directive().number(), 5);
}

TEST_F(AttachClientTest, AnUnreachableCoordinatorIsNamed) {
  coordinator_.Stop();
  const absl::Status status = NewClient()->Attach(v1::Hello(), absl::Milliseconds(300)).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(coordinator_.address()));
}

TEST_F(AttachClientTest, WhatAWorkerWaitsForIsSaidBeforeItGivesUp) {
  coordinator_.Stop();
  AttachOptions options;
  options.target.address = coordinator_.address();
  options.patience = absl::Milliseconds(10);
  const std::unique_ptr<ControlClient> client = *MakeAttachClient(std::move(options), RealClock());
  testing::internal::CaptureStderr();
  EXPECT_FALSE(client->Attach(v1::Hello(), absl::Milliseconds(300)).ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("waits for espalierd at " + coordinator_.address() + " to answer"));
}

v1::Welcome WelcomeWithLease(double seconds) {
  v1::Welcome welcome = WelcomeWithDirective(5);
  welcome.set_lease_seconds(seconds);
  return welcome;
}

TEST_F(AttachClientTest, AWorkerThatIsToldToWaitDoesSoForLongerThanItsTimeout) {
  constexpr absl::Duration kTimeout = absl::Seconds(4);  // more than the longest pause
  coordinator_.Refuse(absl::AbortedError("job job-1 waits for its last mpirun"));
  std::thread later([&] {
    absl::SleepFor(kTimeout + absl::Milliseconds(200));
    coordinator_.Refuse(absl::OkStatus());
  });
  const auto welcome = NewClient()->Attach(v1::Hello(), kTimeout);
  later.join();
  EXPECT_TRUE(welcome.ok()) << welcome.status();
}

TEST_F(AttachClientTest, WithoutALeaseNoneRunsOut) {
  EXPECT_EQ(AttachedClient()->WaitForLease(absl::ZeroDuration()).value(), true);
}

// It counts from the beat, so what was answered long ago renews nothing.
TEST_F(AttachClientTest, ALeaseEndsUnlessANewBeatIsAnswered) {
  coordinator_.ChangeWelcome(WelcomeWithLease(0.001));
  const std::unique_ptr<ControlClient> client = AttachedClient();
  while (*client->WaitForLease(absl::ZeroDuration())) absl::SleepFor(absl::Milliseconds(1));
  int64_t beat = 0;
  ASSERT_TRUE(coordinator_.WaitFor([&](const FakeCoordinator::Messages& messages) {
    for (const v1::AttachRequest& message : messages) {
      if (message.has_progress()) beat = message.progress().beat();
    }
    return beat != 0;
  }));
  coordinator_.Renew(beat - absl::ToInt64Nanoseconds(absl::Hours(1)));
  coordinator_.Send(DirectiveNumber(6));
  ASSERT_TRUE(client->WaitForDirectiveAfter(5, kLong));
  EXPECT_EQ(client->WaitForLease(absl::ZeroDuration()).value(), false);
  coordinator_.Renew(beat + absl::ToInt64Nanoseconds(absl::Hours(1)));
  EXPECT_EQ(client->WaitForLease(kLong).value(), true);
}

TEST_F(AttachClientTest, AFencedWorkerWaitsForNoLease) {
  coordinator_.ChangeWelcome(WelcomeWithLease(0.001));
  const std::unique_ptr<ControlClient> client = AttachedClient();
  coordinator_.Refuse(absl::FailedPreconditionError("generation 3 has ended"));
  absl::StatusOr<bool> leased = true;
  while (leased.ok()) leased = client->WaitForLease(absl::Seconds(1));
  EXPECT_TRUE(absl::IsFailedPrecondition(leased.status())) << leased.status();
}

// As after espalierd was away for longer than the lease.
TEST_F(AttachClientTest, AWelcomeToANewStreamRenewsTheLease) {
  coordinator_.ChangeWelcome(WelcomeWithLease(0.001));
  const std::unique_ptr<ControlClient> client = AttachedClient();
  while (*client->WaitForLease(absl::ZeroDuration())) absl::SleepFor(absl::Milliseconds(1));
  coordinator_.Stop();
  coordinator_.ChangeWelcome(WelcomeWithLease(3600));
  coordinator_.Start();
  EXPECT_EQ(client->WaitForLease(kLong).value(), true);
}

// Of a machine that sleeps again and again.
class LeapingClock : public Clock {
 public:
  std::atomic<bool> leaps{false};
  absl::Time Now() override { return RealClock().Now(); }
  absl::Duration Monotonic() override {
    if (leaps) slept_hours_ += 13;
    return RealClock().Monotonic() + absl::Hours(slept_hours_.load());
  }
  void Sleep(absl::Duration duration) override { RealClock().Sleep(duration); }

 private:
  std::atomic<int64_t> slept_hours_{0};
};

TEST_F(AttachClientTest, SleepIsNoWaitForALease) {
  coordinator_.ChangeWelcome(WelcomeWithLease(0.001));
  LeapingClock clock;
  AttachOptions options;
  options.target.address = coordinator_.address();
  const std::unique_ptr<ControlClient> client = *MakeAttachClient(std::move(options), clock);
  ASSERT_TRUE(client->Attach(v1::Hello(), kLong).ok());
  while (*client->WaitForLease(absl::ZeroDuration())) absl::SleepFor(absl::Milliseconds(1));
  clock.leaps = true;
  for (int wait = 0; wait < 5; ++wait) {
    const absl::StatusOr<bool> leased = client->WaitForLease(absl::Milliseconds(1));
    ASSERT_TRUE(leased.ok()) << leased.status();
    EXPECT_FALSE(*leased);
  }
}

TEST_F(AttachClientTest, ReportsArriveInOrder) {
  const std::unique_ptr<ControlClient> client = AttachedClient();
  client->Report(ReadyMessage());
  for (int step = 0; step < 100; ++step) client->Report(StepMessage(step));
  ASSERT_TRUE(coordinator_.WaitForCount(Body::kStep, 100));
  int64_t next = 0;
  bool ready = false;
  for (const v1::AttachRequest& message : coordinator_.messages()) {
    ready = ready || message.has_ready();
    if (!message.has_step()) continue;
    EXPECT_TRUE(ready);
    EXPECT_EQ(message.step().step(), next++);
  }
}

TEST_F(AttachClientTest, ProgressIsLiveness_ItIsToldHoweverManyReportsAreWritten) {
  const std::unique_ptr<ControlClient> client = AttachedClient();
  client->progress().work = 41;
  absl::Notification stop;
  std::thread trainer([&] {
    for (int64_t step = 0; !stop.HasBeenNotified(); ++step) {
      client->Report(StepMessage(step));
      client->progress().Worked();
      stop.WaitForNotificationWithTimeout(absl::Milliseconds(1));
    }
  });
  EXPECT_TRUE(coordinator_.WaitFor([](const FakeCoordinator::Messages& messages) {
    return CountOf(messages, Body::kProgress) >= 4 && CountOf(messages, Body::kStep) > 0;
  }));
  stop.Notify();
  trainer.join();
}

TEST_F(AttachClientTest, WaitingForADirectiveEndsWhenANewerOneArrives) {
  const std::unique_ptr<ControlClient> client = AttachedClient();
  EXPECT_FALSE(client->WaitForDirectiveAfter(5, absl::Milliseconds(1)));
  coordinator_.Send(DirectiveNumber(6));
  EXPECT_TRUE(client->WaitForDirectiveAfter(5, kLong));
  EXPECT_EQ(client->directive().number(), 6);
}

TEST_F(AttachClientTest, AnOlderDirectiveIsIgnored) {
  const std::unique_ptr<ControlClient> client = AttachedClient();
  coordinator_.Send(DirectiveNumber(4));
  coordinator_.Send(DirectiveNumber(6));
  ASSERT_TRUE(client->WaitForDirectiveAfter(5, kLong));
  coordinator_.Send(DirectiveNumber(4));
  coordinator_.Send(DirectiveNumber(7));
  ASSERT_TRUE(client->WaitForDirectiveAfter(6, kLong));
  EXPECT_EQ(client->directive().number(), 7);
}

TEST_F(AttachClientTest, AFencedWorkerIsRefusedAtItsIntroduction) {
  coordinator_.Refuse(absl::FailedPreconditionError("generation 3 has ended"));
  const std::unique_ptr<ControlClient> client = NewClient();
  EXPECT_EQ(client->Attach(v1::Hello(), kLong).status(),
            absl::FailedPreconditionError("generation 3 has ended"));
}

TEST_F(AttachClientTest, AFencedWorkerLearnsItWhileItWaits) {
  const std::unique_ptr<ControlClient> client = AttachedClient();
  coordinator_.Refuse(absl::FailedPreconditionError("generation 3 has ended"));
  EXPECT_FALSE(client->WaitForDirectiveAfter(5, kLong));
  EXPECT_TRUE(absl::IsFailedPrecondition(client->status())) << client->status();
  fenced_.WaitForNotification();
}

TEST_F(AttachClientTest, AWelcomeToAnotherGenerationEndsATrainingWorker) {
  const std::unique_ptr<ControlClient> client = AttachedClient();
  v1::Welcome another = WelcomeWithDirective(5);
  another.set_generation(1);
  coordinator_.Stop();
  coordinator_.ChangeWelcome(another);
  coordinator_.Start();
  ASSERT_TRUE(fenced_.WaitForNotificationWithTimeout(kLong));
  EXPECT_TRUE(absl::IsFailedPrecondition(client->status())) << client->status();
  EXPECT_THAT(std::string(client->status().message()),
              HasSubstr("generation 1 of job job-1 with directive 5, but it trains generation 3"));
}

TEST_F(AttachClientTest, AWelcomeFromBeforeTheNewestDirectiveEndsATrainingWorker) {
  const std::unique_ptr<ControlClient> client = AttachedClient();
  coordinator_.Stop();
  coordinator_.ChangeWelcome(WelcomeWithDirective(1));
  coordinator_.Start();
  ASSERT_TRUE(fenced_.WaitForNotificationWithTimeout(kLong));
  EXPECT_TRUE(absl::IsFailedPrecondition(client->status())) << client->status();
}

TEST_F(AttachClientTest, OtherRefusalsDoNotEndATrainingWorker) {
  const std::unique_ptr<ControlClient> client = AttachedClient();
  coordinator_.Refuse(absl::UnauthenticatedError("the certificate has expired"));
  ASSERT_TRUE(coordinator_.WaitForCount(Body::kHello, 2));
  coordinator_.Refuse(absl::OkStatus());
  client->Report(StepMessage(0));
  EXPECT_TRUE(coordinator_.WaitForCount(Body::kStep, 1));
  EXPECT_TRUE(client->status().ok()) << client->status();
}

TEST_F(AttachClientTest, ARestartOfTheCoordinatorLosesNothingThatMatters) {
  const std::unique_ptr<ControlClient> client = AttachedClient();
  client->Report(ReadyMessage());
  ASSERT_TRUE(coordinator_.WaitForCount(Body::kReady, 1));
  coordinator_.Stop();
  v1::AttachRequest checkpoint;
  checkpoint.mutable_checkpoint()->set_step(10);
  client->Report(checkpoint);
  coordinator_.Start();
  EXPECT_TRUE(coordinator_.WaitForCount(Body::kHello, 2)) << "says hello again";
  EXPECT_TRUE(coordinator_.WaitForCount(Body::kReady, 2)) << "tells again where it stands";
  EXPECT_TRUE(coordinator_.WaitForCount(Body::kCheckpoint, 1));
  // A step report that was written as the stream broke may be lost; the next one says where the
  // worker is.
  client->Report(StepMessage(11));
  EXPECT_TRUE(coordinator_.WaitForCount(Body::kStep, 1));
  EXPECT_TRUE(client->status().ok());
}

TEST_F(AttachClientTest, TheLastMessageArrivesBeforeFinishReturns) {
  const std::unique_ptr<ControlClient> client = AttachedClient();
  for (int step = 0; step < 50; ++step) client->Report(StepMessage(step));
  ASSERT_TRUE(client->Finish(Completed(), kLong).ok());
  const FakeCoordinator::Messages messages = coordinator_.messages();
  EXPECT_EQ(CountOf(messages, Body::kStep), 50);
  ASSERT_TRUE(messages.back().has_finished());
  EXPECT_EQ(messages.back().finished().outcome(), v1::OUTCOME_COMPLETED);
}

TEST_F(AttachClientTest, FinishWaitsForACoordinatorThatComesBack) {
  const std::unique_ptr<ControlClient> client = AttachedClient();
  coordinator_.Stop();
  std::thread restart([&] { coordinator_.Start(); });
  EXPECT_TRUE(client->Finish(Completed(), kLong).ok());
  restart.join();
  EXPECT_TRUE(coordinator_.messages().back().has_finished());
}

TEST_F(AttachClientTest, FinishGivesUpInTimeWhenNobodyListens) {
  const std::unique_ptr<ControlClient> client = AttachedClient();
  coordinator_.Stop();
  EXPECT_TRUE(absl::IsDeadlineExceeded(client->Finish(Completed(), absl::Milliseconds(100))));
}

}  // namespace
}  // namespace espalier
