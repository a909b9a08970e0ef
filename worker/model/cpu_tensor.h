// What the CPU path's autograd functions share: raw access to fp32 tensors, and the delivery of
// gradients to the leaves they belong to. Used by cpu_*.cc of this folder. Compute thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace espalier::cpu_ops {

inline const float* Data(const torch::Tensor& tensor) { return tensor.data_ptr<float>(); }
inline float* Mutable(const torch::Tensor& tensor) { return tensor.data_ptr<float>(); }

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
// themselves (see Parameters::Roles). What a kernel allocates, it allocates before it adds.
inline void MarkAdded(const torch::Tensor& gradient) {
  gradient.unsafeGetTensorImpl()->bump_version();
}

// Adds to `vector.grad()`, or returns the gradient where there is none to add to.
inline torch::Tensor VectorGradient(const torch::Tensor& vector, const torch::Tensor& gradient) {
  if (!vector.grad().defined()) return gradient;
  vector.grad().add_(gradient);
  return {};
}

}  // namespace espalier::cpu_ops
