// StreamPump: one thread that looks, ten times a second, whether an open server stream (a watched
// job, a followed log) has something new to write. So a stream costs no thread, and a slow client
// only its own stream. Used by operator_service.h and pumped_writer.h. Thread rule: any thread.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace espalier {

class PumpedStream {
 public:
  virtual ~PumpedStream() = default;
  // Writes what is new, unless a write is under way.
  virtual void Pump() = 0;
  // Ends the stream.
  virtual void Close(const absl::Status& status) = 0;
};

class StreamPump {
 public:
  struct Options {
    absl::Duration interval = absl::Milliseconds(100);
    // More streams are refused.
    size_t streams_max = 256;
    // Called at each look, for what else is to be done so often; may be empty.
    std::function<void()> also;
  };
  // `clock` outlives the pump.
  StreamPump(Clock& clock, Options options);
  ~StreamPump();

  // Keeps the stream until Remove. RESOURCE_EXHAUSTED: too many; UNAVAILABLE: stopping.
  absl::Status Add(std::shared_ptr<PumpedStream> stream);
  void Remove(const std::shared_ptr<PumpedStream>& stream);
  // Ends every stream and the thread; later ones are refused.
  void Stop();
  absl::Duration now() { return clock_.Monotonic(); }

 private:
  void Run();

  Clock& clock_;
  const Options options_;
  absl::Mutex mutex_;
  SteadyCondition stop_;
  std::set<std::shared_ptr<PumpedStream>> streams_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace espalier
