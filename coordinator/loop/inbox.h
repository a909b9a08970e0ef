// Inbox: the bounded queue through which gRPC's threads reach the loop. Used by coordinator/loop
// and coordinator/service. Thread rule: any thread puts, the loop's thread takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "coordinator/core/event.h"
#include "coordinator/core/state.h"
#include "espalier/v1/operator.pb.h"
#include "espalier/v1/worker.pb.h"

namespace espalier {

// A message of a worker. The stream reads its next one when `taken` is called, so each stream has
// at most one message here.
struct StreamMessage {
  StreamId stream;
  v1::AttachRequest message;
  std::function<void()> taken;
};
// The stream is gone; nothing more comes from it.
struct StreamClosed {
  StreamId stream;
};

// What a node's agent said, as an event of the core. The stream reads its next message when `taken`
// is called (it may be empty), after what was decided has been done.
struct AgentInput {
  Event event;
  std::function<void()> taken;
};

// What an operator's call gets, once what it asked for is in the journal.
struct Answer {
  // Submit only.
  std::string job_id;
  // Of a pause: what it frees and what resuming will cost.
  std::string explanation;
  // The job was so already, as the explanation says.
  bool nothing_to_do = false;
};
// What a person, or a machine that joins, asks for. Those of nodes are events already, but for
// their number.
using OperatorRequest = std::variant<v1::SubmitRequest, v1::PauseRequest, v1::ResumeRequest,
                                     v1::CancelRequest, v1::CheckpointRequest, NodeInvited,
                                     NodeJoined, NodeForgotten, NodeDrained, NodeAllowed, NodeSet>;
struct OperatorCall {
  OperatorRequest request;
  // Called once, by the loop's thread; must not block.
  std::function<void(absl::StatusOr<Answer>)> reply;
};

using Input = std::variant<StreamMessage, StreamClosed, AgentInput, OperatorCall>;

class Inbox {
 public:
  struct Options {
    // Operator calls that may wait. Streams are bounded by their own number.
    size_t calls_max = 256;
  };
  explicit Inbox(Options options) : options_(options) {}

  // False: too many operator calls wait, or the inbox is closed; the input is dropped.
  bool Put(Input input);
  // Everything that waits; waits up to `timeout` for the first.
  std::vector<Input> Take(absl::Duration timeout);
  // How long ago each input of the last Take had come. For the taker's thread.
  std::vector<absl::Duration> AgesOfTaken() const;
  // Wakes the taker and refuses what comes later.
  void Close();
  // Makes Take return at once, once.
  void Wake();

  size_t depth() const;
  int64_t rejected() const;

 private:
  const Options options_;
  mutable absl::Mutex mutex_;
  SteadyCondition arrived_;
  std::deque<Input> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Duration> came_ ABSL_GUARDED_BY(mutex_);  // of those that wait, monotonic
  std::vector<absl::Duration> taken_came_;                    // the taker's
  size_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t rejected_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace espalier
