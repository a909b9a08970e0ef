#include <algorithm>

#include "worker/ops/generic_ops.h"

namespace espalier::generic_ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kIgnored = -100;

// Rows of logits that exist at a time: 16 MiB of fp32 on the CPU, 128 MiB elsewhere.
int64_t ChunkRows(const Tensor& hidden, const Tensor& head) {
  const int64_t elements = int64_t{1} << (hidden.is_cpu() ? 22 : 25);
  return std::max<int64_t>(16, elements / head.size(0));
}

// Logits of some rows, in the type of sums, and what both directions need of them.
struct Chunk {
  Chunk(const Tensor& rows, const Tensor& head, const Tensor& target)
      : logits(rows.mm(head.t()).to(SumType(rows))),
        counted((target != kIgnored).unsqueeze(1)),
        safe_target(target.clamp_min(0).unsqueeze(1)),
        log_sum(logits.logsumexp(1, /*keepdim=*/true)) {}

  // [rows, 1]; 0 where the target is ignored.
  Tensor LogProbability() const {
    return (logits.gather(1, safe_target) - log_sum).masked_fill(counted.logical_not(), 0);
  }
  // d(-sum of log-probabilities)/d(logits) = softmax - one-hot, in place of the logits.
  Tensor Gradient() {
    logits.sub_(log_sum).exp_();
    logits.scatter_add_(1, safe_target, torch::full_like(log_sum, -1));
    return logits.mul_(counted);
  }

  Tensor logits, counted, safe_target, log_sum;
};

template <typename Body>
void ForEachChunk(const Tensor& hidden, const Tensor& head, Body&& body) {
  const int64_t step = ChunkRows(hidden, head);
  for (int64_t begin = 0; begin < hidden.size(0); begin += step) {
    body(begin, std::min(step, hidden.size(0) - begin));
  }
}

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const Tensor& head,
                        const Tensor& targets) {
    const auto options = hidden.options().dtype(SumType(hidden));
    Tensor loss = torch::zeros({}, options);
    Tensor dhidden = torch::empty_like(hidden);
    Tensor dhead = torch::zeros(head.sizes(), options);
    ForEachChunk(hidden, head, [&](int64_t begin, int64_t rows) {
      const Tensor h = hidden.narrow(0, begin, rows);
      Chunk chunk(h, head, targets.narrow(0, begin, rows));
      loss.sub_(chunk.LogProbability().sum());
      const Tensor dlogits = chunk.Gradient().to(h.scalar_type());
      dhidden.narrow(0, begin, rows).copy_(dlogits.mm(head));
      dhead.add_(dlogits.t().mm(h));
    });
    ctx->save_for_backward({head, dhidden, dhead});
    return loss;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &head = saved[0], &scale = upstream[0];
    Tensor dhead;
    if (head.requires_grad()) {
      if (head.grad().defined()) {
        head.grad().addcmul_(saved[2], scale.expand_as(head));
      } else {
        dhead = (saved[2] * scale).to(head.scalar_type());
      }
    }
    // In the wide type: fp16 may not hold the loss scale itself.
    return {(Wide(saved[1]) * scale).to(head.scalar_type()), dhead, Tensor()};
  }
};

}  // namespace

Tensor CrossEntropySum(const Tensor& hidden, const Tensor& head, const Tensor& targets) {
  if (torch::GradMode::is_enabled() && (hidden.requires_grad() || head.requires_grad())) {
    return CrossEntropyFunction::apply(hidden, head, targets);
  }
  return -TargetLogProbabilities(hidden, head, targets).sum();
}

Tensor TargetLogProbabilities(const Tensor& hidden, const Tensor& head, const Tensor& targets) {
  torch::NoGradGuard no_grad;
  Tensor result = torch::empty({hidden.size(0)}, hidden.options().dtype(SumType(hidden)));
  ForEachChunk(hidden, head, [&](int64_t begin, int64_t rows) {
    const Chunk chunk(hidden.narrow(0, begin, rows), head, targets.narrow(0, begin, rows));
    result.narrow(0, begin, rows).copy_(chunk.LogProbability().squeeze(1));
  });
  return result;
}

}  // namespace espalier::generic_ops
