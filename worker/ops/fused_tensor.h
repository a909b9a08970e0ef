// What the CPU path's autograd functions share: raw access to fp32 and bf16 tensors, and the
// delivery of gradients to the leaves they belong to. Used by worker/ops. Compute thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/kernels/bf16.h"
#include "worker/ops/cuda_ops.h"
#include "worker/tensor/torch.h"

namespace espalier::fused_ops {

// Whether x is of a device and type that our kernels take; else LibTorch's operators do.
inline bool Apply(const torch::Tensor& x) {
  if (!x.is_cpu()) return cuda::Apply(x);
  return x.scalar_type() == torch::kFloat || x.scalar_type() == torch::kBFloat16;
}
// Whether those of norms do too, whose rows are limited on CUDA.
inline bool ApplyToNorms(const torch::Tensor& x) {
  return Apply(x) && (x.is_cpu() || x.size(-1) <= cuda::kMostNormColumns);
}

// Whether what feeds a product is kept for the backward pass rather than made again. On
// accelerators making it again costs more time than on the CPU, compared with the product; only
// where a kernel of ours makes it, and only adapters ask for it since the weights are frozen, the
// memory is worth more.
inline bool KeepsInputs(const torch::Tensor& x, bool frozen) {
  return !Apply(x) || !(x.is_cpu() || frozen);
}

// What a function was given to take instead of making it, which is no variable of it; or nothing.
struct Made {
  torch::Tensor value;
};

// The elements of a contiguous tensor whose type is Real's.
template <typename Real = float>
const Real* Data(const torch::Tensor& tensor) {
  return static_cast<const Real*>(tensor.data_ptr());
}
template <typename Real = float>
Real* Mutable(const torch::Tensor& tensor) {
  return static_cast<Real*>(tensor.data_ptr());
}

// Calls body(float()) or body(Bf16()), by the type of x.
template <typename Body>
auto WithReal(const torch::Tensor& x, Body&& body) {
  return x.scalar_type() == torch::kFloat ? body(float()) : body(cpu::Bf16());
}

// Calls body(In(), Out()) for a norm of x whose result has the type `out`: x's own, or a narrower
// one.
template <typename Body>
void WithNormReals(const torch::Tensor& x, torch::ScalarType out, Body&& body) {
  if (out == torch::kFloat) return body(float(), float());
  x.scalar_type() == torch::kFloat ? body(float(), cpu::Bf16()) : body(cpu::Bf16(), cpu::Bf16());
}

// For sums and statistics, which are float whatever x is.
inline torch::TensorOptions FloatOptions(const torch::Tensor& x) {
  return x.options().dtype(torch::kFloat);
}

// Rows of x seen as a matrix of its last dimension.
inline int64_t Rows(const torch::Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }

// LibTorch does not take undefined tensors for inputs of a function: an empty one means "none".
inline bool Given(const torch::Tensor& tensor) { return tensor.numel() > 0; }
inline torch::Tensor OrNone(const torch::Tensor& tensor, const torch::Tensor& like) {
  return tensor.defined() ? tensor : torch::empty({0}, like.options());
}

// An uninitialised tensor of x's shape but for its last dimension.
inline torch::Tensor ResizedLast(const torch::Tensor& x, int64_t last) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = last;
  return torch::empty(shape, x.options());
}

// A fixed number of partial sums, whatever the number of threads, so that the rounding of a
// reduction over rows does not depend on it.
constexpr int64_t kPartialSums = 16;

// Says that a kernel has added its whole part to a leaf's gradient, as LibTorch's operators do by
// themselves (see Parameters::GradientLeaves). What a kernel allocates, it allocates before it
// adds.
inline void MarkAdded(const torch::Tensor& gradient) {
  gradient.unsafeGetTensorImpl()->bump_version();
}

// Adds to `leaf.grad()` (fp32 also where the leaf is not), or returns the gradient in the leaf's
// type where there is none to add to.
inline torch::Tensor Deliver(const torch::Tensor& leaf, const torch::Tensor& gradient) {
  if (!leaf.grad().defined()) return gradient.to(leaf.scalar_type());
  leaf.grad().add_(gradient);
  return {};
}

// What an autograd function keeps besides the tensors of the pass: a value, whose tensors are
// leaves (others would keep their own graph alive).
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
