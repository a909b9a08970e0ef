// OperatorClient: the calls of OperatorService with deadlines, and failures explained. Used by
// coordinator/ctl. One thread; Follow's callback runs on the caller's thread.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/call.h"
#include "common/rpc/channel.h"
#include "coordinator/ctl/options.h"
#include "espalier/v1/operator.grpc.pb.h"

namespace espalier::ctl {

class OperatorClient {
 public:
  // Streams live for `stream_deadline` and are opened again then. INVALID_ARGUMENT: only some of
  // the three TLS files; else as MakeChannel.
  static absl::StatusOr<OperatorClient> Connect(const Context& context,
                                                absl::Duration stream_deadline = kStreamDeadline);

  // Calls `method` of the stub, for example &Stub::GetJob, within the timeout.
  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (v1::OperatorService::Stub::*method)(grpc::ClientContext*,
                                                                      const Request&, Response*),
                    const Request& request, Response& response) {
    grpc::ClientContext call;
    Prepare(call);
    return Explain((stub_.get()->*method)(&call, request, &response));
  }

  // Receives statuses until the final one, reopening the stream for a while when espalierd goes
  // away. `tick` is called with each new status, and at least once a second with the last one.
  // Returns the final status. False from `tick` ends it early with the last status.
  absl::StatusOr<v1::JobStatus> Follow(const std::string& job_id,
                                       const std::function<bool(const v1::JobStatus&)>& tick,
                                       const std::function<void(const absl::Status&)>& interrupted);

  // Streams the log; false from `sink` ends it. Following, it goes on where it was when espalierd
  // was away for a while.
  absl::Status Logs(v1::LogsRequest request, const std::function<bool(const std::string&)>& sink);

 private:
  // How long a call and a stream may last.
  struct Times {
    absl::Duration call;
    absl::Duration stream;
  };
  OperatorClient(ChannelTarget target, std::shared_ptr<grpc::Channel> channel, Clock& clock,
                 Times times);
  void Prepare(grpc::ClientContext& call) const;
  absl::Status Explain(const grpc::Status& status) const;

  // Until it may be tried again to reach espalierd.
  void AwaitConnection();

  ChannelTarget target_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::OperatorService::Stub> stub_;
  Clock* clock_;
  Times times_;
};

}  // namespace espalier::ctl
