// What differs between LibTorch 1.13 and 2.x, and between its exceptions and our statuses, in one
// place. Used by all of worker/ that computes with tensors. Any thread.
#pragma once

#include <c10/core/Event.h>

#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/tensor/torch.h"

namespace espalier {

// RESOURCE_EXHAUSTED for an allocation that failed on any device, INTERNAL for anything else; the
// message is "WHAT: LibTorch's first line".
absl::Status StatusFromTorch(const std::exception& error, absl::string_view what);

// Runs `body`, which may throw.
template <typename Body>
absl::Status CatchTorch(absl::string_view what, Body&& body) {
  try {
    std::forward<Body>(body)();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return StatusFromTorch(error, what);
  }
}

// Calls `hook` in the backward pass when the whole gradient of `tensor` is known, that is when
// everything computed from `tensor` has run its backward. Nothing when it needs no gradient.
void OnGradient(const torch::Tensor& tensor, std::function<void()> hook);

// Calls `hook` in the backward pass right after the operation that made `tensor` has run its own.
void AfterBackward(const torch::Tensor& tensor, std::function<void()> hook);

// Attention, causal or to all positions, by LibTorch's fused kernels, forward and backward, where
// it has them for this device and type; nothing otherwise. q [B, T, H, D], k and v [B, T, K, D] ->
// [B, T, H, D].
std::optional<torch::Tensor> LibraryAttention(const torch::Tensor& q, const torch::Tensor& k,
                                              const torch::Tensor& v, bool causal);

// c + a b, and the same added to c in place: c is fp32 or of the type of a and b. On CUDA nothing
// is rounded to 16 bits on the way where LibTorch can do that (from 2.8 on).
torch::Tensor PlusProduct(const torch::Tensor& c, const torch::Tensor& a, const torch::Tensor& b);
void AddProduct(const torch::Tensor& c, const torch::Tensor& a, const torch::Tensor& b);

// Whether events can be recorded in the device's queue, to know later how far it is: nothing has to
// wait for all of it then. On MPS from LibTorch 2.7 on; before, recording one ends the process
// (pytorch#133572, mended by #142468).
bool HasEvents(torch::Device device);
// Blocks the calling thread until the device has reached the event.
void WaitForEvent(const c10::Event& event);

// Whether matrix products of fp32 on CUDA may round their inputs to TF32, in this process.
void AllowTf32(bool allow);

bool HasCuda();
bool HasMps();
// LibTorch's version, such as "1.13.1".
absl::string_view TorchVersion();

}  // namespace espalier
