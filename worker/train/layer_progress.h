// Progress within a pass, and looks at its memory: told when a layer's work is done, not when it is
// queued. The CPU computes while it is asked, and CUDA's passes are short; on MPS a whole pass is
// queued in a moment and may then compute for longer than failure_timeout, so the device is waited
// for about once a second. And whether all of it was done. Used by worker/train. Compute thread,
// and autograd's thread of the device.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "worker/sync/together.h"
#include "worker/tensor/torch.h"

namespace espalier {

// For PassInputs::worked: forward and backward of each layer call it. The progress of the context
// must outlive what is returned. Keep it from pass to pass, so that it keeps its pace.
std::function<void(int64_t)> LayerProgress(const RankContext& context, torch::Device device);

// How many layers to queue between two waits for the device, found by how long these take: twice as
// many when a wait took under a quarter of a second, half when it took over one. Anything between
// is left, so that the number settles.
class DevicePacer {
 public:
  // `wait` returns when all that was queued is done.
  DevicePacer(std::function<void()> wait, Clock& clock);
  // A layer was queued. True: it and all before it are done, which may have taken a while; false:
  // nothing is known of them yet.
  bool Queued();

 private:
  const std::function<void()> wait_;  // on the thread that calls Queued
  Clock& clock_;
  absl::Duration waited_at_;
  int64_t interval_ = 1;
  int64_t queued_ = 0;
};

// What the device has done of what it was asked for. On MPS LibTorch looks at no command buffer's
// status: one that the GPU aborts (macOS's watchdog, a page fault, no memory) leaves what was there
// before, and nothing says so (pytorch#125954, #193571). So the device counts behind each layer's
// work and each copy of gradients, and what was lost takes its counts along. What is lost between
// two counts alone is not seen. Nothing is counted on the CPU and on CUDA, which report errors.
class WorkCount {
 public:
  explicit WorkCount(torch::Device device);
  // Behind all that was queued until now.
  void Add();
  // Waits for the device. INTERNAL when it did less than it was asked for, since this was made.
  absl::Status Check() const;

 private:
  torch::Tensor done_;  // [1] int32, on the device; undefined: nothing is counted
  uint32_t asked_ = 0;  // of which done_ shows the bits
};

}  // namespace espalier
