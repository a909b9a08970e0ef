#include "coordinator/service/stream_pump.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status Stopping() {
  return absl::UnavailableError("espalierd is stopping; jobs go on, ask again when it is back");
}

}  // namespace

StreamPump::StreamPump(Clock& clock, Options options)
    : clock_(clock), options_(options), thread_([this] { Run(); }) {}

StreamPump::~StreamPump() { Stop(); }

absl::Status StreamPump::Add(std::shared_ptr<PumpedStream> stream) {
  std::lock_guard lock(mutex_);
  if (stopping_) return Stopping();
  if (streams_.size() >= options_.streams_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        streams_.size(), " streams are open, which is the most; close a watch or a followed log"));
  }
  streams_.insert(std::move(stream));
  return absl::OkStatus();
}

void StreamPump::Remove(const std::shared_ptr<PumpedStream>& stream) {
  std::lock_guard lock(mutex_);
  streams_.erase(stream);
}

void StreamPump::Stop() {
  std::vector<std::shared_ptr<PumpedStream>> open;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    open.assign(streams_.begin(), streams_.end());
  }
  stop_.notify_all();
  for (const auto& stream : open) stream->Close(Stopping());
  if (thread_.joinable()) thread_.join();
}

void StreamPump::Run() {
  for (;;) {
    std::vector<std::shared_ptr<PumpedStream>> open;
    {
      std::unique_lock lock(mutex_);
      stop_.wait_for(lock, absl::ToChronoNanoseconds(options_.interval),
                     [this] { return stopping_; });
      if (stopping_) return;
      open.assign(streams_.begin(), streams_.end());
    }
    for (const auto& stream : open) stream->Pump(clock_.Monotonic());
  }
}

}  // namespace espalier
