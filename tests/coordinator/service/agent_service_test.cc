// AgentService over a real loopback server; the test plays the loop, an agent and mpirun's
// remote-shell agent.
#include "coordinator/service/agent_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "tests/coordinator/service/local_server.h"
#include "tests/coordinator/service/set_clock.h"
#include "tests/coordinator/wait_until.h"

namespace espalier {
namespace {

const GenerationKey kKey = {JobId("job-1"), Generation(3)};
const NodeName kNode("studio");

class AgentStreams : public ::testing::Test {
 protected:
  ~AgentStreams() override { service_.CloseAll(); }

  v1::ExecRequest Request(const std::string& secret, const GenerationKey& key = kKey) const {
    v1::ExecRequest request;
    request.mutable_generation()->set_job_id(key.job.text());
    request.mutable_generation()->set_generation(key.generation.value());
    request.set_secret(secret);
    request.set_node(kNode.text());
    request.add_command(" orted");
    return request;
  }
  // What comes of a request, to its end.
  std::pair<std::vector<v1::ExecResponse>, grpc::Status> Exec(const std::string& secret,
                                                              const GenerationKey& key = kKey) {
    BoundedContext context;
    const auto stream = stub_->Exec(&context, Request(secret, key));
    std::vector<v1::ExecResponse> responses;
    v1::ExecResponse response;
    while (stream->Read(&response)) responses.push_back(response);
    return {responses, stream->Finish()};
  }
  // The next event of the loop, which is acted on.
  Event NextEvent() {
    std::vector<Input> inputs;
    EXPECT_TRUE(WaitUntil([&] {
      inputs = inbox_.Take(absl::Milliseconds(10));
      return !inputs.empty();
    }));
    AgentInput& input = std::get<AgentInput>(inputs.at(0));
    if (input.taken) input.taken();
    return input.event;
  }

  using Stream = grpc::ClientReaderWriter<v1::AgentMessage, v1::AgentCommand>;
  std::unique_ptr<Stream> Attach(grpc::ClientContext& context, const GenerationKey* running) {
    std::unique_ptr<Stream> stream = stub_->Attach(&context);
    v1::AgentMessage hello;
    hello.mutable_hello()->set_node(kNode.text());
    hello.mutable_hello()->set_instance("one");
    if (running != nullptr) {
      v1::GenerationName& name = *hello.mutable_hello()->add_running();
      name.set_job_id(running->job.text());
      name.set_generation(running->generation.value());
    }
    EXPECT_TRUE(stream->Write(hello));
    EXPECT_EQ(std::get<AgentAttached>(NextEvent()).node, kNode);
    v1::AgentCommand welcome;
    EXPECT_TRUE(stream->Read(&welcome));
    EXPECT_TRUE(welcome.has_welcome()) << welcome.ShortDebugString();
    return stream;
  }

  Inbox inbox_{{}};
  SetClock clock_;
  AgentService service_{inbox_, {.exec_key = "key", .clock = &clock_}};
  LocalServer server_{&service_};
  std::unique_ptr<v1::AgentService::Stub> stub_ = v1::AgentService::NewStub(server_.Channel());
};

TEST_F(AgentStreams, WhoDoesNotKnowTheSecretStartsNothing) {
  const std::string secret = service_.Admit(kKey);
  const std::string other = service_.Admit({JobId("job-1"), Generation(4)});
  for (const std::string& wrong : {std::string(), std::string("x"), other, secret + "0"}) {
    EXPECT_EQ(Exec(wrong).second.error_code(), grpc::StatusCode::PERMISSION_DENIED) << wrong;
  }
}

TEST_F(AgentStreams, TheNextEspalierdOfTheFolderKnowsTheSecret) {
  AgentService next(inbox_, {.exec_key = "key"});
  AgentService stranger(inbox_, {.exec_key = "another"});
  EXPECT_EQ(service_.Admit(kKey), next.Admit(kKey));
  EXPECT_NE(service_.Admit(kKey), stranger.Admit(kKey));
}

TEST_F(AgentStreams, AGenerationThatIsBeingEndedOrIsOverGetsNoDaemon) {
  const std::string secret = service_.Admit(kKey);
  EXPECT_EQ(service_.End(kKey, kNode), NodeAgents::Ending::kAway);
  EXPECT_EQ(Exec(secret).second.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  service_.Forget(kKey);
  EXPECT_EQ(Exec(secret).second.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(AgentStreams, WithoutTheNodesAgentARequestEndsAtOnce) {
  const auto [responses, status] = Exec(service_.Admit(kKey));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("studio"));
}

TEST_F(AgentStreams, WhatMpirunAsksForGoesToTheNodesAgentAndItsEndComesBack) {
  const std::string secret = service_.Admit(kKey);
  BoundedContext context;
  const auto agent = Attach(context, nullptr);
  EXPECT_TRUE(service_.Attached(kNode));
  std::pair<std::vector<v1::ExecResponse>, grpc::Status> result;
  std::thread exec([&] { result = Exec(secret); });
  v1::AgentCommand command;
  ASSERT_TRUE(agent->Read(&command));
  EXPECT_EQ(command.start().command(0), " orted");
  EXPECT_GT(command.start().orphan_limit_seconds(), 0);
  v1::AgentMessage message;
  message.mutable_started()->set_exec_id(command.start().exec_id());
  agent->Write(message);
  message.mutable_exited()->set_exec_id(command.start().exec_id());
  message.mutable_exited()->set_code(5);
  agent->Write(message);
  exec.join();
  EXPECT_TRUE(result.second.ok()) << result.second.error_message();
  ASSERT_EQ(result.first.size(), 2u);
  EXPECT_TRUE(result.first[0].has_started());
  EXPECT_EQ(result.first[1].exited().code(), 5);
}

TEST_F(AgentStreams, AnEndIsConfirmedByTheAgentAlone) {
  service_.Admit(kKey);
  BoundedContext context;
  const auto agent = Attach(context, &kKey);
  EXPECT_EQ(service_.End(kKey, kNode), NodeAgents::Ending::kUnderWay);
  EXPECT_EQ(service_.End(kKey, kNode), NodeAgents::Ending::kUnderWay);
  v1::AgentCommand command;
  ASSERT_TRUE(agent->Read(&command));
  v1::AgentMessage gone;
  *gone.mutable_gone()->mutable_generation() = command.end().generation();
  agent->Write(gone);
  EXPECT_TRUE(WaitUntil([&] { return service_.End(kKey, kNode) == NodeAgents::Ending::kGone; }));
}

// Requests and ends of many generations at once: what is told to an agent last is the end.
TEST_F(AgentStreams, NothingIsStartedForAGenerationAfterItsEnd) {
  constexpr int kRounds = 100, kAtOnce = 8;
  BoundedContext context;
  const auto agent = Attach(context, nullptr);
  absl::Mutex mutex;
  std::map<int64_t, std::vector<v1::AgentCommand::BodyCase>> told;
  std::thread reader([&] {
    for (v1::AgentCommand command; agent->Read(&command);) {
      const bool start = command.has_start();
      const v1::GenerationName& name =
          start ? command.start().generation() : command.end().generation();
      {
        const absl::MutexLock lock(&mutex);
        told[name.generation()].push_back(command.body_case());
      }
      if (!start) continue;
      v1::AgentMessage exited;
      exited.mutable_exited()->set_exec_id(command.start().exec_id());
      agent->Write(exited);
    }
  });
  const auto last = [&](int64_t generation) {
    const absl::MutexLock lock(&mutex);
    return told[generation].empty() ? v1::AgentCommand::BODY_NOT_SET : told[generation].back();
  };
  for (int64_t round = 0; round < kRounds; ++round) {
    std::vector<GenerationKey> keys;
    std::vector<std::thread> execs;
    for (int i = 0; i < kAtOnce; ++i) {
      keys.push_back({JobId("job-1"), Generation(round * kAtOnce + i)});
      execs.emplace_back([this, key = keys.back(), secret = service_.Admit(keys.back())] {
        Exec(secret, key);  // answered once its start has been read, or refused
      });
    }
    for (const GenerationKey& key : keys) service_.End(key, kNode);
    for (std::thread& exec : execs) exec.join();
    for (const GenerationKey& key : keys) {
      EXPECT_TRUE(WaitUntil([&] { return last(key.generation.value()) == v1::AgentCommand::kEnd; }))
          << "generation " << key.generation.value();
    }
  }
  context.TryCancel();
  reader.join();
}

TEST_F(AgentStreams, AnAgentThatIsThereButSilentIsAway) {
  service_.Admit(kKey);
  BoundedContext context;
  const auto agent = Attach(context, &kKey);
  EXPECT_EQ(service_.End(kKey, kNode), NodeAgents::Ending::kUnderWay);
  clock_.seconds += 11;
  EXPECT_EQ(service_.End(kKey, kNode), NodeAgents::Ending::kAway);
  v1::AgentMessage report;
  report.mutable_report();
  ASSERT_TRUE(agent->Write(report));
  EXPECT_TRUE(std::holds_alternative<AgentReported>(NextEvent()));
  EXPECT_EQ(service_.End(kKey, kNode), NodeAgents::Ending::kUnderWay);
}

TEST_F(AgentStreams, AStreamThatDoesNotSayHelloInTimeIsEndedAndNoOther) {
  BoundedContext context, silent;
  const auto agent = Attach(context, nullptr);
  const std::unique_ptr<Stream> stream = stub_->Attach(&silent);
  std::atomic<bool> ended = false;
  grpc::Status status;
  std::thread end([&] {
    status = stream->Finish();
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
  EXPECT_TRUE(service_.Attached(kNode));
}

TEST_F(AgentStreams, WhatEspalierdDoesNotKnowAnAgentIsToldToEnd) {
  BoundedContext context;
  const auto agent = Attach(context, &kKey);
  v1::AgentCommand command;
  ASSERT_TRUE(agent->Read(&command));
  EXPECT_EQ(command.end().generation().job_id(), "job-1");
  EXPECT_EQ(command.end().generation().generation(), 3);
}

TEST_F(AgentStreams, TheEndOfAnAgentsStreamEndsWhatWaitsForIt) {
  const std::string secret = service_.Admit(kKey);
  BoundedContext context;
  const auto agent = Attach(context, nullptr);
  std::pair<std::vector<v1::ExecResponse>, grpc::Status> result;
  std::thread exec([&] { result = Exec(secret); });
  v1::AgentCommand command;
  ASSERT_TRUE(agent->Read(&command));
  context.TryCancel();
  exec.join();
  EXPECT_EQ(result.second.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(std::holds_alternative<AgentDetached>(NextEvent()));
  EXPECT_FALSE(service_.Attached(kNode));
}

TEST_F(AgentStreams, ASecondHelloIsRefusedAndNobodySpeaksForTheNodeAfterwards) {
  BoundedContext context;
  const auto agent = Attach(context, nullptr);
  v1::AgentMessage hello;
  hello.mutable_hello()->set_node("macbook");
  ASSERT_TRUE(agent->Write(hello));
  EXPECT_TRUE(std::holds_alternative<AgentDetached>(NextEvent()));
  const grpc::Status status = agent->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("speaks for node studio already"));
  EXPECT_FALSE(service_.Attached(kNode));
  service_.Admit(kKey);
  EXPECT_EQ(service_.End(kKey, kNode), NodeAgents::Ending::kAway);
}

TEST_F(AgentStreams, AnAgentThatWentBeforeTheCoreTookItInSpeaksForNobody) {
  BoundedContext context;
  const std::unique_ptr<Stream> agent = stub_->Attach(&context);
  v1::AgentMessage hello;
  hello.mutable_hello()->set_node(kNode.text());
  ASSERT_TRUE(agent->Write(hello));
  std::vector<Input> attached;
  ASSERT_TRUE(WaitUntil([&] {
    attached = inbox_.Take(absl::Milliseconds(10));
    return !attached.empty();
  }));
  context.TryCancel();
  EXPECT_TRUE(std::holds_alternative<AgentDetached>(NextEvent()));
  std::get<AgentInput>(attached.at(0)).taken();
  EXPECT_FALSE(service_.Attached(kNode));
}

}  // namespace
}  // namespace espalier
