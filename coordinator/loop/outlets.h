// Outlets: what the loop tells the rest of the daemon, through interfaces that the rest implements:
// WorkerStreams to the workers, AgentStreams to the nodes' agents, LoopObserver to whoever shows
// what happens. Implemented by coordinator/service, and by the tests in memory. Used by
// coordinator/loop and coordinator/service. Thread rule: called by the loop's thread only; never
// blocks. The rest are plain values.
#pragma once

#include <array>
#include <cstdint>
#include <set>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/event.h"
#include "coordinator/core/state.h"
#include "espalier/v1/agent.pb.h"
#include "espalier/v1/worker.pb.h"

namespace espalier {

// The open Attach streams.
class WorkerStreams {
 public:
  virtual ~WorkerStreams() = default;
  // Sends a message soon. Of several directives that wait, only the newest is sent: each says the
  // whole of what is wanted; so of renewals. A stream that is gone already is no error.
  virtual void Send(StreamId stream, v1::AttachResponse message) = 0;
  // Ends the stream with this status, after what was sent before.
  virtual void Close(StreamId stream, const absl::Status& status) = 0;
};

// The open streams of nodes' agents, which WorkerStreams::Close ends too.
class AgentStreams {
 public:
  virtual ~AgentStreams() = default;
  // In order. A stream that is gone already is no error.
  virtual void Send(StreamId stream, v1::AgentCommand command) = 0;
};

// Durations counted in buckets, for a metric.
class Latency {
 public:
  // Upper bounds of the buckets in seconds; one more bucket holds the rest.
  static constexpr std::array<double, 12> kBounds = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02,
                                                     0.05,   0.1,   0.25,  1,     2.5,  10};

  void Add(absl::Duration duration) {
    const double seconds = absl::ToDoubleSeconds(duration);
    size_t bucket = 0;
    while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
    ++counts_[bucket];
    sum_ += seconds;
  }
  // Not cumulative; the last one is above every bound.
  const std::array<int64_t, kBounds.size() + 1>& counts() const { return counts_; }
  double sum_seconds() const { return sum_; }

 private:
  std::array<int64_t, kBounds.size() + 1> counts_ = {};
  double sum_ = 0;
};

struct LoopStats {
  // Of each attempt at a commit.
  Latency journal;
  int64_t journal_failures = 0;
  // Of each input, from its arrival to when what it led to was done.
  Latency handling;
  int64_t events = 0;
};

// What is true after a turn: all of it is journaled.
struct Publication {
  const ClusterState& state;
  // Jobs to be shown anew.
  const std::set<JobId>& changed;
  // The monotonic time at state.now.
  absl::Duration monotonic;
  const LoopStats& stats;
};

// Who shows what happens. It decides nothing, so nothing comes back. `now` is monotonic.
class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  // A worker's message, before the core sees it.
  virtual void Heard(const WorkerId& worker, const v1::AttachRequest& message,
                     absl::Duration now) = 0;
  // The worker was welcomed.
  virtual void Attached(const WorkerId& worker, absl::Duration now) = 0;
  // The job went from one state to another on this event; not journaled yet.
  virtual void Moved(const JobId& job, JobState from, JobState to, const Event& event,
                     absl::Duration now) = 0;
  virtual void Publish(const Publication& publication) = 0;
  // The journal cannot be written: what was published last still stands.
  virtual void Stalled(const LoopStats& stats) = 0;
};

}  // namespace espalier
