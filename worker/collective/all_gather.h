// AllGather: the half of an exchange in which every rank's part comes to all others, chunk by chunk
// and in place. A broadcast is one in which all is the root's part. Each message whose completion
// makes room starts the next; the caller polls until nothing is pending.
// Used by exchange.h. Communication thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/collective/layout.h"
#include "worker/collective/messages.h"

namespace espalier {

class AllGather {
 public:
  enum class Route {
    kDirect,  // from the owner to each: one step
    kRing,    // from rank to rank: nobody's line carries a chunk twice, whoever owns how much
  };
  // All outlive the messages.
  AllGather(Messages& messages, const Layout& layout, int depth, Route route);

  // Sends and receives all parts, up to `depth` chunks of each at a time.
  void Start();

  // Instead, where the caller knows when each chunk may travel (direct):
  // a chunk of this rank's part is final and encoded, and is decoded again when it is sent;
  void Send(int64_t chunk) { PassOn(layout_.rank(), chunk); }
  // the place of a chunk of another's part is free.
  void Receive(int owner, int64_t chunk);

  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  std::vector<int> Receivers(int owner) const;
  void PassOn(int owner, int64_t chunk);
  void Over(int owner, int64_t chunk);
  void Begin(int owner, int64_t chunk);

  Messages& messages_;
  const Layout& layout_;
  const int depth_;
  const Route route_;
  bool continues_ = false;  // one chunk that is over lets the next begin
  int64_t bytes_sent_ = 0;
};

}  // namespace espalier
