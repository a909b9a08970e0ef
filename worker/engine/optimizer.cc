#include "worker/engine/optimizer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/engine/adamw_kernel.h"
#include "worker/model/cpu_rows.h"
#include "worker/model/cuda_ops.h"
#include "worker/model/torch_compat.h"

namespace espalier {
namespace {

// Elements of one block: three or four blocks fit the second-level cache. Part of the result of
// GradientNorm, so it is the same everywhere.
constexpr int64_t kBlock = 1 << 14;

// base^exponent by squaring: plain products, so the same bits with every mathematical library.
double Power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}

// Runs body(begin, end) for the blocks of [begin, end) on all threads.
template <typename Body>
void ForBlocks(int64_t begin, int64_t end, const Body& body) {
  const int64_t blocks = (end - begin + kBlock - 1) / kBlock;
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t from = begin + i * kBlock;
      body(i, from, std::min(from + kBlock, end));
    }
  });
}

// Of a kernel on any device, but for what differs between groups.
template <typename Kernel, typename Factors>
Kernel KernelFactors(const Factors& factors, const v1::OptimizerSpec& spec) {
  Kernel f;
  f.gradient_scale = static_cast<float>(factors.gradient_scale);
  f.beta1 = static_cast<float>(spec.beta1());
  f.beta2 = static_cast<float>(spec.beta2());
  f.step_size = static_cast<float>(factors.step_size);
  f.second_root = static_cast<float>(factors.second_root);
  f.eps = static_cast<float>(spec.eps());
  return f;
}

}  // namespace

struct AdamW::Factors {
  double gradient_scale, step_size, second_root, decayed_keep;
};

AdamW::AdamW(const v1::OptimizerSpec& spec, Parameters& parameters)
    : spec_(spec), parameters_(&parameters) {
  const torch::Tensor& copy = parameters.flat_copy();
  const int64_t copied_end = copy.defined() ? copy.numel() : 0;
  for (const Parameter& parameter : parameters.all()) {
    const bool decay = parameter.shape.decay || spec.decay_all();
    const bool copied = parameter.offset < copied_end;
    if (groups_.empty() || groups_.back().decay != decay || groups_.back().copied != copied) {
      groups_.push_back({parameter.offset, parameter.offset, decay, copied});
    }
    groups_.back().end = parameter.offset + parameter.size;
  }
}

absl::StatusOr<AdamW> AdamW::Create(const v1::OptimizerSpec& spec, Parameters& parameters) {
  AdamW optimizer(spec, parameters);
  RETURN_IF_ERROR(CatchTorch(
      absl::StrCat("allocating ", parameters.elements() * 8, " bytes for AdamW's moments"), [&] {
        optimizer.first_ = torch::zeros_like(parameters.flat());
        optimizer.second_ = torch::zeros_like(parameters.flat());
      }));
  return optimizer;
}

AdamW::Factors AdamW::FactorsOf(const Update& update) const {
  Factors factors;
  factors.gradient_scale = update.gradient_scale;
  factors.step_size = update.learning_rate / (1 - Power(spec_.beta1(), updates_));
  factors.second_root = 1 / std::sqrt(1 - Power(spec_.beta2(), updates_));
  factors.decayed_keep = 1 - update.learning_rate * spec_.weight_decay();
  return factors;
}

void AdamW::Apply(const Update& update) {
  ++updates_;
  const Factors factors = FactorsOf(update);
  if (first_.is_cpu()) {
    ApplyOnCpu(factors);
  } else if (first_.is_cuda() && cuda::Available()) {
    ApplyOnCuda(factors);
  } else {
    ApplyOnDevice(factors);
  }
}

void AdamW::ApplyOnCpu(const Factors& factors) {
  float* value = parameters_->flat().data_ptr<float>();
  float* gradient = parameters_->flat_gradient().data_ptr<float>();
  float* first = first_.data_ptr<float>();
  float* second = second_.data_ptr<float>();
  // The CPU computes in fp32 and bf16 alone (precision.h).
  const torch::Tensor& narrow = parameters_->flat_copy();
  auto* copy = narrow.defined() ? static_cast<cpu::Bf16*>(narrow.data_ptr()) : nullptr;
  auto f = KernelFactors<cpu::AdamWFactors>(factors, spec_);
  for (const Group& group : groups_) {
    f.keep = group.decay ? static_cast<float>(factors.decayed_keep) : 1.0F;
    ForBlocks(group.begin, group.end, [&](int64_t, int64_t begin, int64_t end) {
      cpu::AdamWUpdate(
          {value + begin, gradient + begin, first + begin, second + begin, end - begin}, f);
      if (group.copied) cpu::FromFloatRow(value + begin, copy + begin, end - begin);
    });
  }
}

void AdamW::ApplyOnCuda(const Factors& factors) {
  auto step = KernelFactors<cuda::AdamWStep>(factors, spec_);
  for (const Group& group : groups_) {
    step.keep = group.decay ? static_cast<float>(factors.decayed_keep) : 1.0F;
    const auto part = [&](const torch::Tensor& flat) {
      return flat.narrow(0, group.begin, group.end - group.begin);
    };
    cuda::AdamW(step, part(parameters_->flat()), part(parameters_->flat_gradient()), part(first_),
                part(second_), group.copied ? part(parameters_->flat_copy()) : torch::Tensor());
  }
}

void AdamW::ApplyOnDevice(const Factors& factors) {
  torch::NoGradGuard no_grad;
  torch::Tensor& gradient = parameters_->flat_gradient();
  gradient.mul_(factors.gradient_scale);
  first_.mul_(spec_.beta1()).add_(gradient, 1 - spec_.beta1());
  second_.mul_(spec_.beta2()).addcmul_(gradient, gradient, 1 - spec_.beta2());
  for (const Group& group : groups_) {
    if (!group.decay) continue;
    parameters_->flat().narrow(0, group.begin, group.end - group.begin).mul_(factors.decayed_keep);
  }
  // The gradient's memory serves as the denominator before it is cleared.
  torch::sqrt_out(gradient, second_);
  gradient.mul_(factors.second_root).add_(spec_.eps());
  parameters_->flat().addcdiv_(first_, gradient, -factors.step_size);
  gradient.zero_();
  parameters_->RefreshCopy();
}

double AdamW::GradientNorm() const {
  const torch::Tensor& gradient = parameters_->flat_gradient();
  if (!gradient.is_cpu()) return gradient.norm().item<double>();
  const float* data = gradient.data_ptr<float>();
  std::vector<double> partial((gradient.numel() + kBlock - 1) / kBlock);
  ForBlocks(0, gradient.numel(), [&](int64_t block, int64_t begin, int64_t end) {
    partial[block] = cpu::SumOfSquares(data + begin, end - begin);
  });
  double sum = 0;
  for (const double part : partial) sum += part;
  return std::sqrt(sum);
}

double ClipFactor(double norm, double clip_norm) {
  return clip_norm > 0 && norm > clip_norm ? clip_norm / norm : 1;
}

}  // namespace espalier
