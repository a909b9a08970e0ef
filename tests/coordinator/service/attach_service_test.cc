#include "coordinator/service/attach_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/common/rpc/tls_world.h"
#include "tests/coordinator/service/local_server.h"
#include "tests/coordinator/service/set_clock.h"
#include "tests/coordinator/wait_until.h"

namespace espalier {
namespace {

class Attaching : public ::testing::Test {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>;

  // The next thing from any stream.
  Input Next() {
    while (taken_.empty()) {
      for (Input& input : inbox_.Take(absl::Seconds(60))) taken_.push_back(std::move(input));
    }
    Input first = std::move(taken_.front());
    taken_.pop_front();
    return first;
  }
  StreamMessage NextMessage() { return std::get<StreamMessage>(Next()); }

  static v1::AttachRequest Hello(int rank) {
    v1::AttachRequest request;
    request.mutable_hello()->set_rank(rank);
    return request;
  }
  static v1::AttachRequest Progress(int64_t step) {
    v1::AttachRequest request;
    request.mutable_progress()->set_step(step);
    return request;
  }
  static v1::AttachResponse Directive(int64_t number) {
    v1::AttachResponse response;
    response.mutable_directive()->set_number(number);
    return response;
  }

  Inbox inbox_{{}};
  SetClock clock_;
  AttachService service_{inbox_, clock_, {.streams_max = 2}};
  LocalServer server_{&service_};
  std::unique_ptr<v1::WorkerService::Stub> stub_ = v1::WorkerService::NewStub(server_.Channel());
  std::deque<Input> taken_;
};

TEST_F(Attaching, MessagesArriveInOrderOneAtATime) {
  BoundedContext context;
  auto stream = stub_->Attach(&context);
  stream->Write(Hello(3));
  for (int64_t i = 1; i <= 5; ++i) stream->Write(Progress(i));
  StreamMessage message = NextMessage();
  EXPECT_EQ(message.message.hello().rank(), 3);
  EXPECT_EQ(inbox_.depth(), 0u) << "the next one waits until this one is taken";
  for (int64_t i = 1; i <= 5; ++i) {
    message.taken();
    message = NextMessage();
    EXPECT_EQ(message.message.progress().step(), i);
  }
  context.TryCancel();
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(Attaching, TheLoopAnswersAndEndsAStream) {
  BoundedContext context;
  auto stream = stub_->Attach(&context);
  stream->Write(Hello(0));
  const StreamId id = NextMessage().stream;
  v1::AttachResponse welcome;
  welcome.mutable_welcome()->set_job_id("job-1");
  service_.Send(id, welcome);
  service_.Close(id, absl::FailedPreconditionError("fenced"));
  service_.Send(id, Directive(9));

  v1::AttachResponse got;
  ASSERT_TRUE(stream->Read(&got));
  EXPECT_EQ(got.welcome().job_id(), "job-1");
  while (stream->Read(&got)) {
  }
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(), "fenced");
}

// The directives are large, so that only a few of them fit into the connection's own buffers.
TEST_F(Attaching, OfDirectivesThatWaitTheNewestAloneIsKept) {
  BoundedContext context;
  auto stream = stub_->Attach(&context);
  stream->Write(Hello(0));
  const StreamId id = NextMessage().stream;
  constexpr int64_t kLast = 2000;
  constexpr int64_t kInBuffers = 200;
  for (int64_t number = 1; number <= kLast; ++number) {
    v1::AttachResponse directive = Directive(number);
    directive.mutable_directive()->mutable_plan()->set_reason(std::string(64 << 10, 'x'));
    service_.Send(id, std::move(directive));
  }
  v1::AttachResponse got;
  int64_t previous = 0, received = 0;
  while (previous < kLast && stream->Read(&got)) {
    EXPECT_GT(got.directive().number(), previous);
    previous = got.directive().number();
    ++received;
  }
  EXPECT_EQ(previous, kLast);
  EXPECT_LE(received, kInBuffers) << "directives queue up for a client that does not read";
  context.TryCancel();
  stream->Finish();
}

TEST_F(Attaching, ALostStreamIsReportedOnce) {
  StreamId id;
  {
    BoundedContext context;
    auto stream = stub_->Attach(&context);
    stream->Write(Hello(0));
    StreamMessage hello = NextMessage();
    id = hello.stream;
    hello.taken();
    context.TryCancel();
    stream->Finish();
  }
  EXPECT_EQ(std::get<StreamClosed>(Next()).stream, id);
  EXPECT_TRUE(inbox_.Take(absl::ZeroDuration()).empty());
  service_.Send(id, Directive(1));
  service_.Close(id, absl::OkStatus());
}

TEST_F(Attaching, TooManyStreamsAreRefused) {
  BoundedContext contexts[3];
  auto first = stub_->Attach(&contexts[0]);
  auto second = stub_->Attach(&contexts[1]);
  first->Write(Hello(0));
  second->Write(Hello(1));
  NextMessage();
  NextMessage();
  auto third = stub_->Attach(&contexts[2]);
  EXPECT_EQ(third->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (auto* context : {&contexts[0], &contexts[1]}) context->TryCancel();
  first->Finish();
  second->Finish();
}

TEST_F(Attaching, AStreamThatDoesNotSayHelloInTimeIsEndedAndNoOther) {
  BoundedContext contexts[2];
  auto greeted = stub_->Attach(&contexts[0]);
  greeted->Write(Hello(0));
  const StreamId id = NextMessage().stream;
  auto silent = stub_->Attach(&contexts[1]);
  std::atomic<bool> ended = false;
  grpc::Status status;
  std::thread end([&] {
    status = silent->Finish();
    ended = true;
  });
  EXPECT_TRUE(WaitUntil([&] {
    clock_.seconds += 10;
    service_.CloseSilent();
    return ended.load();
  }));
  end.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("no hello came within 10s"));
  service_.Send(id, Directive(1));
  v1::AttachResponse got;
  EXPECT_TRUE(greeted->Read(&got));
  contexts[0].TryCancel();
  greeted->Finish();
}

TEST(AttachingWithTls, TooManyStreamsOfOneCertificateAreRefusedAndOthersAreNot) {
  TlsWorld world;
  const auto identity = *ServerIdentity::Load(
      world.Issue("coordinator", {.role = Role::kCoordinator, .addresses = {"127.0.0.1"}}),
      world.folder() + "/identity.pem", RealClock());
  Inbox inbox{{}};
  AttachService service(inbox, RealClock(), {.streams_per_caller_max = 1});
  const LocalServer server(
      &service,
      *MakeServerCredentials({.listen = "127.0.0.1:0", .identity = identity}, RealClock()));
  const auto stub_of = [&](const std::string& node) {
    const ChannelTarget target = {.address = server.address(),
                                  .tls = world.Issue(node, {.role = Role::kWorker})};
    return v1::WorkerService::NewStub(*MakeChannel(target, RealClock()));
  };
  const auto greet = [&](v1::WorkerService::Stub& stub, BoundedContext& context,
                         const std::string& node) {
    v1::AttachRequest hello;
    hello.mutable_hello()->set_node(node);
    hello.mutable_hello()->set_job_id("job-1");
    auto stream = stub.Attach(&context);
    stream->Write(hello);
    return stream;
  };
  const auto next = [&] {
    std::vector<Input> inputs;
    EXPECT_TRUE(WaitUntil([&] {
      inputs = inbox.Take(absl::Milliseconds(10));
      return !inputs.empty();
    }));
    return std::move(inputs.at(0));
  };
  const auto many = stub_of("many"), other = stub_of("other");
  BoundedContext first, second, another;
  const auto kept = greet(*many, first, "many");
  EXPECT_EQ(std::get<StreamMessage>(next()).message.hello().node(), "many");
  const grpc::Status refused = greet(*many, second, "many")->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), ::testing::HasSubstr("certificate \"many\""));
  const auto let_in = greet(*other, another, "other");
  EXPECT_EQ(std::get<StreamMessage>(next()).message.hello().node(), "other");
  for (BoundedContext* context : {&first, &another}) context->TryCancel();
  kept->Finish();
  let_in->Finish();
}

TEST_F(Attaching, AStopSendsWorkersAwayToComeAgain) {
  BoundedContext context, late;
  auto stream = stub_->Attach(&context);
  stream->Write(Hello(0));
  NextMessage();
  service_.CloseAll();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(stub_->Attach(&late)->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// Streams that come, talk, break and are closed from the other side at once: for the sanitizers.
TEST_F(Attaching, ManyStreamsMayComeAndGoAtOnce) {
  std::atomic<bool> done = false;
  std::thread loop([&] {
    while (!done) {
      for (Input& input : inbox_.Take(absl::Milliseconds(5))) {
        auto* message = std::get_if<StreamMessage>(&input);
        if (message == nullptr) continue;
        service_.Send(message->stream, Directive(message->message.progress().step()));
        if (message->message.progress().step() == 3) {
          service_.Close(message->stream, absl::AbortedError("enough"));
        }
        message->taken();
      }
    }
  });
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back([&, i] {
      for (int round = 0; round < 25; ++round) {
        BoundedContext context;
        auto stream = stub_->Attach(&context);
        for (int64_t step = 1; step <= 3 && stream->Write(Progress(step)); ++step) {
        }
        if (round % 3 == i) context.TryCancel();
        v1::AttachResponse response;
        while (stream->Read(&response)) {
        }
        EXPECT_FALSE(stream->Finish().ok());
      }
    });
  }
  for (std::thread& client : clients) client.join();
  done = true;
  loop.join();
}

}  // namespace
}  // namespace espalier
