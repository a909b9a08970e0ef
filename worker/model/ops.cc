#include "worker/model/ops.h"

#include "worker/model/cpu_ops.h"
#include "worker/model/generic_ops.h"

namespace espalier::ops {

using torch::Tensor;

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (cpu_ops::Apply(x)) return cpu_ops::NormLinears(x, {}, 0, {weight}, {bias})[0];
  return generic_ops::Linear(x, weight, bias);
}

std::vector<Tensor> NormLinears(const Tensor& x, const Tensor& norm, double eps,
                                const std::vector<Tensor>& weights,
                                const std::vector<Tensor>& biases) {
  if (cpu_ops::Apply(x)) return cpu_ops::NormLinears(x, norm, eps, weights, biases);
  const Tensor normal = generic_ops::RmsNorm(x, norm, eps);
  std::vector<Tensor> results;
  for (size_t i = 0; i < weights.size(); ++i) {
    results.push_back(generic_ops::Linear(normal, weights[i], biases[i]));
  }
  return results;
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

Tensor SwiGluLinear(const Tensor& gate, const Tensor& up, const Tensor& weight,
                    const Tensor& bias) {
  if (cpu_ops::Apply(gate)) return cpu_ops::SwiGluLinear(gate, up, weight, bias);
  return generic_ops::Linear(generic_ops::SwiGlu(gate, up), weight, bias);
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
