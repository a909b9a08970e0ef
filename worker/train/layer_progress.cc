#include "worker/train/layer_progress.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/platform/platform.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

// Between two waits: often enough for the shortest failure_timeout that passes on a device allow,
// and rare enough to cost nothing.
constexpr absl::Duration kLongest = absl::Seconds(1);
constexpr absl::Duration kShortest = absl::Milliseconds(250);
constexpr int64_t kLayersMax = 1024;

}  // namespace

DevicePacer::DevicePacer(std::function<void()> wait, Clock& clock)
    : wait_(std::move(wait)), clock_(clock), waited_at_(clock.Monotonic()) {}

bool DevicePacer::Queued() {
  if (++queued_ < interval_) return false;
  wait_();
  const absl::Duration now = clock_.Monotonic();
  const absl::Duration took = now - std::exchange(waited_at_, now);
  queued_ = 0;
  if (took > kLongest) interval_ = std::max<int64_t>(1, interval_ / 2);
  if (took < kShortest) interval_ = std::min(kLayersMax, interval_ * 2);
  return true;
}

WorkCount::WorkCount(torch::Device device) {
  if (device.is_cpu() || device.is_cuda()) return;
  done_ = torch::zeros({1}, torch::TensorOptions(device).dtype(torch::kInt32));
}

void WorkCount::Add() {
  if (!done_.defined()) return;
  const torch::NoGradGuard no_grad;
  done_.add_(1);
  ++asked_;
}

absl::Status WorkCount::Check() const {
  if (!done_.defined()) return absl::OkStatus();
  uint32_t done = 0;
  RETURN_IF_ERROR(CatchTorch("reading what the device has done",
                             [&] { done = static_cast<uint32_t>(done_.item<int32_t>()); }));
  if (done == asked_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "device ", done_.device().str(), " did not do all of the step: ", asked_ - done,
      " of its layers' passes and copies were lost, as when macOS ends work of the GPU that takes "
      "too long or too much memory; nothing of the step is used. If this comes back, give "
      "batch.max_micro_batch, so that passes are shorter, or let the machine do less beside"));
}

std::function<void(int64_t)> LayerProgress(const RankContext& context, torch::Device device) {
  ProgressBoard& progress = context.progress;
  if (device.is_cpu() || device.is_cuda()) {
    return [&progress](int64_t next) {
      SampleRecentPeak();
      progress.At(next + 1);
      progress.Worked();
    };
  }
  // Reading a value back waits for the stream, in every version of LibTorch.
  const auto wait = [probe = torch::zeros({1}, torch::TensorOptions(device))] {
    torch::NoGradGuard no_grad;
    probe.item<float>();
  };
  const auto pacer = std::make_shared<DevicePacer>(wait, context.clock);
  return [pacer, &progress](int64_t next) {
    SampleRecentPeak();
    if (!pacer->Queued()) return;
    progress.At(next + 1);
    progress.Worked();
  };
}

}  // namespace espalier
