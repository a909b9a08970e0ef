// RowLoss: what each row of hidden values loses, as a function of the log-probability that it gives
// its target. Next-token, masked, weighted, policy-gradient and KL losses are all of this form, so
// one chunked operation (ops::LossSum) serves them: d loss / d logits follows from
// d loss / d log p alone. Used by ops.h, worker/model and worker/task. Compute thread.
#pragma once

#include <cstdint>
#include <functional>

#include "worker/tensor/torch.h"

namespace espalier {

// The target of a row that loses nothing and has no gradient.
inline constexpr int64_t kIgnoredTarget = -100;

// How logits become probabilities.
enum class Probabilities {
  kSoftmax,
  kStablemax,  // s(v) over its sum, with s(v) = v + 1 or, below 0, 1 / (1 - v) (Prieto et al. 2025)
};

struct RowLoss {
  // [N] fp32 on the device of the hidden values: factors of the rows' losses. Undefined: 1.
  torch::Tensor weights;
  // Losses of rows [first_row, first_row + n) and their derivatives by log p, both [n] like log_p;
  // what is at rows without a target does not matter. Null: -log p, the cross-entropy. May be asked
  // more than once about a row.
  struct Terms {
    torch::Tensor loss;
    torch::Tensor derivative;
  };
  std::function<Terms(const torch::Tensor& log_p, int64_t first_row)> function;
  Probabilities probabilities = Probabilities::kSoftmax;
  double temperature = 1;  // logits are divided by it
  // A constant of the host that weighted derivatives are multiplied by before they are narrowed to
  // fp16, and that is divided out again in fp32: about 1 / the largest weight. What is weighted by
  // far less than 1 would else end among the numbers that fp16 has few of. Of no matter in other
  // types.
  double lift = 1;
  // [N] bool on the device of the hidden values: set to whether no id is likelier than the target;
  // what is at rows without a target does not matter. Undefined: not wanted.
  torch::Tensor right = {};

  double LiftOf(const torch::Tensor& hidden) const {
    return hidden.scalar_type() == torch::kHalf ? lift : 1;
  }

  // The same of rows [first_row, first_row + log_p.numel()), weighted.
  Terms Of(const torch::Tensor& log_p, int64_t first_row) const {
    Terms terms =
        function ? function(log_p, first_row) : Terms{log_p.neg(), torch::full_like(log_p, -1)};
    if (!weights.defined()) return terms;
    const torch::Tensor w = weights.narrow(0, first_row, log_p.numel()).to(log_p.scalar_type());
    return {terms.loss * w, terms.derivative * w};
  }
};

}  // namespace espalier
