// FakeCoordinator: a WorkerService on a loopback port that records what workers say, answers as the
// test tells it, and can be stopped and started again on the same port. Used by
// attach_client_test.cc. Thread-safe.
#pragma once

#include <grpcpp/server.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "espalier/v1/worker.grpc.pb.h"

namespace espalier {

class FakeCoordinator : private v1::WorkerService::Service {
 public:
  explicit FakeCoordinator(v1::Welcome welcome);
  ~FakeCoordinator() override { Stop(); }

  void Start();
  void Stop();
  std::string address() const;

  // Ends the open stream (at its next message; progress comes by itself) and all later ones with
  // `status`; OK: welcomes again.
  void Refuse(absl::Status status);
  // What later streams are welcomed with.
  void ChangeWelcome(v1::Welcome welcome);
  void Send(const v1::Directive& directive);
  void Renew(int64_t beat);

  using Messages = std::vector<v1::AttachRequest>;
  // Waits until the messages so far, over all streams, satisfy the condition; false after 30 s.
  bool WaitFor(const std::function<bool(const Messages&)>& condition);
  bool WaitForCount(v1::AttachRequest::BodyCase kind, int count);
  Messages messages() const;

 private:
  using Stream = grpc::ServerReaderWriter<v1::AttachResponse, v1::AttachRequest>;
  grpc::Status Attach(grpc::ServerContext* context, Stream* stream) override;
  grpc::Status Serve(Stream* stream);

  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  mutable absl::Mutex mutex_;
  v1::Welcome welcome_;
  absl::Status refusal_;
  Stream* stream_ = nullptr;
  Messages messages_;
};

int CountOf(const FakeCoordinator::Messages& messages, v1::AttachRequest::BodyCase kind);

}  // namespace espalier
