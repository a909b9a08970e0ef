// Exchange: one operation of a Collective as messages, from its announcement to its last byte. An
// all-reduce is a reduce-scatter whose sums go into an all-gather as soon as each chunk is added
// up. Used by communication_thread.cc and in_process.cc. Communication thread only.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "worker/collective/all_gather.h"
#include "worker/collective/announcement.h"
#include "worker/collective/collective.h"
#include "worker/collective/layout.h"
#include "worker/collective/messages.h"
#include "worker/collective/reduce_scatter.h"

namespace espalier {

class Exchange {
 public:
  // All outlive the messages. `number`: of the operation among all of this world, from 1.
  Exchange(Messages& messages, const ExchangeOptions& options, ScratchMemory& scratch,
           const Operation& operation, int64_t number);
  // Starts messages whose completion starts the next; the operation is over when none is pending.
  void Start();
  // See Announcements; to be asked after every poll, before the poll's own error.
  const absl::Status& mismatch() const { return announcements_.mismatch(); }
  bool sums() const { return scatter_.has_value(); }
  int64_t bytes_sent() const {
    return gather_.bytes_sent() + (scatter_ ? scatter_->bytes_sent() : 0);
  }

 private:
  void Summed(int64_t chunk);
  void Sent(int owner, int64_t chunk);

  const Operation& operation_;
  const Layout layout_;
  Announcements announcements_;
  std::optional<ReduceScatter> scatter_;  // of sums
  AllGather gather_;
};

}  // namespace espalier
