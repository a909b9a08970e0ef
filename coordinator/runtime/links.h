// WorkerLinks: the open Attach streams, as the loop sees them. Implemented by coordinator/service
// over gRPC and by the tests in memory.
// Thread rule: called by the loop's thread only; never blocks.
#pragma once

#include "absl/status/status.h"
#include "coordinator/core/state.h"
#include "espalier/v1/worker.pb.h"

namespace espalier {

class WorkerLinks {
 public:
  virtual ~WorkerLinks() = default;
  // Sends a message soon. Of several directives that wait, only the newest is sent: each says the
  // whole of what is wanted. A link that is gone already is no error.
  virtual void Send(LinkId link, v1::AttachResponse message) = 0;
  // Ends the stream with this status, after what was sent before.
  virtual void Close(LinkId link, const absl::Status& status) = 0;
};

}  // namespace espalier
