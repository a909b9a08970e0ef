// Streams that end before the job does: at their own deadline, and while espalierd restarts.
#include "coordinator/ctl/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/ctl/fake_operator.h"

namespace espalier::ctl {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kDeadline = absl::Milliseconds(200);

// The first two streams bring what the job has got to, and stay open or break; the third brings the
// end.
class Endless : public FakeOperator {
 public:
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest*,
                     grpc::ServerWriter<v1::WatchResponse>* writer) override {
    v1::WatchResponse response;
    *response.mutable_status() = RunningJob();
    if (++streams == 3) response.mutable_status()->set_state(v1::JOB_STATE_COMPLETED);
    writer->Write(response);
    return End(*context);
  }
  grpc::Status Logs(grpc::ServerContext* context, const v1::LogsRequest* request,
                    grpc::ServerWriter<v1::LogsResponse>* writer) override {
    asked.push_back(request->ShortDebugString());
    v1::LogsResponse response;
    response.set_job_id("quick-1");
    response.mutable_position()->set_generation(1);
    response.mutable_position()->set_offset(10 * ++streams);
    if (streams != 2) response.set_text(absl::StrCat("line ", streams, "\n"));
    writer->Write(response);
    return End(*context);
  }

  int streams = 0;
  // Of a stream that breaks; OK: it stays open.
  grpc::Status broken;
  std::vector<std::string> asked;

 private:
  grpc::Status End(const grpc::ServerContext& context) {
    if (streams == 3) return grpc::Status::OK;
    while (broken.ok() && !context.IsCancelled()) RealClock().Sleep(absl::Milliseconds(10));
    return broken;
  }
};

class Following : public ::testing::Test {
 protected:
  OperatorClient Client() {
    options_.coordinator = server_.address();
    return OperatorClient::Connect(context_, kDeadline).value();
  }
  // The text of the followed log, and what became of it.
  absl::Status FollowLogs(std::string& text) {
    v1::LogsRequest request;
    request.set_job_id("quick");
    request.set_follow(true);
    return Client().Logs(request, [&](const std::string& lines) {
      text += lines;
      return true;
    });
  }

  Endless server_;
  GlobalOptions options_;
  TextTerminal terminal_;
  Context context_{options_, terminal_, RealClock()};
};

TEST_F(Following, AWatchedJobMayOutliveTheStream) {
  int interruptions = 0;
  const auto last = Client().Follow(
      "quick", [](const v1::JobStatus&) { return true; },
      [&](const absl::Status&) { ++interruptions; });
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->state(), v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(server_.streams, 3);
  EXPECT_EQ(interruptions, 0) << "espalierd was there all the time";
}

TEST_F(Following, LogsMayOutliveTheStreamAndGoOnWhereTheyWere) {
  std::string text;
  EXPECT_EQ(FollowLogs(text), absl::OkStatus());
  EXPECT_EQ(text, "line 1\nline 3\n");
  EXPECT_THAT(server_.asked,
              ElementsAre("job_id: \"quick\" follow: true",
                          "job_id: \"quick-1\" follow: true after { generation: 1 offset: 10 }",
                          "job_id: \"quick-1\" follow: true after { generation: 1 offset: 20 }"));
}

TEST_F(Following, LogsOutliveARestartOfEspalierd) {
  server_.broken = grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
  std::string text;
  EXPECT_EQ(FollowLogs(text), absl::OkStatus());
  EXPECT_EQ(text, "line 1\nline 3\n");
}

TEST_F(Following, LogsOfAJobThatIsNotThereAreNotAskedForAgain) {
  server_.broken = grpc::Status(grpc::StatusCode::NOT_FOUND, "no job");
  std::string text;
  EXPECT_EQ(FollowLogs(text).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(server_.streams, 1);
}

}  // namespace
}  // namespace espalier::ctl
