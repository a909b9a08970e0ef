// The chunked loss in LibTorch's operators.
#include <algorithm>

#include "worker/ops/generic_ops.h"

namespace espalier::generic_ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows of logits that exist at a time: 16 MiB of fp32 on the CPU, 128 MiB elsewhere. A multiple of
// kChunkStep, so that parts of dense bytes begin where Metal copies from and to: at multiples of 4.
constexpr int64_t kChunkStep = 16;
int64_t ChunkRows(const Tensor& hidden, const Tensor& head) {
  const int64_t elements = int64_t{1} << (hidden.is_cpu() ? 22 : 25);
  return std::max(kChunkStep, elements / head.size(0) / kChunkStep * kChunkStep);
}

// Logits of some rows, in the type of sums, and what both directions need of them.
struct Chunk {
  Chunk(const Tensor& rows, const Tensor& head, const Tensor& target,
        Probabilities probabilities = Probabilities::kSoftmax)
      : logits(rows.mm(head.t()).to(SumType(rows))),
        counted(target != kIgnoredTarget),
        safe_target(target.clamp_min(0).unsqueeze(1)) {
    if (probabilities == Probabilities::kStablemax) ToLogarithms();
    log_sum = logits.logsumexp(1, /*keepdim=*/true);
  }

  // Stablemax is softmax of log s(v), which is log(1 + |v|) with the sign of v.
  void ToLogarithms() {
    const Tensor size = logits.abs().add_(1);
    logits = size.log().mul_(logits.sign());
    slope = size.reciprocal();
  }

  Tensor Right() const { return logits.gather(1, safe_target).squeeze(1) >= logits.amax(1); }

  // [rows]; 0 where the target is ignored.
  Tensor LogProbability() const {
    return Counted((logits.gather(1, safe_target) - log_sum).squeeze(1));
  }
  Tensor Counted(const Tensor& of_rows) const {
    return of_rows.masked_fill(counted.logical_not(), 0);
  }
  // derivative * (one-hot - softmax), in place of the logits.
  Tensor Gradient(const Tensor& derivative) {
    const Tensor scale = Counted(derivative).neg().unsqueeze(1);
    logits.sub_(log_sum).exp_();
    logits.scatter_add_(1, safe_target, torch::full_like(log_sum, -1));
    logits.mul_(scale);
    return slope.defined() ? logits.mul_(slope) : logits;
  }

  Tensor logits, counted, safe_target, log_sum;
  Tensor slope;  // of what softmax takes, by the logits; undefined: 1
};

template <typename Body>
void ForEachChunk(const Tensor& hidden, const Tensor& head, Body&& body) {
  const int64_t step = ChunkRows(hidden, head);
  for (int64_t begin = 0; begin < hidden.size(0); begin += step) {
    body(begin, std::min(step, hidden.size(0) - begin));
  }
}

struct LossFunction : torch::autograd::Function<LossFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const Tensor& head,
                        const Tensor& targets, const RowLoss& loss,
                        const std::function<void()>& worked, bool want_hidden, bool want_head) {
    const auto options = hidden.options().dtype(SumType(hidden));
    Tensor sum = torch::zeros({}, options);
    Tensor dhidden = want_hidden ? torch::empty_like(hidden) : Tensor();
    Tensor dhead = want_head ? torch::zeros(head.sizes(), options) : Tensor();
    const double lift = loss.LiftOf(hidden);  // which both gradients have until backward
    ForEachChunk(hidden, head, [&](int64_t begin, int64_t rows) {
      const Tensor h = hidden.narrow(0, begin, rows);
      Chunk chunk(h, head, targets.narrow(0, begin, rows), loss.probabilities);
      if (loss.right.defined()) loss.right.narrow(0, begin, rows).copy_(chunk.Right());
      const RowLoss::Terms terms = loss.Of(chunk.LogProbability(), begin);
      sum.add_(chunk.Counted(terms.loss).sum());
      if (want_hidden || want_head) {
        const Tensor dlogits =
            chunk.Gradient(lift == 1 ? terms.derivative : terms.derivative * lift);
        if (want_hidden) {
          dhidden.narrow(0, begin, rows).copy_(BoundedProduct(dlogits.to(h.scalar_type()), head));
        }
        if (want_head) AddOuterProducts(dhead, dlogits, h);
      }
      if (worked) worked();
    });
    ctx->saved_data["lift"] = lift;
    ctx->save_for_backward({head, dhidden, dhead});
    return sum;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &head = saved[0], &dhidden = saved[1], &dhead = saved[2];
    const double lift = ctx->saved_data["lift"].toDouble();
    const Tensor scale = lift == 1 ? upstream[0] : upstream[0] / lift;
    Tensor to_hidden, to_head;
    if (dhead.defined() && head.grad().defined()) {
      const auto type = head.grad().scalar_type();  // fp32 also below fp64
      head.grad().add_(dhead.to(type) * scale.to(type));
    } else if (dhead.defined()) {
      to_head = (dhead * scale).to(head.scalar_type());
    }
    // In the wide type: fp16 may not hold the loss scale itself.
    if (dhidden.defined()) to_hidden = (Wide(dhidden) * scale).to(dhidden.scalar_type());
    return {to_hidden, to_head, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor LossSum(const Tensor& hidden, const Tensor& head, const Tensor& targets, const RowLoss& loss,
               const std::function<void()>& worked) {
  const bool enabled = torch::GradMode::is_enabled();
  return LossFunction::apply(hidden, head, targets, loss, worked, enabled && hidden.requires_grad(),
                             enabled && head.requires_grad());
}

Tensor TargetLogProbabilities(const Tensor& hidden, const Tensor& head, const Tensor& targets) {
  torch::NoGradGuard no_grad;
  Tensor result = torch::empty({hidden.size(0)}, hidden.options().dtype(SumType(hidden)));
  ForEachChunk(hidden, head, [&](int64_t begin, int64_t rows) {
    const Chunk chunk(hidden.narrow(0, begin, rows), head, targets.narrow(0, begin, rows));
    result.narrow(0, begin, rows).copy_(chunk.LogProbability());
  });
  return result;
}

}  // namespace espalier::generic_ops
