#include "worker/model/ops.h"

#include "worker/model/cpu_ops.h"
#include "worker/model/generic_ops.h"

namespace espalier::ops {

using torch::Tensor;

std::vector<Tensor> Linears(const Tensor& x, const std::vector<Tensor>& weights,
                            const std::vector<Tensor>& biases) {
  if (cpu_ops::Apply(x)) return cpu_ops::Linears(x, weights, biases);
  std::vector<Tensor> results;
  for (size_t i = 0; i < weights.size(); ++i) {
    results.push_back(generic_ops::Linear(x, weights[i], biases[i]));
  }
  return results;
}

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return Linears(x, {weight}, {bias})[0];
}

Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps) {
  return cpu_ops::Apply(x) ? cpu_ops::RmsNorm(x, weight, eps)
                           : generic_ops::RmsNorm(x, weight, eps);
}

Tensor Rope(const Tensor& x, const RopeTable& table) {
  return cpu_ops::Apply(x) ? cpu_ops::Rope(x, table) : generic_ops::Rope(x, table);
}

Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t window) {
  const bool whole = q.size(1) == k.size(1);
  return whole && cpu_ops::Apply(q) ? cpu_ops::CausalAttention(q, k, v, window)
                                    : generic_ops::CausalAttention(q, k, v, window);
}

Tensor SwiGlu(const Tensor& gate, const Tensor& up) {
  return cpu_ops::Apply(gate) ? cpu_ops::SwiGlu(gate, up) : generic_ops::SwiGlu(gate, up);
}

Tensor Embedding(const Tensor& ids, const Tensor& table) {
  return cpu_ops::Apply(table) ? cpu_ops::Embedding(ids, table)
                               : generic_ops::Embedding(ids, table);
}

Tensor CrossEntropySum(const Tensor& hidden, const Tensor& head, const Tensor& targets) {
  return cpu_ops::Apply(hidden) ? cpu_ops::CrossEntropySum(hidden, head, targets)
                                : generic_ops::CrossEntropySum(hidden, head, targets);
}

Tensor TargetLogProbabilities(const Tensor& hidden, const Tensor& head, const Tensor& targets) {
  return generic_ops::TargetLogProbabilities(hidden, head, targets);
}

}  // namespace espalier::ops
