// OperatorService over gRPC: reads answer from the published view and the journal, changes go to
// the loop's inbox and are answered when they are journaled. Used by daemon.cc. Thread rule: runs
// on gRPC's threads.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "coordinator/journal/journal.h"
#include "coordinator/loop/inbox.h"
#include "coordinator/service/enrolment.h"
#include "coordinator/service/stream_pump.h"
#include "coordinator/service/view.h"
#include "espalier/v1/operator.grpc.pb.h"

namespace espalier {

// All outlive the service.
struct OperatorBackend {
  Inbox* inbox = nullptr;
  const ViewBoard* board = nullptr;
  Journal* journal = nullptr;
  StreamPump* pump = nullptr;
  // Holds jobs/ID/logs.
  std::string state_dir;
  const Enrolment* enrolment = nullptr;
  // Where jobs may write beside state_dir; see job_folders.h.
  std::vector<std::string> writable_folders;
};

class OperatorService : public v1::OperatorService::CallbackService {
 public:
  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  explicit OperatorService(OperatorBackend backend) : backend_(std::move(backend)) {}

  Reactor* Submit(Context*, const v1::SubmitRequest*, v1::SubmitResponse*) override;
  Reactor* Pause(Context*, const v1::PauseRequest*, v1::PauseResponse*) override;
  Reactor* Resume(Context*, const v1::ResumeRequest*, v1::ResumeResponse*) override;
  Reactor* Cancel(Context*, const v1::CancelRequest*, v1::CancelResponse*) override;
  Reactor* Checkpoint(Context*, const v1::CheckpointRequest*, v1::CheckpointResponse*) override;

  Reactor* AddNode(Context*, const v1::AddNodeRequest*, v1::AddNodeResponse*) override;
  Reactor* ForgetNode(Context*, const v1::ForgetNodeRequest*, v1::ForgetNodeResponse*) override;
  Reactor* DrainNode(Context*, const v1::DrainNodeRequest*, v1::DrainNodeResponse*) override;
  Reactor* AllowNode(Context*, const v1::AllowNodeRequest*, v1::AllowNodeResponse*) override;
  Reactor* SetNode(Context*, const v1::SetNodeRequest*, v1::SetNodeResponse*) override;

  Reactor* ListJobs(Context*, const v1::ListJobsRequest*, v1::ListJobsResponse*) override;
  Reactor* GetJob(Context*, const v1::GetJobRequest*, v1::GetJobResponse*) override;
  Reactor* ListNodes(Context*, const v1::ListNodesRequest*, v1::ListNodesResponse*) override;
  Reactor* ListEvents(Context*, const v1::ListEventsRequest*, v1::ListEventsResponse*) override;
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(Context*, const v1::WatchRequest*) override;
  grpc::ServerWriteReactor<v1::LogsResponse>* Logs(Context*, const v1::LogsRequest*) override;

 private:
  // Resolves the job of the request and hands it to the loop; `fill` turns the answer into the
  // response.
  template <typename Request, typename Fill>
  Reactor* Enqueue(Context* context, const Request& request, Fill fill);
  std::vector<std::string> WritableFolders() const;

  OperatorBackend backend_;
};

}  // namespace espalier
