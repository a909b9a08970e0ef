// What an autograd function keeps besides the tensors of the pass: a value, whose tensors are
// leaves (others would keep their own graph alive). Used by fused_linear.cc, fused_ops.cc and
// fused_feed_forward.cc. Compute thread, or autograd's.
#pragma once

#include <utility>

#include "worker/tensor/torch.h"

namespace espalier::fused_ops {

template <typename Value>
struct Holder : torch::CustomClassHolder {
  explicit Holder(Value held) : value(std::move(held)) {}
  Value value;
};

template <typename Value>
void Hold(torch::autograd::AutogradContext* ctx, const Value& value) {
  ctx->saved_data["held"] = c10::IValue::make_capsule(c10::make_intrusive<Holder<Value>>(value));
}

template <typename Value>
Value Held(torch::autograd::AutogradContext* ctx) {
  const auto capsule = ctx->saved_data["held"].toCapsule();
  return static_cast<const Holder<Value>&>(*capsule).value;
}

}  // namespace espalier::fused_ops
