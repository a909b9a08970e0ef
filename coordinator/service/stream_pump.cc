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
    : clock_(clock), options_(std::move(options)), thread_([this] { Run(); }) {}

StreamPump::~StreamPump() { Stop(); }

absl::Status StreamPump::Add(std::shared_ptr<PumpedStream> stream) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return Stopping();
  if (streams_.size() >= options_.streams_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        streams_.size(), " streams are open, which is the most; close a watch or a followed log"));
  }
  streams_.insert(std::move(stream));
  return absl::OkStatus();
}

void StreamPump::Remove(const std::shared_ptr<PumpedStream>& stream) {
  absl::MutexLock lock(&mutex_);
  streams_.erase(stream);
}

void StreamPump::Stop() {
  std::vector<std::shared_ptr<PumpedStream>> open;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    open.assign(streams_.begin(), streams_.end());
  }
  stop_.WakeAll();
  for (const auto& stream : open) stream->Close(Stopping());
  if (thread_.joinable()) thread_.join();
}

void StreamPump::Run() {
  for (;;) {
    std::vector<std::shared_ptr<PumpedStream>> open;
    {
      absl::MutexLock lock(&mutex_);
      const bool stopping =
          stop_.Wait(mutex_, options_.interval,
                     [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
      if (stopping) return;
      open.assign(streams_.begin(), streams_.end());
    }
    for (const auto& stream : open) stream->Pump();
    if (options_.also) options_.also();
  }
}

}  // namespace espalier
