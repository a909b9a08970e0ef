#include "worker/ops/fused_ops.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "worker/kernels/cpu_attention.h"
#include "worker/kernels/cpu_rows.h"
#include "worker/kernels/parallel.h"
#include "worker/ops/cuda_ops.h"
#include "worker/ops/fused_tensor.h"
#include "worker/ops/norms.h"
#include "worker/ops/products.h"

namespace espalier::fused_ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x [B, T, heads, D] as the CUDA kernel takes it: perhaps a part of wider rows.
Tensor Dense(const Tensor& x) {
  const bool dense = x.stride(3) == 1 && x.stride(2) == x.size(3) &&
                     (x.size(0) == 1 || x.stride(0) == x.size(1) * x.stride(1));
  return dense ? x : x.contiguous();
}

// to = from, both [B, T, heads, D] on CUDA. LibTorch copies parts of rows number by number: as
// numbers of 8 bytes where that is possible, which takes half the time.
void CopyHeads(const Tensor& from, const Tensor& to) {
  const Tensor a = Dense(from).flatten(2), b = to.flatten(2);
  const int64_t wide = static_cast<int64_t>(sizeof(int64_t)) / to.element_size();
  const auto even = [wide](const Tensor& x) {
    return x.stride(2) == 1 && x.size(2) % wide == 0 && x.storage_offset() % wide == 0 &&
           x.stride(0) % wide == 0 && x.stride(1) % wide == 0;
  };
  if (!b.is_alias_of(to) || !even(a) || !even(b)) {
    to.copy_(from);
    return;
  }
  b.view(torch::kLong).copy_(a.view(torch::kLong));
}

// The kernel of CUDA on x and y, which are dense or parts of wider rows. Where sequences have
// angles of their own, they are one long sequence to it.
void CudaRope(const Tensor& x, const Tensor& cosine, const Tensor& sine, float sign,
              const Tensor& y) {
  const bool own = cosine.size(0) != x.size(1);
  const auto rows = [own](const Tensor& all) { return own ? all.flatten(0, 1).unsqueeze(0) : all; };
  cuda::Rope(rows(x), cosine, sine, sign, rows(y));
}

Tensor Rotated(const Tensor& x_in, const Tensor& cosine, const Tensor& sine, float sign) {
  if (x_in.is_cuda()) {
    const Tensor x = Dense(x_in);
    Tensor y = torch::empty(x.sizes(), x.options());
    CudaRope(x, cosine, sine, sign, y);
    return y;
  }
  const Tensor x = x_in.contiguous();
  Tensor y = torch::empty_like(x);
  const int64_t rows = x.size(0) * x.size(1), time = cosine.size(0), heads = x.size(2),
                d = x.size(3);
  const float *pc = Data(cosine), *ps = Data(sine);
  WithReal(x, [&](auto zero) {
    using Real = decltype(zero);
    const Real* px = Data<Real>(x);
    Real* py = Mutable<Real>(y);
    cpu::ParallelFor(rows, [&](int64_t row) {
      const int64_t angle = row % time * (d / 2);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = (row * heads + h) * d;
        cpu::RopeRow(px + at, pc + angle, ps + angle, sign, py + at, d / 2);
      }
    });
  });
  return y;
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k,
                               const Tensor& v, const Tensor& cosine, const Tensor& sine) {
    ctx->save_for_backward({cosine, sine});
    const ColumnOrder order = q.is_cuda() ? OrderOfColumns(Flat({q, k, v})) : ColumnOrder::kApart;
    ctx->saved_data["order"] = static_cast<int64_t>(order);
    if (order != ColumnOrder::kApart) {  // in place: v keeps their memory in any case
      for (const Tensor& x : {q, k}) CudaRope(x, cosine, sine, 1, x);
      return {q.variable_data(), k.variable_data(), v};
    }
    return {Rotated(q, cosine, sine, 1), Rotated(k, cosine, sine, 1), v};
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &cosine = saved[0], &sine = saved[1];
    const bool all = dy[0].defined() && dy[1].defined() && dy[2].defined();
    const auto order = static_cast<ColumnOrder>(ctx->saved_data["order"].toInt());
    if (all && order != ColumnOrder::kApart) {
      // What came side by side goes so, in the same order.
      std::vector<int64_t> columns;
      for (const Tensor& one : Flat(dy)) columns.push_back(one.size(-1));
      const int64_t width = std::accumulate(columns.begin(), columns.end(), int64_t{0});
      variable_list dx = PartsOf(
          torch::empty({dy[0].size(0), dy[0].size(1), width}, dy[0].options()), columns, order);
      for (size_t i = 0; i < 3; ++i) dx[i] = dx[i].view(dy[i].sizes());
      for (size_t i = 0; i < 2; ++i) CudaRope(Dense(dy[i]), cosine, sine, -1, dx[i]);
      CopyHeads(dy[2], dx[2]);
      return {dx[0], dx[1], dx[2], Tensor(), Tensor()};
    }
    for (size_t i = 0; i < 2; ++i) {
      if (dy[i].defined()) dy[i] = Rotated(dy[i], cosine, sine, -1);
    }
    return {dy[0], dy[1], dy[2], Tensor(), Tensor()};
  }

 private:
  // [B, T, heads, D] as [B, T, heads * D].
  static std::vector<Tensor> Flat(const std::vector<Tensor>& heads) {
    std::vector<Tensor> flat;
    for (const Tensor& x : heads) flat.push_back(x.flatten(2));
    return flat;
  }
};

cpu::AttentionShape ShapeOf(const Tensor& q, const Tensor& k, int64_t window,
                            const Tensor& begins) {
  return {.batch = q.size(0),
          .time = q.size(1),
          .heads = q.size(2),
          .kv_heads = k.size(2),
          .head_dim = q.size(3),
          .window = window,
          .begins = Given(begins) ? begins.data_ptr<int64_t>() : nullptr};
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q_in, const Tensor& k_in,
                        const Tensor& v_in, const Tensor& begins_in, int64_t window) {
    const Tensor q = q_in.contiguous(), k = k_in.contiguous(), v = v_in.contiguous();
    const Tensor begins = begins_in.contiguous();
    Tensor out = torch::empty_like(q);
    Tensor log_sum = torch::empty({q.size(0), q.size(2), q.size(1)}, FloatOptions(q));
    WithReal(q, [&](auto zero) {
      using Real = decltype(zero);
      cpu::AttentionForward(ShapeOf(q, k, window, begins), Data<Real>(q), Data<Real>(k),
                            Data<Real>(v), Mutable<Real>(out), Mutable(log_sum));
    });
    ctx->save_for_backward({q, k, v, out, log_sum, begins});
    ctx->saved_data["window"] = window;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], dout = upstream[0].contiguous();
    Tensor dq = torch::empty_like(q), dk = torch::empty_like(k), dv = torch::empty_like(v);
    WithReal(q, [&](auto zero) {
      using Real = decltype(zero);
      const cpu::AttentionInputs<Real> inputs{Data<Real>(q),  Data<Real>(k),
                                              Data<Real>(v),  Data<Real>(saved[3]),
                                              Data(saved[4]), Data<Real>(dout)};
      const cpu::AttentionGradients<Real> gradients{Mutable<Real>(dq), Mutable<Real>(dk),
                                                    Mutable<Real>(dv)};
      cpu::AttentionBackward(ShapeOf(q, k, ctx->saved_data["window"].toInt(), saved[5]), inputs,
                             gradients);
    });
    return {dq, dk, dv, Tensor(), Tensor()};
  }
};

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& ids, const Tensor& table) {
    ctx->save_for_backward({ids.contiguous(), table});
    return torch::embedding(table, ids);
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &ids = saved[0], &table = saved[1], dy = upstream[0].contiguous();
    const bool bound = table.grad().defined();
    const Tensor target = bound ? table.grad() : torch::zeros(table.sizes(), FloatOptions(dy));
    const int64_t n = table.size(1), positions = ids.numel();
    const int64_t* pid = ids.data_ptr<int64_t>();
    float* rows = Mutable(target);
    WithReal(dy, [&](auto zero) {
      using Real = decltype(zero);
      const Real* pdy = Data<Real>(dy);
      // Threads share out columns, so that the additions to a row keep their order.
      cpu::ParallelFor(kPartialSums, [&](int64_t part) {
        const int64_t from = n * part / kPartialSums, to = n * (part + 1) / kPartialSums;
        for (int64_t i = 0; i < positions; ++i) {
          cpu::AddRow(pdy + i * n + from, rows + pid[i] * n + from, to - from);
        }
      });
    });
    if (bound) MarkAdded(target);
    return {Tensor(), bound ? Tensor() : target.to(table.scalar_type())};
  }
};

// Of a function that saved x and the statistics of its rows, and holds the norm.
NormGradients GradientsOfNorm(AutogradContext* ctx, const Tensor& dy) {
  const variable_list saved = ctx->get_saved_variables();
  return NormalizedRowsBackward(saved[0], Held<ops::Norm>(ctx), saved[1], dy.contiguous(), {}, {});
}

struct NormFunction : torch::autograd::Function<NormFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_in, const Tensor& /*weight*/,
                        const Tensor& /*bias*/, const ops::Norm& norm, torch::ScalarType type) {
    const Tensor x = x_in.contiguous();
    const NormalRows normal = NormalizedRows(x, norm, type);
    ctx->save_for_backward({normal.kept.defined() ? normal.kept : x, normal.statistics});
    Hold(ctx, norm);
    return normal.y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const NormGradients of = GradientsOfNorm(ctx, upstream[0]);
    return {of.x, of.weight, of.bias, Tensor(), Tensor()};
  }
};

struct NormAddFunction : torch::autograd::Function<NormAddFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_in, const Tensor& /*weight*/,
                        const Tensor& /*bias*/, const Tensor& plus, const ops::Norm& norm) {
    const Tensor x = x_in.contiguous();
    Hold(ctx, norm);
    if (x.is_cuda() && HasNormKernel(x, norm) && plus.is_contiguous()) {
      const Tensor y = torch::empty_like(plus),
                   statistics = torch::empty({Rows(x)}, FloatOptions(x));
      if (cuda::RmsNormAdd(x, norm.weight, norm.eps, plus, y, statistics)) {
        ctx->save_for_backward({x, statistics});
        return y;
      }
    }
    const NormalRows normal = NormalizedRows(x, norm, plus.scalar_type());
    ctx->save_for_backward({normal.kept.defined() ? normal.kept : x, normal.statistics});
    return normal.y + plus;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const NormGradients of = GradientsOfNorm(ctx, upstream[0]);
    return {of.x, of.weight, of.bias, upstream[0], Tensor()};
  }
};

}  // namespace

Tensor NormalizeAdd(const Tensor& x, const ops::Norm& norm, const Tensor& plus) {
  const ops::Norm given{norm.weight, OrNone(norm.bias, x), norm.eps, norm.constants};
  return NormAddFunction::apply(x, given.weight, given.bias, plus, given);
}

Tensor Normalize(const Tensor& x, const ops::Norm& norm, torch::ScalarType type) {
  const ops::Norm given{norm.weight, OrNone(norm.bias, x), norm.eps, norm.constants};
  return NormFunction::apply(x, given.weight, given.bias, given, type);
}

ops::Heads Rope(const ops::Heads& x, const RopeTable& table) {
  const variable_list y = RopeFunction::apply(x.q, x.k, x.v, table.cosine, table.sine);
  return {y[0], y[1], y[2]};
}

Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t window,
                       const Tensor& begins) {
  const Tensor given = begins.defined() ? begins : torch::empty({0}, torch::kLong);
  return AttentionFunction::apply(q, k, v, given, window);
}

Tensor Embedding(const Tensor& ids, const Tensor& table) {
  return EmbeddingFunction::apply(ids, table);
}

}  // namespace espalier::fused_ops
