// The chunked loss on the CPU and on CUDA: one chunk of logits exists at a time and becomes its own
// gradient.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "worker/kernels/cpu_rows.h"
#include "worker/kernels/gemm.h"
#include "worker/kernels/parallel.h"
#include "worker/ops/cuda_ops.h"
#include "worker/ops/fused_ops.h"
#include "worker/ops/fused_tensor.h"
#include "worker/tensor/torch_compat.h"

namespace espalier::fused_ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// On CUDA; fewer where there are few, whose logits would be more than a layer keeps of them. Each
// chunk costs a pass over the head's gradient.
constexpr int64_t kMostChunkRows = 4096, kLeastChunkRows = 512;
int64_t CudaChunkRows(int64_t rows, bool frozen_head) {
  return frozen_head ? std::clamp(rows / 4, kLeastChunkRows, kMostChunkRows) : kMostChunkRows;
}

// What a pass over the rows leaves besides the sum of the losses.
struct Gradients {
  Tensor hidden;     // written, in the type of the hidden values; undefined: not wanted
  Tensor head;       // fp32, added to; undefined: not wanted
  float factor = 1;  // upstream gradient
};

struct LossArguments {
  const Tensor& hidden;
  const Tensor& head;
  const Tensor& targets;
  const RowLoss& loss;                  // of softmax
  const std::function<void()>& worked;  // after each chunk, unless null
};

// One chunk of logits and their gradient as the products take it: of floats in the place of the
// logits, of 16-bit numbers without gaps between its rows, which oneDNN multiplies faster.
template <typename Real>
class Chunk {
 public:
  Chunk(int64_t rows, int64_t vocabulary, torch::ScalarType type)
      : vocabulary_(vocabulary),
        logits_(torch::empty({rows, vocabulary}, torch::kFloat)),
        gradient_(type == torch::kFloat ? logits_ : torch::empty({rows, vocabulary}, type)),
        log_p_(torch::empty({rows}, torch::kFloat)),
        right_(rows),
        sums_(rows),
        losses_(rows) {}

  float* logits() { return Mutable(logits_); }
  cpu::Matrix<Real> Gradient(cpu::Op op) const { return {Data<Real>(gradient_), vocabulary_, op}; }

  // Turns the first `rows` rows of logits into the gradient of their cross-entropies times
  // `factor` and the weights (null: 1); returns the sum of the losses.
  double CrossEntropy(int64_t rows, const int64_t* targets, const float* weights, float factor) {
    cpu::ParallelFor(rows, [&](int64_t i) {
      const float weight = weights == nullptr ? 1.0F : weights[i];
      const double log_p = ToExponentials(i, targets[i]);
      losses_[i] = -weight * log_p;
      ToGradient(i, targets[i], weight * factor);
    });
    return std::accumulate(losses_.begin(), losses_.begin() + rows, 0.0);
  }

  // The same of any loss, whose terms are asked for between the two halves of the work.
  double Loss(int64_t rows, int64_t first_row, const int64_t* targets, const RowLoss& loss,
              float factor) {
    LogProbabilities(rows, targets, Mutable(log_p_));
    const RowLoss::Terms terms = loss.Of(log_p_.narrow(0, 0, rows), first_row);
    const Tensor losses = terms.loss.to(torch::kFloat).contiguous();
    const Tensor slope = terms.derivative.to(torch::kFloat).neg().contiguous();
    const float* pl = Data(losses);
    const float* ps = Data(slope);
    cpu::ParallelFor(rows, [&](int64_t i) {
      losses_[i] = targets[i] == kIgnoredTarget ? 0 : pl[i];
      ToGradient(i, targets[i], ps[i] * factor);
    });
    return std::accumulate(losses_.begin(), losses_.begin() + rows, 0.0);
  }

  // Of each row's target, 0 where that is ignored.
  void LogProbabilities(int64_t rows, const int64_t* targets, float* to) {
    cpu::ParallelFor(rows,
                     [&](int64_t i) { to[i] = static_cast<float>(ToExponentials(i, targets[i])); });
  }

  // Of each of the rows that were last: whether no logit is above the target's.
  const uint8_t* right() const { return right_.data(); }

 private:
  // Turns row `i` of logits into exponentials; returns the target's log-probability.
  double ToExponentials(int64_t i, int64_t target) {
    if (target == kIgnoredTarget) return 0;
    float* row = Mutable(logits_) + i * vocabulary_;
    const float logit = row[target];
    const cpu::SoftmaxRow softmax = cpu::ExpRow(row, vocabulary_, 1.0F);
    sums_[i] = softmax.sum;
    right_[i] = logit >= softmax.max;
    return logit - softmax.max - std::log(static_cast<double>(softmax.sum));
  }

  // Writes slope * (softmax - one_hot) from those.
  void ToGradient(int64_t i, int64_t target, float slope) {
    const float* row = Data(logits_) + i * vocabulary_;
    Real* to = Mutable<Real>(gradient_) + i * vocabulary_;
    if (target == kIgnoredTarget) {
      std::fill(to, to + vocabulary_, Real{});
      return;
    }
    const float factor = slope / sums_[i], of_target = row[target] * factor - slope;
    cpu::ScaledRow(row, factor, to, vocabulary_);
    cpu::FromFloatRow(&of_target, to + target, 1);
  }

  int64_t vocabulary_;
  Tensor logits_;
  Tensor gradient_;
  Tensor log_p_;
  std::vector<uint8_t> right_;
  std::vector<float> sums_;
  std::vector<double> losses_;
};

template <typename Real>
double SumOnCpu(const LossArguments& in, const Gradients& gradients) {
  const int64_t rows = in.hidden.size(0), width = in.hidden.size(1), vocabulary = in.head.size(0);
  const cpu::Matrix<Real> weight{Data<Real>(in.head), width};
  const int64_t* targets = in.targets.data_ptr<int64_t>();
  const float* weights = in.loss.weights.defined() ? Data(in.loss.weights) : nullptr;
  const int64_t step = LogitRows(rows, vocabulary);
  Chunk<Real> chunk(step, vocabulary, in.hidden.scalar_type());
  double sum = 0;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t n = std::min(step, rows - begin);
    const cpu::Matrix<Real> x{Data<Real>(in.hidden) + begin * width, width};
    cpu::Gemm({n, vocabulary, width}, x, {weight.data, width, cpu::Op::kTranspose}, 0,
              chunk.logits(), vocabulary);
    if (in.loss.function) {
      sum += chunk.Loss(n, begin, targets + begin, in.loss, gradients.factor);
    } else {
      sum += chunk.CrossEntropy(n, targets + begin, weights == nullptr ? nullptr : weights + begin,
                                gradients.factor);
    }
    if (in.loss.right.defined())
      std::copy_n(chunk.right(), n, in.loss.right.data_ptr<bool>() + begin);
    if (gradients.hidden.defined()) {
      cpu::Gemm({n, width, vocabulary}, chunk.Gradient(cpu::Op::kPlain), weight, 0,
                Mutable<Real>(gradients.hidden) + begin * width, width);
    }
    if (gradients.head.defined()) {
      cpu::Gemm({vocabulary, width, n}, chunk.Gradient(cpu::Op::kTranspose), x, 1,
                Mutable(gradients.head), width);
    }
    if (in.worked) in.worked();
  }
  return sum;
}

// A multiple of it: rows of logits then begin where products are fast, and the kernel takes them.
constexpr int64_t kWholeColumns = 8;

// The head with rows of zeros behind it. Products with another number of rows take kernels of an
// older kind, which need twice the time.
Tensor WholeHead(const Tensor& head) {
  const int64_t odd = head.size(0) % kWholeColumns;
  return odd == 0 ? head : at::constant_pad_nd(head, {0, 0, 0, kWholeColumns - odd});
}

// Cross-entropies on CUDA, whose gradients have RowLoss::lift; nothing waits for the device.
Tensor SumOnCuda(const LossArguments& in, const Gradients& gradients) {
  const int64_t rows = in.hidden.size(0);
  Tensor losses = torch::empty({rows}, FloatOptions(in.hidden));
  const double lift = in.loss.LiftOf(in.hidden);
  Tensor weights = in.loss.weights;
  if (lift != 1) weights = weights.defined() ? weights * lift : torch::full_like(losses, lift);
  const int64_t step = CudaChunkRows(rows, !gradients.head.defined());
  const Tensor head = WholeHead(in.head);
  const int64_t columns = in.head.size(0), padding = head.size(0) - columns;
  constexpr double kLowest = -6e4;  // fp16 has it; its exponential is 0 beside any other
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t n = std::min(step, rows - begin);
    const Tensor x = in.hidden.narrow(0, begin, n);
    Tensor whole = torch::empty({n, head.size(0)}, x.options());
    const Tensor logits = whole.narrow(1, 0, columns);
    torch::mm_out(whole, x, head.t());
    if (padding > 0) whole.narrow(1, columns, padding).fill_(kLowest);
    cuda::CrossEntropy(whole, in.targets.narrow(0, begin, n),
                       weights.defined() ? weights.narrow(0, begin, n) : weights,
                       losses.narrow(0, begin, n),
                       in.loss.right.defined() ? in.loss.right.narrow(0, begin, n) : Tensor());
    if (gradients.hidden.defined()) {
      Tensor dx = gradients.hidden.narrow(0, begin, n);
      torch::mm_out(dx, whole, head);  // gradients of the padding are 0
    }
    if (gradients.head.defined()) AddProduct(gradients.head, logits.t(), x);
    if (in.worked) in.worked();
  }
  return lift == 1 ? losses.sum() : losses.sum() / lift;
}

Tensor SumOf(const LossArguments& in, const Gradients& gradients) {
  if (in.hidden.is_cuda()) return SumOnCuda(in, gradients);
  const Tensor sum = torch::empty({}, FloatOptions(in.hidden));
  *Mutable(sum) = static_cast<float>(
      WithReal(in.hidden, [&](auto zero) { return SumOnCpu<decltype(zero)>(in, gradients); }));
  return sum;
}

struct SavedLoss {
  Tensor hidden, head, targets, weights, dhidden, dhead;
};

struct LossFunction : torch::autograd::Function<LossFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden_in, const Tensor& head,
                        const Tensor& targets_in, const RowLoss& loss,
                        const std::function<void()>& worked, bool want_hidden, bool want_head) {
    const Tensor hidden = hidden_in.contiguous(), targets = targets_in.contiguous();
    // On the CPU the head's gradient goes straight into head.grad(), for an upstream gradient of 1.
    // Elsewhere that factor is not known without a wait, so it has memory of its own; also for a
    // function, which may run out of memory when a part of the rows has been added.
    const bool direct =
        want_head && head.grad().defined() && head.is_cpu() && loss.function == nullptr;
    Gradients gradients;
    if (want_hidden) gradients.hidden = torch::empty_like(hidden);
    if (want_head) {
      gradients.head = direct ? head.grad() : torch::zeros(head.sizes(), FloatOptions(head));
    }
    const Tensor sum = SumOf({hidden, head, targets, loss, worked}, gradients);
    if (direct) MarkAdded(head.grad());
    ctx->saved_data["direct"] = direct;
    ctx->saved_data["lift"] = loss.LiftOf(hidden);
    ctx->save_for_backward({hidden, head, targets, loss.weights, gradients.hidden,
                            direct ? Tensor() : gradients.head});
    return sum;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list list = ctx->get_saved_variables();
    const SavedLoss saved{list[0], list[1], list[2], list[3], list[4], list[5]};
    const bool cpu = saved.hidden.is_cpu();
    const float factor = cpu ? upstream[0].item<float>() : 0;
    const auto scaled = [&](const Tensor& gradient) {
      if (!gradient.defined() || (cpu && factor == 1.0F)) return gradient;
      if (cpu) return gradient * factor;
      // In fp32: a loss scale may be more than fp16 holds.
      const double lift = ctx->saved_data["lift"].toDouble();
      const Tensor scale = upstream[0].to(torch::kFloat);
      return gradient.to(torch::kFloat) * (lift == 1 ? scale : scale / lift);
    };
    if (ctx->saved_data["direct"].toBool() && factor != 1.0F) {
      const RowLoss same{.weights = saved.weights, .function = nullptr};
      SumOf({saved.hidden, saved.head, saved.targets, same, nullptr},
            {.hidden = {}, .head = saved.head.grad(), .factor = factor - 1.0F});
    }
    Tensor to_hidden = scaled(saved.dhidden), to_head;
    if (to_hidden.defined()) to_hidden = to_hidden.to(saved.hidden.scalar_type());
    if (saved.dhead.defined()) to_head = Deliver(saved.head, scaled(saved.dhead));
    return {to_hidden, to_head, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

// 32 MiB of them, since each chunk passes over the whole head and its gradient, but as many as keep
// the products large.
int64_t LogitRows(int64_t rows, int64_t vocabulary) {
  constexpr int64_t kLogits = int64_t{8} << 20, kLeast = 256, kMost = 1024;
  return std::min(rows, std::clamp(kLogits / vocabulary, kLeast, kMost));
}

Tensor LossSum(const Tensor& hidden, const Tensor& head, const Tensor& targets, const RowLoss& loss,
               const std::function<void()>& worked) {
  const bool enabled = torch::GradMode::is_enabled();
  return LossFunction::apply(hidden, head, targets, loss, worked, enabled && hidden.requires_grad(),
                             enabled && head.requires_grad());
}

Tensor TargetLogProbabilities(const Tensor& hidden_in, const Tensor& head,
                              const Tensor& targets_in) {
  const Tensor hidden = hidden_in.contiguous(), targets = targets_in.contiguous();
  const int64_t rows = hidden.size(0), width = hidden.size(1), vocabulary = head.size(0);
  const int64_t step = LogitRows(rows, vocabulary);
  const Tensor result = torch::empty({rows}, FloatOptions(hidden));
  WithReal(hidden, [&](auto zero) {
    using Real = decltype(zero);
    Chunk<Real> chunk(step, vocabulary, torch::kFloat);
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t n = std::min(step, rows - begin);
      cpu::Gemm({n, vocabulary, width}, {Data<Real>(hidden) + begin * width, width},
                {Data<Real>(head), width, cpu::Op::kTranspose}, 0, chunk.logits(), vocabulary);
      chunk.LogProbabilities(n, targets.data_ptr<int64_t>() + begin, Mutable(result) + begin);
    }
  });
  return result;
}

}  // namespace espalier::fused_ops
