// The fused operations' kernels on CUDA tensors, on the current stream. A build against a LibTorch
// without CUDA has none (cuda_ops_none.cc), and no CUDA header is needed for it.
// Used by fused_*.cc and products.cc of this folder, by worker/optimizer and by worker/train
// (recorded passes). Any thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "worker/kernels/cuda/cuda_kernels.h"

namespace espalier::cuda {

// Whether this build has the kernels.
bool Available();
// Whether they take x: a CUDA tensor of 16 or 32 bits whose last dimension is a multiple of 4, in a
// build that has them. Norms take at most kMostNormColumns columns.
bool Apply(const torch::Tensor& x);

// x, y [..., C], y in x's type or a narrower one; weight [C] and inverse [rows] fp32.
void RmsNorm(const torch::Tensor& x, const torch::Tensor& weight, double eps,
             const torch::Tensor& y, const torch::Tensor& inverse);
// Writes dx, which may be dy, plus `other` where that is defined; returns the weight's gradient,
// [C] fp32. dy has the type of y, the others that of x.
torch::Tensor RmsNormBackward(const torch::Tensor& x, const torch::Tensor& weight,
                              const torch::Tensor& inverse, const torch::Tensor& dy,
                              const torch::Tensor& other, const torch::Tensor& dx);
// gate, up, dy, dgate [..., C] may be parts of wider rows: gate and up of rows of one width, dy and
// dgate too.
void SwiGlu(const torch::Tensor& gate, const torch::Tensor& up, const torch::Tensor& y);
void SwiGluBackward(const torch::Tensor& gate, const torch::Tensor& up, const torch::Tensor& dy,
                    const torch::Tensor& dgate);
// x, y [B, T, heads, D], either may be a part of wider rows; cosine, sine [T, D / 2] fp32.
void Rope(const torch::Tensor& x, const torch::Tensor& cosine, const torch::Tensor& sine,
          float sign, const torch::Tensor& y);
// logits [rows, V] become their gradient; weights (undefined: 1) and losses [rows] fp32.
void CrossEntropy(const torch::Tensor& logits, const torch::Tensor& targets,
                  const torch::Tensor& weights, const torch::Tensor& losses);
// Flat fp32 tensors of one length; copy: theirs in 16 bits, or undefined.
void AdamW(const AdamWStep& step, const torch::Tensor& value, const torch::Tensor& gradient,
           const torch::Tensor& first, const torch::Tensor& second, const torch::Tensor& copy);
// The same with 8-bit optimizer state, on the device of the values.
void AdamW8(const AdamWStep& step, const torch::Tensor& value, const torch::Tensor& gradient,
            const Moments8& moments, const RandomPlace& random, const torch::Tensor& copy);

// y = residual + x weight', of 16 bits: [rows, n], [rows, k], [n, k], all dense. LibTorch would
// copy the residual first. False, having done nothing, where cuBLASLt cannot.
bool ResidualProduct(const torch::Tensor& x, const torch::Tensor& weight,
                     const torch::Tensor& residual, const torch::Tensor& y);

// Kernels that are launched together, on the current stream.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void Launch() = 0;
};
// Calls `work`, whose kernels are recorded, not executed: what it reads and writes, temporaries
// aside, must stay in its place as long as the graph. Graphs that share memory with another one
// must not run at the same time. Throws what `work` throws, and where it waits for the device.
std::unique_ptr<Graph> Record(torch::Device device, const std::function<void()>& work,
                              const Graph* share_memory_with);
// Whether this build can.
bool CanRecord();

// Waits until the current device has done what was asked of it; nothing without CUDA.
void Synchronize();

}  // namespace espalier::cuda
