// Outbox: the messages that a worker still has to tell the coordinator. What the coordinator must
// know after a reconnection (ready, newest ack, evaluation, checkpoint) is kept and told again;
// reports of steps, and of what is done before them, are told once, and the oldest are dropped when
// nobody listens for long. Used by
// attach_client.cc. Not thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>

#include "espalier/v1/worker.pb.h"

namespace espalier {

class Outbox {
 public:
  explicit Outbox(size_t steps_max) : steps_max_(steps_max) {}

  void Add(v1::AttachRequest message);
  // The next message to write, in an order that makes sense: ready, steps, the rest, finished.
  std::optional<v1::AttachRequest> Take();
  // The stream is new: everything kept has to be told again.
  void Reconnected();
  bool empty() const { return waiting_.empty(); }
  int64_t dropped_steps() const { return dropped_steps_; }

 private:
  const size_t steps_max_;
  std::deque<v1::AttachRequest> waiting_;
  // The newest of each kind that is kept, by field number.
  std::map<int, v1::AttachRequest> kept_;
  size_t steps_waiting_ = 0;
  int64_t dropped_steps_ = 0;
};

}  // namespace espalier
