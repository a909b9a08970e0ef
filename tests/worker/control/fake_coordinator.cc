#include "tests/worker/control/fake_coordinator.h"

#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/rpc/call.h"

namespace espalier {

FakeCoordinator::FakeCoordinator(v1::Welcome welcome) : welcome_(std::move(welcome)) { Start(); }

void FakeCoordinator::Start() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", port_), grpc::InsecureServerCredentials(),
                           &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  ESPALIER_CHECK(server_ != nullptr, "the port is free again");
}

void FakeCoordinator::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::time_point());
  server_->Wait();
  server_.reset();
}

std::string FakeCoordinator::address() const { return absl::StrCat("127.0.0.1:", port_); }

void FakeCoordinator::Refuse(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  refusal_ = std::move(status);
}

void FakeCoordinator::ChangeWelcome(v1::Welcome welcome) {
  absl::MutexLock lock(&mutex_);
  welcome_ = std::move(welcome);
}

void FakeCoordinator::Send(const v1::Directive& directive) {
  v1::AttachResponse response;
  *response.mutable_directive() = directive;
  absl::MutexLock lock(&mutex_);
  ESPALIER_CHECK(stream_ != nullptr, "a worker is attached");
  stream_->Write(response);
}

void FakeCoordinator::Renew(int64_t beat) {
  v1::AttachResponse response;
  response.mutable_renewal()->set_beat(beat);
  absl::MutexLock lock(&mutex_);
  ESPALIER_CHECK(stream_ != nullptr, "a worker is attached");
  stream_->Write(response);
}

bool FakeCoordinator::WaitFor(const std::function<bool(const Messages&)>& condition) {
  absl::MutexLock lock(&mutex_);
  const auto met = [&] { return condition(messages_); };
  return mutex_.AwaitWithTimeout(absl::Condition(&met), absl::Seconds(30));
}

bool FakeCoordinator::WaitForCount(v1::AttachRequest::BodyCase kind, int count) {
  return WaitFor([&](const Messages& messages) { return CountOf(messages, kind) >= count; });
}

FakeCoordinator::Messages FakeCoordinator::messages() const {
  absl::MutexLock lock(&mutex_);
  return messages_;
}

grpc::Status FakeCoordinator::Attach(grpc::ServerContext*, Stream* stream) {
  const grpc::Status status = Serve(stream);
  absl::MutexLock lock(&mutex_);
  stream_ = nullptr;
  return status;
}

grpc::Status FakeCoordinator::Serve(Stream* stream) {
  v1::AttachRequest message;
  while (stream->Read(&message)) {
    absl::MutexLock lock(&mutex_);
    messages_.push_back(message);
    if (!refusal_.ok()) return ToGrpc(refusal_);
    if (!message.has_hello()) continue;
    v1::AttachResponse response;
    *response.mutable_welcome() = welcome_;
    stream->Write(response);
    stream_ = stream;
  }
  absl::MutexLock lock(&mutex_);
  return ToGrpc(refusal_);
}

int CountOf(const FakeCoordinator::Messages& messages, v1::AttachRequest::BodyCase kind) {
  return static_cast<int>(std::count_if(
      messages.begin(), messages.end(),
      [kind](const v1::AttachRequest& message) { return message.body_case() == kind; }));
}

}  // namespace espalier
