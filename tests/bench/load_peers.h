// The clients of load_client.cc: agents, ranks and watchers, each on a connection of its own to
// espalierd. Used by load_client.cc only. Thread rule: gRPC's threads react, one other thread
// beats; counts may be read by any. They live until the process ends: streams have no end of their
// own.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "espalier/v1/agent.grpc.pb.h"
#include "espalier/v1/operator.grpc.pb.h"
#include "espalier/v1/worker.grpc.pb.h"

namespace espalier::bench {

std::shared_ptr<grpc::Channel> Connect(const std::string& target);

// One stream that beats when it is told to. Lives until the process ends.
template <typename Outgoing, typename Incoming>
class Peer : public grpc::ClientBidiReactor<Outgoing, Incoming> {
 public:
  bool attached() const { return attached_; }
  bool broken() const { return broken_; }
  int64_t sent() const { return sent_; }
  int64_t late() const { return late_; }
  std::string error() const { return error_; }

  // Sends the next message, unless the last one is still being sent.
  void Beat() {
    if (broken_ || !attached_) return;
    if (writing_.exchange(true)) {
      ++late_;
      return;
    }
    Fill(outgoing_);
    this->StartWrite(&outgoing_);
  }

  void OnWriteDone(bool ok) override {
    if (ok) ++sent_;
    writing_ = false;
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    const bool first = !attached_;
    if (first) Welcomed(incoming_);
    this->StartRead(&incoming_);
    if (first) attached_ = true;
  }
  void OnDone(const grpc::Status& status) override {
    error_ = status.error_message();
    broken_ = true;
  }

 protected:
  virtual void Fill(Outgoing& message) = 0;
  virtual void Welcomed(const Incoming& message) = 0;
  void SayHello() {
    writing_ = true;
    this->StartRead(&incoming_);
    this->StartWrite(&outgoing_);
    this->StartCall();
  }

  grpc::ClientContext context_;
  Outgoing outgoing_;

 private:
  Incoming incoming_;
  std::atomic<bool> attached_{false};
  std::atomic<bool> broken_{false};
  std::atomic<bool> writing_{false};
  std::atomic<int64_t> sent_{0};
  std::atomic<int64_t> late_{0};
  std::string error_;
};

class Agent : public Peer<v1::AgentMessage, v1::AgentCommand> {
 public:
  Agent(const std::string& target, int index);

 private:
  void FillReport(v1::NodeReport& report);
  void Fill(v1::AgentMessage& message) override { FillReport(*message.mutable_report()); }
  void Welcomed(const v1::AgentCommand&) override {}

  const std::unique_ptr<v1::AgentService::Stub> stub_;
  int64_t reports_ = 0;
};

// One rank of a hand-started job. Three messages in four are Progress, the fourth commits a step.
class Worker : public Peer<v1::AttachRequest, v1::AttachResponse> {
 public:
  Worker(const std::string& target, int index, int ranks_per_job);
  // After it is attached.
  const std::string& job() const { return job_; }

 private:
  void Fill(v1::AttachRequest& message) override;
  void Welcomed(const v1::AttachResponse& message) override { job_ = message.welcome().job_id(); }

  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  std::string job_;
  int64_t beats_ = 0;
};

class Watcher : public grpc::ClientReadReactor<v1::WatchResponse> {
 public:
  Watcher(const std::string& target, const std::string& job);
  int64_t received() const { return received_; }
  bool broken() const { return broken_; }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    ++received_;
    StartRead(&incoming_);
  }
  void OnDone(const grpc::Status&) override { broken_ = true; }

 private:
  const std::unique_ptr<v1::OperatorService::Stub> stub_;
  grpc::ClientContext context_;
  v1::WatchRequest request_;
  v1::WatchResponse incoming_;
  std::atomic<int64_t> received_{0};
  std::atomic<bool> broken_{false};
};

}  // namespace espalier::bench
