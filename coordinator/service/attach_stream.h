// AttachStream: the server's end of one worker's stream. Private to the attach service.
// Thread rule: any thread. The lock is recursive because gRPC may run a reaction inside the very
// call that starts an operation; it is held across those calls so that none follows Finish.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "coordinator/loop/inbox.h"
#include "espalier/v1/worker.grpc.pb.h"

namespace espalier {

class AttachStream : public grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>,
                     public std::enable_shared_from_this<AttachStream> {
 public:
  // `forget` is called once, last: it drops the owner's pointer.
  AttachStream(LinkId link, Inbox& inbox, std::function<void()> forget);

  void Start();
  void Send(v1::AttachResponse message);
  void Close(const absl::Status& status);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void ReadOn();
  void WriteOn();
  void ReportClosed();

  const LinkId link_;
  Inbox& inbox_;
  const std::function<void()> forget_;
  std::recursive_mutex mutex_;
  v1::AttachRequest incoming_;
  v1::AttachResponse outgoing_;
  std::optional<v1::AttachResponse> welcome_;
  std::optional<v1::AttachResponse> directive_;
  std::optional<absl::Status> close_;
  bool writing_ = false;
  bool finished_ = false;
  bool reported_closed_ = false;
};

}  // namespace espalier
