#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <vector>

#include "worker/model/cpu_ops.h"
#include "worker/model/cpu_rows.h"
#include "worker/model/cpu_tensor.h"
#include "worker/model/gemm.h"

namespace espalier::cpu_ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kChunkRows = 256;
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

// One chunk of logits, which becomes their gradient, and that gradient as the products take it.
template <typename Real>
class Chunk {
 public:
  Chunk(int64_t rows, int64_t vocabulary)
      : vocabulary_(vocabulary),
        logits_(torch::empty({rows, vocabulary}, torch::kFloat)),
        losses_(rows) {
    if constexpr (kNarrow) narrow_ = torch::empty({rows, vocabulary}, torch::kBFloat16);
  }

  float* logits() { return Mutable(logits_); }
  cpu::Matrix<Real> Gradient(cpu::Op op) const {
    return {Data<Real>(kNarrow ? narrow_ : logits_), vocabulary_, op};
  }

  // Turns the first `rows` rows of logits into their gradient; returns the sum of their losses.
  double Finish(int64_t rows, const int64_t* targets, float factor) {
    float* logits = Mutable(logits_);
    Real* narrow = kNarrow ? Mutable<Real>(narrow_) : nullptr;
#pragma omp parallel for
    for (int64_t i = 0; i < rows; ++i) {
      float* row = logits + i * vocabulary_;
      losses_[i] = LossRow(row, vocabulary_, targets[i], factor);
      if constexpr (kNarrow) cpu::FromFloatRow(row, narrow + i * vocabulary_, vocabulary_);
    }
    return std::accumulate(losses_.begin(), losses_.begin() + rows, 0.0);
  }

 private:
  static constexpr bool kNarrow = !std::is_same_v<Real, float>;
  int64_t vocabulary_;
  Tensor logits_, narrow_;
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

double CrossEntropy(const Tensor& hidden, const Tensor& head, const Tensor& targets,
                    const Gradients& gradients) {
  return WithReal(hidden, [&](auto zero) {
    return CrossEntropy<decltype(zero)>(hidden, head, targets, gradients);
  });
}

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden_in, const Tensor& head,
                        const Tensor& targets_in, bool want_hidden, bool want_head) {
    const Tensor hidden = hidden_in.contiguous(), targets = targets_in.contiguous();
    const bool bound = want_head && head.grad().defined();
    Gradients gradients{.hidden = {}, .head = {}, .factor = 1};
    if (want_hidden) gradients.hidden = torch::empty_like(hidden);
    if (want_head) {
      gradients.head = bound ? head.grad() : torch::zeros(head.sizes(), FloatOptions(head));
    }
    const double sum = CrossEntropy(hidden, head, targets, gradients);
    if (bound) MarkAdded(head.grad());
    ctx->saved_data["bound"] = bound;
    ctx->save_for_backward(
        {hidden, head, targets, gradients.hidden, bound ? Tensor() : gradients.head});
    return torch::scalar_tensor(sum, FloatOptions(hidden));
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const auto factor = upstream[0].item<float>();
    const auto scaled = [factor](const Tensor& gradient, const Tensor& like) {
      if (!gradient.defined()) return gradient;
      return (factor == 1.0F ? gradient : gradient * factor).to(like.scalar_type());
    };
    if (ctx->saved_data["bound"].toBool() && factor != 1.0F) {
      CrossEntropy(saved[0], saved[1], saved[2],
                   {.hidden = {}, .head = saved[1].grad(), .factor = factor - 1.0F});
    }
    return {scaled(saved[3], saved[0]), scaled(saved[4], saved[1]), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor CrossEntropySum(const Tensor& hidden, const Tensor& head, const Tensor& targets) {
  const bool enabled = torch::GradMode::is_enabled();
  return CrossEntropyFunction::apply(hidden, head, targets, enabled && hidden.requires_grad(),
                                     enabled && head.requires_grad());
}

}  // namespace espalier::cpu_ops
