#include "worker/tensor/transfers.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

c10::Stream CurrentStream(torch::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// `later` goes on when `earlier` has done what it was asked for until now.
void Order(c10::Stream earlier, c10::Stream later) {
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

}  // namespace

void Transfers::Copy::Wait() const {
  if (event_) WaitForEvent(*event_);
}

Transfers::Transfers(torch::Device device) : device_(device) {
  if (!device.is_cuda()) return;
  const c10::impl::VirtualGuardImpl streams(device.type());
  if (!device_.has_index()) device_ = streams.getDevice();
  stream_ = streams.getStreamFromGlobalPool(device_);
}

Transfers::~Transfers() {
  CatchTorch("waiting for transfers", [&] {
    for (const Sent& sent : sent_) sent.copy.Wait();
  }).IgnoreError();
}

Transfers::Copy Transfers::Mark() const {
  c10::Event event(device_.type());
  event.record(stream_ ? *stream_ : CurrentStream(device_));
  return Copy(std::move(event));
}

// Otherwise LibTorch makes a copy of the copy, on the host, before the device has made the first.
bool Transfers::Follows(const Tensor& from, const Tensor& to) const {
  return HasEvents(device_) && from.scalar_type() == to.scalar_type() && from.is_contiguous() &&
         to.is_contiguous() && from.sizes() == to.sizes();
}

Transfers::Copy Transfers::ToHost(const Tensor& from, const Tensor& to) {
  Follow();
  return ToHostInTurn(from, to);
}

void Transfers::Follow() {
  if (stream_) Order(CurrentStream(device_), *stream_);
}

Transfers::Copy Transfers::ToHostInTurn(const Tensor& from, const Tensor& to) {
  if (!stream_ && !Follows(from, to)) {
    to.copy_(from);
    return {};
  }
  c10::OptionalStreamGuard guard;
  if (stream_) guard.reset_stream(*stream_);
  to.copy_(from, /*non_blocking=*/true);
  return Mark();
}

Transfers::Copy Transfers::ToHostAndKeep(const Tensor& from, const Tensor& to) {
  if (stream_) {
    from.record_stream(*stream_);  // it may be given up before it is copied
    new_.push_back({to.data_ptr(), from});
  }
  return ToHostInTurn(from, to);
}

void Transfers::KeepNewOnly() {
  kept_ = std::move(new_);
  new_.clear();
}

void Transfers::KeepNothing() {
  kept_.clear();
  new_.clear();
}

Tensor Transfers::Kept(const Tensor& on_host) const {
  for (const Both& both : kept_) {
    const bool same = both.on_host == on_host.data_ptr() &&
                      both.on_device.scalar_type() == on_host.scalar_type() &&
                      both.on_device.sizes() == on_host.sizes() && on_host.is_contiguous();
    if (same) return both.on_device;
  }
  return {};
}

void Transfers::ToDevice(const Tensor& from, const Tensor& to) {
  c10::OptionalStreamGuard guard;
  if (stream_) guard.reset_stream(*stream_);
  to.copy_(from, /*non_blocking=*/!!stream_);
}

// LibTorch on MPS lets go of memory of the host that the device has not read yet (pytorch#139550,
// #189690), and knows nothing of memory that is not its own.
Tensor Transfers::Send(const Tensor& from) {
  while (!sent_.empty() && sent_.front().copy.Done()) sent_.pop_front();
  sent_.push_back({from.clone(), {}});
  Tensor to = sent_.back().from.to(device_, /*non_blocking=*/true);
  sent_.back().copy = Mark();
  return to;
}

Tensor Transfers::ToDevice(const Tensor& from) {
  if (!stream_) return HasEvents(device_) ? Send(from) : from.to(device_);
  if (const Tensor kept = Kept(from); kept.defined()) return kept;
  const c10::Stream current = CurrentStream(device_);
  Tensor to;
  {
    const c10::StreamGuard guard(*stream_);
    to = from.pin_memory().to(device_, /*non_blocking=*/true);
  }
  Order(*stream_, current);
  to.record_stream(current);
  return to;
}

Tensor Transfers::OnHost(at::IntArrayRef sizes, torch::ScalarType type) const {
  return torch::empty(sizes, torch::TensorOptions(type).pinned_memory(stream_.has_value()));
}

void Transfers::Join() {
  if (stream_) Order(*stream_, CurrentStream(device_));
}

}  // namespace espalier
