#include <algorithm>
#include <cmath>

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
  Tensor hidden;  // written; undefined: not wanted
  Tensor head;    // added to; undefined: not wanted
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

// Sum of the losses of all rows; gradients as asked. One chunk of logits exists at a time.
double CrossEntropy(const Tensor& hidden, const Tensor& head, const Tensor& targets,
                    const Gradients& gradients) {
  const int64_t rows = hidden.size(0), width = hidden.size(1), vocabulary = head.size(0);
  const float *ph = hidden.data_ptr<float>(), *pw = head.data_ptr<float>();
  const int64_t* pt = targets.data_ptr<int64_t>();
  Tensor chunk = torch::empty({std::min(rows, kChunkRows), vocabulary}, hidden.options());
  float* logits = chunk.data_ptr<float>();
  std::vector<double> losses(std::min(rows, kChunkRows));
  double sum = 0;
  for (int64_t begin = 0; begin < rows; begin += kChunkRows) {
    const int64_t n = std::min(kChunkRows, rows - begin);
    const cpu::MatrixView x{ph + begin * width, width};
    cpu::Gemm({n, vocabulary, width}, x, {pw, width, cpu::Op::kTranspose}, 0, logits, vocabulary);
#pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) {
      losses[i] = LossRow(logits + i * vocabulary, vocabulary, pt[begin + i], gradients.factor);
    }
    for (int64_t i = 0; i < n; ++i) sum += losses[i];
    if (gradients.hidden.defined()) {
      cpu::Gemm({n, width, vocabulary}, {logits, vocabulary}, {pw, width}, 0,
                gradients.hidden.data_ptr<float>() + begin * width, width);
    }
    if (gradients.head.defined()) {
      cpu::Gemm({vocabulary, width, n}, {logits, vocabulary, cpu::Op::kTranspose}, x, 1,
                gradients.head.data_ptr<float>(), width);
    }
  }
  return sum;
}

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden_in, const Tensor& head,
                        const Tensor& targets_in, bool want_hidden, bool want_head) {
    const Tensor hidden = hidden_in.contiguous(), targets = targets_in.contiguous();
    const bool bound = want_head && head.grad().defined();
    Gradients gradients{.hidden = {}, .head = {}, .factor = 1};
    if (want_hidden) gradients.hidden = torch::empty_like(hidden);
    if (want_head) gradients.head = bound ? head.grad() : torch::zeros_like(head);
    const double sum = CrossEntropy(hidden, head, targets, gradients);
    if (bound) MarkAdded(head.grad());
    ctx->saved_data["bound"] = bound;
    ctx->save_for_backward(
        {hidden, head, targets, gradients.hidden, bound ? Tensor() : gradients.head});
    return torch::scalar_tensor(sum, hidden.options());
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const float factor = upstream[0].item<float>();
    const auto scaled = [factor](const Tensor& gradient) {
      return !gradient.defined() || factor == 1.0F ? gradient : gradient * factor;
    };
    if (ctx->saved_data["bound"].toBool() && factor != 1.0F) {
      CrossEntropy(saved[0], saved[1], saved[2],
                   {.hidden = {}, .head = saved[1].grad(), .factor = factor - 1.0F});
    }
    return {scaled(saved[3]), scaled(saved[4]), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor CrossEntropySum(const Tensor& hidden, const Tensor& head, const Tensor& targets) {
  const bool enabled = torch::GradMode::is_enabled();
  return CrossEntropyFunction::apply(hidden, head, targets, enabled && hidden.requires_grad(),
                                     enabled && head.requires_grad());
}

}  // namespace espalier::cpu_ops
