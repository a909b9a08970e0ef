// AttachOutbox: what waits to be written to a worker. A welcome goes first; of several directives
// that wait only the newest is kept, since each says the whole of what is wanted, and so of
// renewals. Used by coordinator/service/attach_stream.h and by the simulator, whose streams are
// slow to be read, too. One thread, or its owner's lock.
#pragma once

#include <optional>
#include <utility>

#include "espalier/v1/worker.pb.h"

namespace espalier {

class AttachOutbox {
 public:
  void Put(v1::AttachResponse message) { Slot(message) = std::move(message); }
  // What is to be written next; absent: nothing waits.
  std::optional<v1::AttachResponse> Take() {
    std::optional<v1::AttachResponse>& next =
        welcome_ ? welcome_ : (directive_ ? directive_ : renewal_);
    return std::exchange(next, std::nullopt);
  }
  void Clear() {
    welcome_.reset();
    directive_.reset();
    renewal_.reset();
  }

 private:
  std::optional<v1::AttachResponse>& Slot(const v1::AttachResponse& message) {
    if (message.has_welcome()) return welcome_;
    return message.has_directive() ? directive_ : renewal_;
  }

  std::optional<v1::AttachResponse> welcome_;
  std::optional<v1::AttachResponse> directive_;
  std::optional<v1::AttachResponse> renewal_;
};

}  // namespace espalier
