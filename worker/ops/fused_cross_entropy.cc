#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <vector>

#include "worker/kernels/cpu_rows.h"
#include "worker/kernels/gemm.h"
#include "worker/ops/cuda_ops.h"
#include "worker/ops/fused_ops.h"
#include "worker/ops/fused_tensor.h"
#include "worker/tensor/torch_compat.h"

namespace espalier::fused_ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kChunkRows = 256;
constexpr int64_t kCudaChunkRows = 4096;
constexpr int64_t kIgnored = -100;

struct Gradients {
  Tensor hidden;  // written, in the type of the hidden values; undefined: not wanted
  Tensor head;    // fp32, added to; undefined: not wanted
  float factor;   // upstream gradient
};

// Turns a row of logits into its gradient, factor * (softmax - one_hot), and returns the loss.
double LossRow(float* row, int64_t vocabulary, int64_t target, float factor) {
  if (target == kIgnored) {
    std::fill(row, row + vocabulary, 0.0F);
    return 0;
  }
  const float logit = row[target];
  const cpu::SoftmaxRow softmax = cpu::ExpRow(row, vocabulary, 1.0F);
  cpu::ScaleRow(row, vocabulary, factor / softmax.sum);
  row[target] -= factor;
  return std::log(static_cast<double>(softmax.sum)) + softmax.max - logit;
}

// A row of numbers, then the same numbers in Real at its beginning.
template <typename Real>
void NarrowInPlace(float* row, int64_t n) {
  constexpr int64_t kPiece = 2048;
  Real piece[kPiece];
  auto* to = reinterpret_cast<std::byte*>(row);
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t size = std::min(kPiece, n - begin);
    cpu::FromFloatRow(row + begin, piece, size);
    std::memcpy(to + begin * sizeof(Real), piece, size * sizeof(Real));
  }
}

// One chunk of logits, which becomes their gradient, as the products take it.
template <typename Real>
class Chunk {
 public:
  Chunk(int64_t rows, int64_t vocabulary)
      : vocabulary_(vocabulary),
        logits_(torch::empty({rows, vocabulary}, torch::kFloat)),
        losses_(rows) {}

  float* logits() { return Mutable(logits_); }
  cpu::Matrix<Real> Gradient(cpu::Op op) const {
    constexpr int64_t kRealsOfALogit = sizeof(float) / sizeof(Real);
    return {static_cast<const Real*>(logits_.data_ptr()), vocabulary_ * kRealsOfALogit, op};
  }

  // Turns the first `rows` rows of logits into their gradient; returns the sum of their losses.
  double Finish(int64_t rows, const int64_t* targets, float factor) {
    float* logits = Mutable(logits_);
#pragma omp parallel for
    for (int64_t i = 0; i < rows; ++i) {
      float* row = logits + i * vocabulary_;
      losses_[i] = LossRow(row, vocabulary_, targets[i], factor);
      if constexpr (!std::is_same_v<Real, float>) NarrowInPlace<Real>(row, vocabulary_);
    }
    return std::accumulate(losses_.begin(), losses_.begin() + rows, 0.0);
  }

 private:
  int64_t vocabulary_;
  Tensor logits_;
  std::vector<double> losses_;
};

// Sum of the losses of all rows; gradients as asked. One chunk of logits exists at a time.
template <typename Real>
double CrossEntropy(const Tensor& hidden, const Tensor& head, const Tensor& targets,
                    const Gradients& gradients) {
  const int64_t rows = hidden.size(0), width = hidden.size(1), vocabulary = head.size(0);
  const cpu::Matrix<Real> weight{Data<Real>(head), width};
  const int64_t* pt = targets.data_ptr<int64_t>();
  Chunk<Real> chunk(std::min(rows, kChunkRows), vocabulary);
  double sum = 0;
  for (int64_t begin = 0; begin < rows; begin += kChunkRows) {
    const int64_t n = std::min(kChunkRows, rows - begin);
    const cpu::Matrix<Real> x{Data<Real>(hidden) + begin * width, width};
    cpu::Gemm({n, vocabulary, width}, x, {weight.data, width, cpu::Op::kTranspose}, 0,
              chunk.logits(), vocabulary);
    sum += chunk.Finish(n, pt + begin, gradients.factor);
    if (gradients.hidden.defined()) {
      cpu::Gemm({n, width, vocabulary}, chunk.Gradient(cpu::Op::kPlain), weight, 0,
                Mutable<Real>(gradients.hidden) + begin * width, width);
    }
    if (gradients.head.defined()) {
      cpu::Gemm({vocabulary, width, n}, chunk.Gradient(cpu::Op::kTranspose), x, 1,
                Mutable(gradients.head), width);
    }
  }
  return sum;
}

// The same on CUDA; nothing waits for the device.
Tensor CrossEntropyOnCuda(const Tensor& hidden, const Tensor& head, const Tensor& targets,
                          const Gradients& gradients) {
  const int64_t rows = hidden.size(0);
  Tensor losses = torch::empty({rows}, FloatOptions(hidden));
  for (int64_t begin = 0; begin < rows; begin += kCudaChunkRows) {
    const int64_t n = std::min(kCudaChunkRows, rows - begin);
    const Tensor x = hidden.narrow(0, begin, n), logits = x.mm(head.t());
    cuda::CrossEntropy(logits, targets.narrow(0, begin, n), losses.narrow(0, begin, n));
    if (gradients.hidden.defined()) {
      Tensor dx = gradients.hidden.narrow(0, begin, n);
      torch::mm_out(dx, logits, head);
    }
    if (gradients.head.defined()) AddProduct(gradients.head, logits.t(), x);
  }
  return losses.sum();
}

Tensor CrossEntropyOf(const Tensor& hidden, const Tensor& head, const Tensor& targets,
                      const Gradients& gradients) {
  if (hidden.is_cuda()) return CrossEntropyOnCuda(hidden, head, targets, gradients);
  const Tensor sum = torch::empty({}, FloatOptions(hidden));
  *Mutable(sum) = static_cast<float>(WithReal(hidden, [&](auto zero) {
    return CrossEntropy<decltype(zero)>(hidden, head, targets, gradients);
  }));
  return sum;
}

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden_in, const Tensor& head,
                        const Tensor& targets_in, bool want_hidden, bool want_head) {
    const Tensor hidden = hidden_in.contiguous(), targets = targets_in.contiguous();
    // On the CPU the head's gradient goes straight into head.grad(), for an upstream gradient of 1.
    // Elsewhere that factor is not known without a wait, so it has memory of its own.
    const bool direct = want_head && head.grad().defined() && head.is_cpu();
    Gradients gradients{.hidden = {}, .head = {}, .factor = 1};
    if (want_hidden) gradients.hidden = torch::empty_like(hidden);
    if (want_head) {
      gradients.head = direct ? head.grad() : torch::zeros(head.sizes(), FloatOptions(head));
    }
    const Tensor sum = CrossEntropyOf(hidden, head, targets, gradients);
    if (direct) MarkAdded(head.grad());
    ctx->saved_data["direct"] = direct;
    ctx->save_for_backward(
        {hidden, head, targets, gradients.hidden, direct ? Tensor() : gradients.head});
    return sum;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &hidden = saved[0], &head = saved[1], &dhidden = saved[3], &dhead = saved[4];
    const bool cpu = hidden.is_cpu();
    const float factor = cpu ? upstream[0].item<float>() : 0;
    const auto scaled = [&](const Tensor& gradient) {
      if (!gradient.defined() || (cpu && factor == 1.0F)) return gradient;
      // In fp32: a loss scale may be more than fp16 holds.
      return cpu ? gradient * factor : gradient.to(torch::kFloat) * upstream[0].to(torch::kFloat);
    };
    if (ctx->saved_data["direct"].toBool() && factor != 1.0F) {
      CrossEntropyOf(hidden, head, saved[2],
                     {.hidden = {}, .head = head.grad(), .factor = factor - 1.0F});
    }
    Tensor to_hidden = scaled(dhidden);
    if (to_hidden.defined()) to_hidden = to_hidden.to(hidden.scalar_type());
    return {to_hidden, dhead.defined() ? Deliver(head, scaled(dhead)) : Tensor(), Tensor(),
            Tensor(), Tensor()};
  }
};

}  // namespace

Tensor CrossEntropySum(const Tensor& hidden, const Tensor& head, const Tensor& targets) {
  const bool enabled = torch::GradMode::is_enabled();
  return CrossEntropyFunction::apply(hidden, head, targets, enabled && hidden.requires_grad(),
                                     enabled && head.requires_grad());
}

}  // namespace espalier::fused_ops
