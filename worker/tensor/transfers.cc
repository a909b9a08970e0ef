#include "worker/tensor/transfers.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

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

Transfers::Copy Transfers::ToHost(const Tensor& from, const Tensor& to) {
  Follow();
  return ToHostInTurn(from, to);
}

void Transfers::Follow() {
  if (stream_) Order(CurrentStream(device_), *stream_);
}

Transfers::Copy Transfers::ToHostInTurn(const Tensor& from, const Tensor& to) {
  if (!stream_) {
    to.copy_(from);
    return {};
  }
  const c10::StreamGuard guard(*stream_);
  to.copy_(from, /*non_blocking=*/true);
  c10::Event copied(device_.type());
  copied.record(*stream_);
  return Copy(std::move(copied));
}

void Transfers::ToDevice(const Tensor& from, const Tensor& to) {
  c10::OptionalStreamGuard guard;
  if (stream_) guard.reset_stream(*stream_);
  to.copy_(from, /*non_blocking=*/!!stream_);
}

Tensor Transfers::ToDevice(const Tensor& from) {
  if (!stream_) return from.to(device_);
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

void Transfers::Join() {
  if (stream_) Order(*stream_, CurrentStream(device_));
}

}  // namespace espalier
