// Transfers: copies between host memory and a device while the device computes: on a stream of
// their own where the device has streams (CUDA); in its only queue, with an event behind each,
// where it has events (MPS, see HasEvents); elsewhere at once, which waits for all that it was
// asked for. Used by worker/model, worker/state, worker/sync, worker/task and worker/train. One
// transfer at a time, from the thread that runs the forward pass or the one that runs the backward
// pass.
#pragma once

#include <c10/core/Event.h>

#include <deque>
#include <optional>
#include <vector>

#include "worker/tensor/torch.h"

namespace espalier {

class Transfers {
 public:
  // A copy that is under way, or done.
  class Copy {
   public:
    Copy() = default;
    explicit Copy(c10::Event event) : event_(std::move(event)) {}
    bool Done() const { return !event_ || event_->query(); }
    void Wait() const;

   private:
    std::optional<c10::Event> event_;
  };

  explicit Transfers(torch::Device device);
  // Waits for what the device still reads.
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // Copies from the device, after all that the current stream was asked for until now. `to` is
  // valid, and may be given up, when the copy is done.
  Copy ToHost(const torch::Tensor& from, const torch::Tensor& to);
  // What comes next waits for all that the current stream was asked for until now.
  void Follow();
  // Copies from the device, after the transfers until now. Any thread, but one at a time.
  Copy ToHostInTurn(const torch::Tensor& from, const torch::Tensor& to);
  // The same, of what will be wanted on the device again: where it has streams, ToDevice of what
  // lies at `to` then gives `from`, after the next call of KeepNewOnly until the one after that.
  // The host's copy must not change in between.
  Copy ToHostAndKeep(const torch::Tensor& from, const torch::Tensor& to);
  void KeepNewOnly();
  // What is kept is given up.
  void KeepNothing();
  // Copies into a tensor of the device, after the transfers until now.
  void ToDevice(const torch::Tensor& from, const torch::Tensor& to);
  // A copy of host memory on the device, for the current stream; `from` may be given up at once.
  torch::Tensor ToDevice(const torch::Tensor& from);
  // Memory of the host, for a tensor that goes to the device by ToDevice and nowhere else: where it
  // has streams they read it in place. Not written again after that.
  torch::Tensor OnHost(at::IntArrayRef sizes, torch::ScalarType type) const;
  // What the current stream is asked for from now on sees all transfers until now.
  void Join();

 private:
  struct Sent {
    torch::Tensor from;
    Copy copy;
  };
  struct Both {
    const void* on_host;
    torch::Tensor on_device;
  };

  // Of all that was asked for until now.
  Copy Mark() const;
  // Whether a copy to the host is one for LibTorch, too, which a device with one queue can be left
  // alone with.
  bool Follows(const torch::Tensor& from, const torch::Tensor& to) const;
  torch::Tensor Send(const torch::Tensor& from);
  // What is on the device of memory of the host; undefined: nothing.
  torch::Tensor Kept(const torch::Tensor& on_host) const;

  std::optional<c10::Stream> stream_;  // none: the device has one queue, or is the CPU
  torch::Device device_;
  std::deque<Sent> sent_;  // with one queue: what it may not have read yet
  std::vector<Both> kept_, new_;
};

}  // namespace espalier
