#include "worker/ops/norms.h"

#include "worker/kernels/cpu_rows.h"
#include "worker/kernels/parallel.h"
#include "worker/ops/cuda_ops.h"
#include "worker/ops/fused_tensor.h"
#include "worker/ops/generic_ops.h"

namespace espalier::fused_ops {
namespace {

using torch::Tensor;

bool IsCentred(const ops::Norm& norm) { return norm.bias.defined() && Given(norm.bias); }

void CentredRows(const Tensor& x, const ops::Norm& norm, const NormalRows& normal) {
  const int64_t rows = Rows(x), n = x.size(-1);
  float* mean = Mutable(normal.statistics);
  float* inverse = mean + rows;
  WithNormReals(x, normal.y.scalar_type(), [&](auto in, auto out) {
    const auto* px = Data<decltype(in)>(x);
    auto* py = Mutable<decltype(out)>(normal.y);
    const float *pw = Data(norm.weight), *pb = Data(norm.bias);
    cpu::ParallelFor(rows, [&](int64_t i) {
      const cpu::CentredRow of =
          cpu::LayerNormRow(px + i * n, pw, pb, py + i * n, n, static_cast<float>(norm.eps));
      mean[i] = of.mean;
      inverse[i] = of.r;
    });
  });
}

void RmsRows(const Tensor& x, const ops::Norm& norm, const NormalRows& normal) {
  const int64_t rows = Rows(x), n = x.size(-1);
  float* pr = Mutable(normal.statistics);
  WithNormReals(x, normal.y.scalar_type(), [&](auto in, auto out) {
    const auto* px = Data<decltype(in)>(x);
    auto* py = Mutable<decltype(out)>(normal.y);
    const float* pw = Data(norm.weight);
    cpu::ParallelFor(rows, [&](int64_t i) {
      pr[i] = cpu::RmsNormRow(px + i * n, pw, py + i * n, n, static_cast<float>(norm.eps));
    });
  });
}

// Calls row(i, sums of the part that i is in) for all rows.
template <typename Row>
void InParts(int64_t rows, const Tensor& partial, Row&& row) {
  float* sums = Mutable(partial);
  const int64_t columns = partial.size(1);
  cpu::ParallelFor(kPartialSums, [&](int64_t part) {
    for (int64_t i = rows * part / kPartialSums; i < rows * (part + 1) / kPartialSums; ++i) {
      row(i, sums + part * columns);
    }
  });
}

// Writes dx and returns the gradients of the weight and, behind them, of the bias.
Tensor BackwardOnCpu(const Tensor& x, const ops::Norm& norm, const Tensor& statistics,
                     const Tensor& dy, const Tensor& other, const Tensor& dx) {
  const int64_t rows = Rows(x), n = x.size(-1);
  const bool centred = IsCentred(norm);
  const Tensor partial = torch::zeros({kPartialSums, centred ? 2 * n : n}, FloatOptions(x));
  const float *ps = Data(statistics), *pw = Data(norm.weight);
  WithNormReals(x, dy.scalar_type(), [&](auto in, auto out) {
    using In = decltype(in);
    const auto* px = Data<In>(x);
    const auto* pdy = Data<decltype(out)>(dy);
    const In* po = other.defined() ? Data<In>(other) : nullptr;
    In* pdx = Mutable<In>(dx);
    InParts(rows, partial, [&](int64_t i, float* sums) {
      const int64_t at = i * n;
      const In* row_of_other = po == nullptr ? nullptr : po + at;
      if (centred) {
        cpu::LayerNormGradientRow(px + at, pw, pdy + at, {.mean = ps[i], .r = ps[rows + i]},
                                  row_of_other, pdx + at, {.weight = sums, .bias = sums + n}, n);
      } else {
        cpu::RmsNormGradientRow(px + at, pw, pdy + at, ps[i], row_of_other, pdx + at, sums, n);
      }
    });
  });
  return partial.sum(0);
}

}  // namespace

bool HasNormKernel(const Tensor& x, const ops::Norm& norm) {
  return ApplyToNorms(x) && (x.is_cpu() || !IsCentred(norm));
}

NormalRows NormalizedRows(const Tensor& x, const ops::Norm& norm, torch::ScalarType type) {
  if (!HasNormKernel(x, norm)) return generic_ops::Normalize(x, norm, type);
  const bool centred = IsCentred(norm);
  NormalRows normal{torch::empty_like(x, x.options().dtype(type)),
                    torch::empty({centred ? 2 * Rows(x) : Rows(x)}, FloatOptions(x))};
  if (x.is_cuda()) {
    cuda::RmsNorm(x, norm.weight, norm.eps, normal.y, normal.statistics);
  } else {
    centred ? CentredRows(x, norm, normal) : RmsRows(x, norm, normal);
  }
  return normal;
}

NormGradients NormalizedRowsBackward(const Tensor& x, const ops::Norm& norm,
                                     const Tensor& statistics, const Tensor& dy,
                                     const Tensor& other, const Tensor& dx) {
  if (!HasNormKernel(x, norm)) {
    return generic_ops::NormalizeBackward(x, norm, statistics, dy, other);
  }
  NormGradients of{dx.defined() ? dx : torch::empty_like(x), {}, {}};
  const Tensor sums = x.is_cuda()
                          ? cuda::RmsNormBackward(x, norm.weight, statistics, dy, other, of.x)
                          : BackwardOnCpu(x, norm, statistics, dy, other, of.x);
  const int64_t n = x.size(-1);
  if (norm.weight.requires_grad()) of.weight = Deliver(norm.weight, sums.narrow(0, 0, n));
  if (IsCentred(norm) && norm.bias.requires_grad()) {
    of.bias = Deliver(norm.bias, sums.narrow(0, n, n));
  }
  return of;
}

}  // namespace espalier::fused_ops
