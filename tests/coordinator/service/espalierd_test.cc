// espalierd, mpirun and (stub) workers as the processes they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "common/base/random.h"
#include "common/config/job_file.h"
#include "coordinator/journal/state_lock.h"
#include "tests/coordinator/service/espalierd_process.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Espalierd : public ::testing::Test {
 protected:
  template <typename Request, typename Response>
  using Method = grpc::Status (v1::OperatorService::Stub::*)(grpc::ClientContext*, const Request&,
                                                             Response*);
  // Calls a verb on a job.
  template <typename Request, typename Response>
  grpc::Status Call(Method<Request, Response> method, Request request, const std::string& job) {
    BoundedContext context;
    Response response;
    request.set_job_id(job);
    return (daemon_.stub().*method)(&context, request, &response);
  }
  grpc::Status Pause(const std::string& job, bool hard) {
    v1::PauseRequest request;
    request.set_hard(hard);
    return Call(&v1::OperatorService::Stub::Pause, request, job);
  }
  grpc::Status Resume(const std::string& job) {
    return Call(&v1::OperatorService::Stub::Resume, v1::ResumeRequest(), job);
  }

  EspalierdProcess daemon_;
};

TEST_F(Espalierd, RunsAJobOnTheRealMpirunToItsEnd) {
  daemon_.Start();
  const std::string job = daemon_.Submit({.steps = 60});
  const v1::JobStatus status = daemon_.Await(job, v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(status.step(), 60);
  EXPECT_EQ(status.generation(), 1);
  EXPECT_EQ(status.restarts(), 0);
  EXPECT_EQ(status.last_checkpoint().step(), 60);
  const std::string log = daemon_.folder().Read("state/jobs/" + job + "/logs/gen-0001.log");
  EXPECT_THAT(log, AllOf(HasSubstr("[rank 0] finished at step 60"),
                         HasSubstr("[rank 1] finished at step 60")));
  absl::StatusOr<v1::JobSpec> copy = LoadJobFile(daemon_.state("jobs/" + job + "/job.yaml"));
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->train().steps(), 60);
}

TEST_F(Espalierd, RefusesABadSpecAndKeepsNothingOfIt) {
  daemon_.Start();
  v1::SubmitRequest request = daemon_.MakeSubmission({});
  request.mutable_spec()->mutable_train()->set_global_batch(-5);
  BoundedContext context;
  v1::SubmitResponse response;
  const grpc::Status status = daemon_.stub().Submit(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("global_batch"), HasSubstr("-5")));
  EXPECT_FALSE(std::filesystem::exists(daemon_.state("jobs")));
}

TEST_F(Espalierd, RefusesAJobWhoseDataIsNotThere) {
  daemon_.Start();
  v1::SubmitRequest request = daemon_.MakeSubmission({});
  request.mutable_spec()->mutable_data()->set_path("/no/data");
  BoundedContext context;
  v1::SubmitResponse response;
  const grpc::Status status = daemon_.stub().Submit(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("data.path"), HasSubstr("/no/data")));
  EXPECT_FALSE(std::filesystem::exists(daemon_.state("jobs")));
}

TEST_F(Espalierd, RefusesAJobThatWritesWhereItMayNot) {
  daemon_.Start();
  v1::SubmitRequest request = daemon_.MakeSubmission({});
  request.mutable_spec()->mutable_checkpoint()->set_directory(daemon_.folder().path("elsewhere"));
  BoundedContext context;
  v1::SubmitResponse response;
  const grpc::Status status = daemon_.stub().Submit(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(),
              AllOf(HasSubstr("checkpoint.directory"), HasSubstr("writable_folders")));
  EXPECT_FALSE(std::filesystem::exists(daemon_.state("jobs")));
}

TEST_F(Espalierd, WritesToAFolderThatTheClusterFileAllows) {
  daemon_.Allow("models");
  daemon_.Start();
  v1::SubmitRequest request = daemon_.MakeSubmission({.steps = 20});
  request.mutable_spec()->mutable_checkpoint()->set_directory(daemon_.folder().path("models/a"));
  BoundedContext context;
  v1::SubmitResponse response;
  ASSERT_TRUE(daemon_.stub().Submit(&context, request, &response).ok());
  daemon_.Await(response.job_id(), v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(daemon_.folder().Read("models/a/step"), "20");
}

TEST_F(Espalierd, PausesSoftAndHardAndResumes) {
  daemon_.Start();
  const std::string job = daemon_.Submit({.steps = 600});
  daemon_.AwaitStep(job, 10);
  ASSERT_TRUE(Pause(job, false).ok());
  const v1::JobStatus soft = daemon_.Await(job, v1::JOB_STATE_PAUSED_SOFT);
  EXPECT_EQ(soft.ranks_size(), 2) << "they stay in memory";
  ASSERT_TRUE(Resume(job).ok());
  daemon_.AwaitStep(job, soft.step() + 10);
  EXPECT_EQ(daemon_.Status(job)->generation(), 1);
  ASSERT_TRUE(Pause(job, true).ok());
  const v1::JobStatus hard = daemon_.Await(job, v1::JOB_STATE_PAUSED_HARD);
  EXPECT_EQ((*SqliteJournal::Open(daemon_.state("journal.sqlite")))->Load()->launches.size(), 0u)
      << "nothing runs";
  ASSERT_TRUE(Resume(job).ok());
  const v1::JobStatus done = daemon_.Await(job, v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(done.generation(), 2);
  EXPECT_EQ(done.restarts(), 0);
}

TEST_F(Espalierd, ACrashedWorkerCostsOneGeneration) {
  daemon_.Start();
  const std::string job = daemon_.Submit({.steps = 600, .data = "crash-at:70"});
  const v1::JobStatus done = daemon_.Await(job, v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(done.generation(), 2);
  EXPECT_EQ(done.restarts(), 1);
  EXPECT_THAT(daemon_.folder().Read("state/jobs/" + job + "/logs/gen-0002.log"),
              ::testing::ContainsRegex("starts from step [1-9][0-9]*"));
}

// From the report of a worker to its shard, and through the end of espalierd.
TEST_F(Espalierd, SharesFollowThePaceOfTheWorkers) {
  daemon_.Start();
  const std::string job = daemon_.Submit({.steps = 100000, .data = "slow"});
  v1::JobStatus status;
  EXPECT_TRUE(WaitUntil([&] {
    status = daemon_.Status(job).value_or(v1::JobStatus());
    return status.ranks_size() == 2 && status.ranks(0).last_step().shard() > 20;
  })) << status.ShortDebugString();
  const v1::ShardPlan plan = status.plan();
  EXPECT_EQ(plan.sequences(0) + plan.sequences(1), 32);
  EXPECT_THAT(plan.reason(), HasSubstr("a step takes 0.22 s in place of 0.32 s"));
  EXPECT_LT(status.imbalance(), 0.05);
  daemon_.Kill();
  daemon_.Start();
  EXPECT_EQ(daemon_.Status(job)->plan().number(), plan.number());
  ASSERT_TRUE(Call(&v1::OperatorService::Stub::Cancel, v1::CancelRequest(), job).ok());
  daemon_.Await(job, v1::JOB_STATE_CANCELLED);
}

TEST_F(Espalierd, CancelEndsTheProcesses) {
  daemon_.Start();
  const std::string job = daemon_.Submit({.steps = 100000});
  daemon_.AwaitStep(job, 5);
  ASSERT_TRUE(Call(&v1::OperatorService::Stub::Cancel, v1::CancelRequest(), job).ok());
  daemon_.Await(job, v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(Resume(job).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(Espalierd, ASecondOneOnTheSameStateIsRefused) {
  daemon_.Start();
  absl::StatusOr<StateLock> second =
      StateLock::Take(daemon_.state(""), RealClock(), absl::ZeroDuration());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another espalierd (process "));
}

TEST_F(Espalierd, AHangUpDoesNotEndIt) {
  daemon_.Start();
  daemon_.Hangup();
  EXPECT_TRUE(WaitUntil(
      [&] { return daemon_.log().find("asked to load the certificates") != std::string::npos; }));
  daemon_.Submit({.steps = 1});
  EXPECT_TRUE(daemon_.running());
  EXPECT_EQ(daemon_.Terminate(), 0);
}

TEST_F(Espalierd, StoppedCleanlyItLeavesTheGenerationToTheNextOne) {
  daemon_.Start();
  const std::string job = daemon_.Submit({.steps = 400});
  daemon_.AwaitStep(job, 10);
  EXPECT_EQ(daemon_.Terminate(), 0);
  daemon_.Start();
  const v1::JobStatus done = daemon_.Await(job, v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(done.generation(), 1);
  EXPECT_EQ(done.restarts(), 0);
}

TEST_F(Espalierd, InvariantJournalThenAct_KilledWhileAJobRunsTheGenerationDoesNotNotice) {
  SplitMix64 random(7);
  daemon_.Start();
  const std::string job = daemon_.Submit({.steps = 600});
  daemon_.AwaitStep(job, 1);
  for (int round = 0; round < 6; ++round) {
    RealClock().Sleep(absl::Milliseconds(random.Below(200)));
    daemon_.Kill();
    daemon_.Start();
  }
  const v1::JobStatus done = daemon_.Await(job, v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(done.step(), 600);
  EXPECT_EQ(done.generation(), 1) << daemon_.log();
  EXPECT_EQ(done.restarts(), 0);
  EXPECT_THAT(daemon_.folder().Read("state/jobs/" + job + "/logs/gen-0001.log"),
              HasSubstr("[rank 0] finished at step 600"));
}

// Killed anywhere between a submission and the first steps: the job is there or it is not, it runs
// to its end, and no process is left that no journal knows.
TEST_F(Espalierd, InvariantJournalThenAct_KilledWhileLaunchingEveryJobIsStillRunOnce) {
  SplitMix64 random(11);
  for (int round = 0; round < 8; ++round) {
    daemon_.Start();
    const std::string request = "request-" + std::to_string(round);
    std::thread submission([&] {
      BoundedContext context;
      v1::SubmitResponse response;
      daemon_.stub().Submit(&context, daemon_.MakeSubmission({.steps = 20, .request_id = request}),
                            &response);
    });
    RealClock().Sleep(absl::Milliseconds(random.Below(60)));
    daemon_.Kill();
    submission.join();
    daemon_.Start();
    const std::string job = daemon_.Submit({.steps = 20, .request_id = request});
    daemon_.Await(job, v1::JOB_STATE_COMPLETED);
    daemon_.Terminate();
  }
  daemon_.Start();
  BoundedContext context;
  v1::ListJobsResponse jobs;
  ASSERT_TRUE(daemon_.stub().ListJobs(&context, v1::ListJobsRequest(), &jobs).ok());
  EXPECT_EQ(jobs.jobs_size(), 8) << "each request made one job";
}

}  // namespace
}  // namespace espalier
