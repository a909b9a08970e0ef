// FakeOperator: an OperatorService with scripted answers behind a real gRPC server on loopback, and
// a way to run `espalier` against it in-process. Used by tests/coordinator/ctl. Requests are
// recorded; set the script before a command runs.
#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/rpc/pem_file.h"
#include "coordinator/ctl/terminal.h"
#include "espalier/v1/operator.grpc.pb.h"

namespace espalier::ctl {

class FakeOperator : public v1::OperatorService::Service {
 public:
  explicit FakeOperator(const std::string& listen = "127.0.0.1:0",
                        std::optional<TlsFiles> tls = std::nullopt);
  ~FakeOperator() override;
  const std::string& address() const { return address_; }

  struct Script {
    grpc::Status status;  // Of every call, before any answer.
    v1::ListJobsResponse jobs;
    v1::ListNodesResponse nodes;
    v1::ListEventsResponse events;
    std::vector<v1::JobStatus> watched;  // Sent one after the other, then the stream ends.
    grpc::Status watch_end;
    std::vector<std::string> log;
    std::string explanation = "frees nothing";
    bool nothing_to_do = false;
  };
  Script script;

  // "Pause name: \"ab\" hard: true": each request in short text form.
  std::vector<std::string> requests();
  v1::SubmitRequest submitted();

  grpc::Status Submit(grpc::ServerContext*, const v1::SubmitRequest* request,
                      v1::SubmitResponse* response) override;
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                        v1::ListJobsResponse* response) override;
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::GetJobResponse* response) override;
  grpc::Status Watch(grpc::ServerContext*, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::WatchResponse>* writer) override;
  grpc::Status AddNode(grpc::ServerContext*, const v1::AddNodeRequest* request,
                       v1::AddNodeResponse* response) override;
  grpc::Status DrainNode(grpc::ServerContext*, const v1::DrainNodeRequest* request,
                         v1::DrainNodeResponse* response) override;
  grpc::Status AllowNode(grpc::ServerContext*, const v1::AllowNodeRequest* request,
                         v1::AllowNodeResponse* response) override;
  grpc::Status SetNode(grpc::ServerContext*, const v1::SetNodeRequest* request,
                       v1::SetNodeResponse* response) override;
  grpc::Status ForgetNode(grpc::ServerContext*, const v1::ForgetNodeRequest* request,
                          v1::ForgetNodeResponse*) override;
  grpc::Status Pause(grpc::ServerContext*, const v1::PauseRequest* request,
                     v1::PauseResponse* response) override;
  grpc::Status Resume(grpc::ServerContext*, const v1::ResumeRequest* request,
                      v1::ResumeResponse* response) override;
  grpc::Status Cancel(grpc::ServerContext*, const v1::CancelRequest* request,
                      v1::CancelResponse* response) override;
  grpc::Status Checkpoint(grpc::ServerContext*, const v1::CheckpointRequest* request,
                          v1::CheckpointResponse*) override;
  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*,
                         v1::ListNodesResponse* response) override;
  grpc::Status Logs(grpc::ServerContext*, const v1::LogsRequest* request,
                    grpc::ServerWriter<v1::LogsResponse>* writer) override;
  grpc::Status ListEvents(grpc::ServerContext*, const v1::ListEventsRequest* request,
                          v1::ListEventsResponse* response) override;

 private:
  template <typename Response>
  void Explain(Response& response) const;
  grpc::Status Record(const std::string& verb, const google::protobuf::Message& request);

  std::mutex mutex_;
  std::vector<std::string> requests_;
  v1::SubmitRequest submitted_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

// Writes into strings, at a fixed time, in UTC.
class TextTerminal : public Terminal {
 public:
  bool Out(absl::string_view text) override {
    absl::StrAppend(&out, text);
    return true;
  }
  void Remark(absl::string_view text) override { absl::StrAppend(&remarks, text); }
  bool interactive() const override { return screen; }
  View view(Clock&) const override { return View{.now = now}; }

  std::string out;
  std::string remarks;
  bool screen = false;
  absl::Time now = absl::FromUnixSeconds(1800000000);
};

struct CliResult {
  int code;
  std::string out;
  std::string remarks;
};

// `espalier ARGUMENTS` in this process; "--coordinator" is put in front when given.
CliResult RunCli(std::vector<std::string> arguments, const std::string& coordinator = "");

// A status with every field that is shown, for a job that runs on two ranks.
v1::JobStatus RunningJob();

}  // namespace espalier::ctl
