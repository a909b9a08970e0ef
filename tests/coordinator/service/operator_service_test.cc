// The operator's calls against published views, with the test in the place of the loop.
#include "coordinator/service/operator_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "coordinator/journal/journal.h"
#include "tests/coordinator/scratch_folder.h"
#include "tests/coordinator/service/local_server.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Operating : public ::testing::Test {
 protected:
  Operating() {
    std::filesystem::create_directories(folder_.path("jobs/job-1/logs"));
    Publish({.id = "job-1", .state = v1::JOB_STATE_RUNNING, .step = 1});
  }
  ~Operating() override { pump_.Stop(); }

  struct Shown {
    std::string id;
    v1::JobState state = v1::JOB_STATE_RUNNING;
    int64_t step = 0;
  };
  void Publish(const Shown& shown) {
    auto view = std::make_shared<View>(*board_.Current());
    auto job = std::make_shared<JobView>();
    job->status.set_id(shown.id);
    job->status.set_name("nano");
    job->status.set_state(shown.state);
    job->status.set_step(shown.step);
    job->spec = std::make_shared<v1::JobSpec>();
    job->nodes = {"left", "right"};
    job->revision = ++revision_;
    if (shown.state >= v1::JOB_STATE_COMPLETED)
      job->final_at = RealClock().Monotonic() - absl::Minutes(1);
    view->jobs[JobId(shown.id)] = job;
    board_.Publish(view);
  }
  // As in the cluster file or joined: the view does not tell.
  void PublishNode(const std::string& name, const std::string& address) {
    auto view = std::make_shared<View>(*board_.Current());
    auto node = std::make_shared<v1::NodeStatus>();
    node->set_name(name);
    node->set_address(address);
    view->nodes.push_back(node);
    board_.Publish(view);
  }
  // A job whose data is nowhere on this machine.
  grpc::Status SubmitWithDataElsewhere() {
    v1::SubmitRequest request;
    request.mutable_spec()->set_name("new");
    request.mutable_spec()->mutable_model()->set_preset("nano");
    request.mutable_spec()->mutable_train()->set_steps(1);
    request.mutable_spec()->mutable_data()->set_path(folder_.path("elsewhere"));
    BoundedContext context;
    v1::SubmitResponse response;
    return stub_->Submit(&context, request, &response);
  }
  // Answers the next call as the loop would.
  OperatorCall NextCall() {
    std::vector<Input> inputs;
    while (inputs.empty()) inputs = inbox_.Take(absl::Seconds(60));
    EXPECT_EQ(inputs.size(), 1u);
    return std::get<OperatorCall>(std::move(inputs[0]));
  }

  ScratchFolder folder_;
  Inbox inbox_{{.calls_max = 1}};
  ViewBoard board_;
  MemoryJournal journal_;
  StreamPump pump_{RealClock(), {.interval = absl::Milliseconds(1), .streams_max = 2}};
  OperatorService service_{{.inbox = &inbox_,
                            .board = &board_,
                            .journal = &journal_,
                            .pump = &pump_,
                            .state_dir = folder_.root()}};
  LocalServer server_{&service_};
  std::unique_ptr<v1::OperatorService::Stub> stub_ =
      v1::OperatorService::NewStub(server_.Channel());
  BoundedContext context_;
  int64_t revision_ = 0;
};

TEST_F(Operating, AChangeIsAnsweredWhenTheLoopAnswers) {
  v1::PauseRequest request;
  request.set_job_id("nano");
  request.set_hard(true);
  std::thread loop([this] {
    OperatorCall call = NextCall();
    EXPECT_EQ(std::get<v1::PauseRequest>(call.request).job_id(), "job-1") << "the name is resolved";
    call.reply(Answer{.explanation = "frees all", .nothing_to_do = true});
  });
  v1::PauseResponse response;
  EXPECT_TRUE(stub_->Pause(&context_, request, &response).ok());
  EXPECT_EQ(response.explanation(), "frees all");
  EXPECT_TRUE(response.nothing_to_do());
  loop.join();
}

TEST_F(Operating, DataOfAJobIsAskedForHereUntilANodeElsewhereHasJoined) {
  PublishNode("here", "127.0.0.1");
  const grpc::Status refused = SubmitWithDataElsewhere();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("no prepared data can be read on this machine"));
  PublishNode("joined", "203.0.113.7");
  std::thread loop([this] { NextCall().reply(Answer{.job_id = "new-1"}); });
  const grpc::Status taken = SubmitWithDataElsewhere();
  EXPECT_TRUE(taken.ok()) << taken.error_message();
  if (!taken.ok()) inbox_.Put(OperatorCall{v1::PauseRequest(), [](absl::StatusOr<Answer>) {}});
  loop.join();
}

TEST_F(Operating, ARefusalOfTheLoopReachesTheCaller) {
  std::thread loop([this] { NextCall().reply(absl::FailedPreconditionError("it is completed")); });
  v1::ResumeRequest request;
  request.set_job_id("job-1");
  v1::ResumeResponse response;
  const grpc::Status status = stub_->Resume(&context_, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(), "it is completed");
  loop.join();
}

TEST_F(Operating, AnUnknownJobIsNotFoundWithoutAskingTheLoop) {
  v1::CancelRequest request;
  request.set_job_id("nobody");
  v1::CancelResponse response;
  const grpc::Status status = stub_->Cancel(&context_, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("nobody"), HasSubstr("espalier jobs")));
  EXPECT_EQ(inbox_.depth(), 0u);
}

TEST_F(Operating, ANameOfTwoJobsIsAmbiguous) {
  Publish({.id = "job-2"});
  v1::GetJobRequest request;
  request.set_job_id("nano");
  v1::GetJobResponse response;
  const grpc::Status status = stub_->GetJob(&context_, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("job-1"), HasSubstr("job-2")));
}

TEST_F(Operating, AFullInboxIsUnavailableAndNothingWaitsForEver) {
  inbox_.Put(OperatorCall{v1::PauseRequest(), [](absl::StatusOr<Answer>) {}});
  v1::PauseRequest request;
  request.set_job_id("job-1");
  v1::PauseResponse response;
  const grpc::Status status = stub_->Pause(&context_, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(Operating, EventsComeFromTheJournalAfterANumber) {
  ASSERT_TRUE(journal_
                  .Commit({.events = {{JobId("job-1"), 1, 10, 1, "queued"},
                                      {JobId("job-1"), 2, 20, 3, "running"}}})
                  .ok());
  v1::ListEventsRequest request;
  request.set_job_id("job-1");
  request.set_after(1);
  v1::ListEventsResponse response;
  ASSERT_TRUE(stub_->ListEvents(&context_, request, &response).ok());
  ASSERT_EQ(response.events_size(), 1);
  EXPECT_EQ(response.events(0).text(), "running");
  EXPECT_EQ(response.events(0).state(), v1::JOB_STATE_RUNNING);
}

TEST_F(Operating, AWatchShowsChangesAndEndsWithTheJob) {
  v1::WatchRequest request;
  request.set_job_id("job-1");
  auto stream = stub_->Watch(&context_, request);
  v1::WatchResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status().step(), 1);
  Publish({.id = "job-1", .state = v1::JOB_STATE_RUNNING, .step = 2});
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status().step(), 2);
  Publish({.id = "job-1", .state = v1::JOB_STATE_COMPLETED, .step = 3});
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status().state(), v1::JOB_STATE_COMPLETED);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(Operating, LogsEndAtTheEndOfTheFileUnlessFollowed) {
  folder_.Write("jobs/job-1/logs/gen-0001.log", "[rank 0] a\n[rank 1] b\xff\n");
  v1::LogsRequest request;
  request.set_job_id("job-1");
  request.set_rank(1);
  auto stream = stub_->Logs(&context_, request);
  v1::LogsResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.text(), "[rank 1] b?\n") << "what is not UTF-8 is replaced";
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(Operating, LogsOfARankOrAGenerationThatIsNotThereAreAnErrorThatNamesWhatIs) {
  folder_.Write("jobs/job-1/logs/gen-0001.log", "one\n");
  folder_.Write("jobs/job-1/logs/gen-0002.log", "two\n");
  const auto ask = [&](int32_t rank, int64_t generation) {
    BoundedContext context;
    v1::LogsRequest request;
    request.set_job_id("job-1");
    request.set_rank(rank);
    request.set_generation(generation);
    auto stream = stub_->Logs(&context, request);
    v1::LogsResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish();
  };
  EXPECT_TRUE(ask(1, 2).ok());
  const grpc::Status rank = ask(9, 1);
  EXPECT_EQ(rank.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(rank.error_message(), AllOf(HasSubstr("rank 9"), HasSubstr("ranks 0 to 1")));
  const grpc::Status generation = ask(0, 9);
  EXPECT_EQ(generation.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(generation.error_message(),
              AllOf(HasSubstr("generation 9"), HasSubstr("there are those of 1, 2")));
}

TEST_F(Operating, FollowedLogsGoOnUntilTheJobIsFinal) {
  folder_.Write("jobs/job-1/logs/gen-0001.log", "one\n");
  v1::LogsRequest request;
  request.set_job_id("job-1");
  request.set_follow(true);
  auto stream = stub_->Logs(&context_, request);
  v1::LogsResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.text(), "one\n");
  folder_.Write("jobs/job-1/logs/gen-0001.log", "one\ntwo\nunfinished");
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.text(), "two\n");
  Publish({.id = "job-1", .state = v1::JOB_STATE_FAILED});
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.text(), "unfinished");
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(Operating, FollowedLogsSayAtOnceWhereTheyAreAndGoOnFromThere) {
  v1::LogsRequest request;
  request.set_job_id("job-1");
  request.set_follow(true);
  BoundedContext contexts[2];
  v1::LogsResponse response;
  auto first = stub_->Logs(&contexts[0], request);
  ASSERT_TRUE(first->Read(&response));
  EXPECT_EQ(response.text(), "") << "there are none yet";
  EXPECT_EQ(response.job_id(), "job-1");
  folder_.Write("jobs/job-1/logs/gen-0001.log", "one\n");
  ASSERT_TRUE(first->Read(&response));
  EXPECT_EQ(response.text(), "one\n");
  *request.mutable_after() = response.position();
  folder_.Write("jobs/job-1/logs/gen-0001.log", "one\ntwo\n");
  auto second = stub_->Logs(&contexts[1], request);
  ASSERT_TRUE(second->Read(&response));
  EXPECT_EQ(response.text(), "two\n");
  for (BoundedContext& context : contexts) context.TryCancel();
  first->Finish();
  second->Finish();
}

TEST_F(Operating, StreamsAreBoundedAndEndWithTheDaemon) {
  v1::WatchRequest request;
  request.set_job_id("job-1");
  BoundedContext contexts[3];
  v1::WatchResponse response;
  auto first = stub_->Watch(&contexts[0], request);
  auto second = stub_->Watch(&contexts[1], request);
  ASSERT_TRUE(first->Read(&response));
  ASSERT_TRUE(second->Read(&response));
  EXPECT_EQ(stub_->Watch(&contexts[2], request)->Finish().error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  pump_.Stop();
  EXPECT_EQ(first->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  contexts[1].TryCancel();
  second->Finish();
}

}  // namespace
}  // namespace espalier
