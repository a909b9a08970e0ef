// The fused operations' kernels on CUDA tensors, on the current stream. A build against a LibTorch
// without CUDA has none (cuda_ops_none.cc), and no CUDA header is needed for it.
// Used by worker/ops and worker/optimizer, by worker/model and worker/generation (steps), by
// worker/train (recorded passes) and by tests/bench. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "worker/kernels/cuda/cuda_kernels.h"
#include "worker/tensor/torch.h"

namespace espalier::cuda {

// Whether this build has the kernels.
bool Available();
// Whether they take x: a CUDA tensor of 16 or 32 bits whose last dimension is a multiple of 4, in a
// build that has them. Norms take at most kMostNormColumns columns.
bool Apply(const torch::Tensor& x);

// x, y [..., C], y in x's type or a narrower one; weight [C] and inverse [rows] fp32.
void RmsNorm(const torch::Tensor& x, const torch::Tensor& weight, double eps,
             const torch::Tensor& y, const torch::Tensor& inverse);
// y = what RmsNorm makes of x, plus `plus`: of one 16-bit type and shape, dense. False, having done
// nothing, where it does not take them.
bool RmsNormAdd(const torch::Tensor& x, const torch::Tensor& weight, double eps,
                const torch::Tensor& plus, const torch::Tensor& y, const torch::Tensor& inverse);
// Writes dx, which may be dy, plus `other` where that is defined; returns the gradient of the
// weight, [C] fp32, where that takes one. dy has the type of y, the others that of x.
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
// logits [rows, V] become their gradient; weights (undefined: 1) and losses [rows] fp32; right
// [rows] bool, unless undefined: whether no logit is larger than the target's.
void CrossEntropy(const torch::Tensor& logits, const torch::Tensor& targets,
                  const torch::Tensor& weights, const torch::Tensor& losses,
                  const torch::Tensor& right);
// y = what is kept of x [B, T, C], or added to y: as dropout.h says of `of_row` and `positions`,
// `site` as its key of 64 bits.
void Drop(const torch::Tensor& x, const torch::Tensor& of_row, const torch::Tensor& positions,
          uint64_t site, uint32_t threshold, bool add, const torch::Tensor& y);
// Flat fp32 tensors of one length; copy: theirs in 16 bits, or undefined.
void AdamW(const AdamWStep& step, const torch::Tensor& value, const torch::Tensor& gradient,
           const torch::Tensor& first, const torch::Tensor& second, const torch::Tensor& copy);
// The same with 8-bit optimizer state, on the device of the values.
void AdamW8(const AdamWStep& step, const torch::Tensor& value, const torch::Tensor& gradient,
            const Moments8& moments, const RandomPlace& random, const torch::Tensor& copy);

// y = residual + x weight', of 16 bits: [rows, n], [rows, k], [n, k], all dense; or x weight, of
// [k, n]: `transposed`. The residual, which LibTorch would copy first, may be undefined, or be y;
// y is `to`, or new. Undefined, having done nothing, where cuBLASLt does not take these, or
// LibTorch has no slower way.
torch::Tensor DenseProduct(const torch::Tensor& x, const torch::Tensor& weight, bool transposed,
                           const torch::Tensor& residual, const torch::Tensor& to = {});

// y [..., n] = silu(g) * u, of g and u = x times the first and the second half of the rows of
// weight [2 n, k], x dense [..., k]; products [..., 2 n]: g and u side by side, if kept. Undefined,
// having done nothing, where it does not take them: other devices than Hopper, too few rows for
// one.
struct Gated {
  torch::Tensor products, y;
};
Gated GatedProduct(const torch::Tensor& x, const torch::Tensor& weight, bool keep);

// What feeds the product of one row: x, or a norm of x without a bias, or silu(x) * up.
struct OneRowInput {
  torch::Tensor x;          // [..., k], of k numbers
  torch::Tensor norm = {};  // [k] fp32
  double eps = 0;
  torch::Tensor up = {};
};
// The product with a weight [n, k], plus a residual [..., n] unless that is undefined, in one
// launch that takes as long as reading the weight; undefined, having done nothing, where the kernel
// does not take the shape or type. The weight must not come from the launch right before.
torch::Tensor OneRowProduct(const OneRowInput& input, const torch::Tensor& weight,
                            const torch::Tensor& residual);

// Where new positions of sequences lie, and what they see.
struct KeptRows {
  torch::Tensor keys, values;  // [rows, K, capacity, D]
  torch::Tensor positions;     // [B] int64
  int64_t window = 0;          // 0: all
};
// Working memory of KeptAttention, for so many rows: [numbers] fp32 and zeros [places] int32.
struct KeptWork {
  torch::Tensor parts, finished;
};
KeptWork MakeKeptWork(const torch::Tensor& keys, int64_t heads);
// Whether it takes these heads.
bool TakesKept(const torch::Tensor& keys, int64_t heads);
// q [B, H, D], k and v [B, K, D], parts of the same rows or dense: turns q and k by cosine and sine
// [B, D / 2] (undefined: not), keeps k and v, and returns what attention makes of them: [B, H, D].
torch::Tensor KeptAttention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                            const torch::Tensor& cosine, const torch::Tensor& sine,
                            const KeptRows& kept, const KeptWork& work);

// Attention of q, k and v [B, T, H, D], turned by cosine and sine [T, D / 2] (undefined: not), each
// position seeing all or, `causal`, those before it; nothing is overwritten. Undefined, having done
// nothing, where it does not take them: more than kMostShortPositions or other heads than of
// kShortHeadDim numbers of 16 bits, no matrix units.
torch::Tensor ShortAttention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                             const torch::Tensor& cosine, const torch::Tensor& sine, bool causal);

// Ids drawn from rows of logits [rows, V], by `by` [rows, 2] fp64: the temperature (0: the
// likeliest id), and what falls on a weight, in [0, 1). [rows] int64, -1 where logits are no
// numbers.
torch::Tensor DrawIds(const torch::Tensor& logits, const torch::Tensor& by);

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
