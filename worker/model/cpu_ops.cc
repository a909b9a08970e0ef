#include "worker/model/cpu_ops.h"

#include <algorithm>
#include <vector>

#include "worker/model/cpu_attention.h"
#include "worker/model/cpu_rows.h"
#include "worker/model/gemm.h"

namespace espalier::cpu_ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const float* Data(const Tensor& tensor) { return tensor.data_ptr<float>(); }
float* Mutable(const Tensor& tensor) { return tensor.data_ptr<float>(); }
int64_t Rows(const Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }

// A fixed number of partial sums, whatever the number of threads, so that the rounding of a
// reduction over rows does not depend on it.
constexpr int64_t kPartialSums = 16;

// LibTorch does not take undefined tensors for inputs of a function: an empty one means "none".
bool Given(const Tensor& tensor) { return tensor.numel() > 0; }

Tensor ResizedLast(const Tensor& x, int64_t last) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = last;
  return torch::empty(shape, x.options());
}

// Adds op(a)[m, k] * b[k, n] to weight.grad(), or returns it where there is none to add to.
Tensor WeightGradient(const Tensor& weight, const Tensor& dy, const Tensor& x) {
  if (!weight.requires_grad()) return {};
  const int64_t out = weight.size(0), in = weight.size(1);
  const bool bound = weight.grad().defined();
  const Tensor target = bound ? weight.grad() : torch::empty_like(weight);
  cpu::Gemm({out, in, Rows(x)}, {Data(dy), out, cpu::Op::kTranspose}, {Data(x), in},
            bound ? 1.0F : 0.0F, Mutable(target), in);
  return bound ? Tensor() : target;
}

// Adds to `vector.grad()`, or returns the gradient where there is none to add to.
Tensor VectorGradient(const Tensor& vector, const Tensor& gradient) {
  if (!vector.grad().defined()) return gradient;
  vector.grad().add_(gradient);
  return {};
}

struct LinearsFunction : torch::autograd::Function<LinearsFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x_in, const Tensor& w0,
                               const Tensor& w1, const Tensor& w2, const Tensor& b0,
                               const Tensor& b1, const Tensor& b2) {
    const Tensor x = x_in.contiguous();
    ctx->save_for_backward({x, w0, w1, w2, b0, b1, b2});
    variable_list out;
    const Tensor biases[] = {b0, b1, b2};
    int i = 0;
    for (const Tensor& weight : {w0, w1, w2}) {
      const Tensor& bias = biases[i++];
      if (!Given(weight)) continue;
      const int64_t n = weight.size(0), k = weight.size(1);
      Tensor y = ResizedLast(x, n);
      if (Given(bias)) y.copy_(bias.expand_as(y));
      cpu::Gemm({Rows(x), n, k}, {Data(x), k}, {Data(weight), k, cpu::Op::kTranspose},
                Given(bias) ? 1.0F : 0.0F, Mutable(y), n);
      out.push_back(y);
    }
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor& x = saved[0];
    variable_list gradients(7);
    Tensor dx;
    for (size_t i = 0; i < dy.size(); ++i) {
      const Tensor &weight = saved[1 + i], &bias = saved[4 + i];
      if (!dy[i].defined()) continue;
      const Tensor dyi = dy[i].contiguous();
      const int64_t n = weight.size(0), k = weight.size(1);
      gradients[1 + i] = WeightGradient(weight, dyi, x);
      if (bias.requires_grad()) {
        gradients[4 + i] = VectorGradient(bias, dyi.reshape({-1, n}).sum(0));
      }
      if (!ctx->needs_input_grad(0)) continue;
      const bool first = !dx.defined();
      if (first) dx = torch::empty_like(x);
      cpu::Gemm({Rows(x), k, n}, {Data(dyi), n}, {Data(weight), k}, first ? 0.0F : 1.0F,
                Mutable(dx), k);
    }
    gradients[0] = dx;
    return gradients;
  }
};

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_in, const Tensor& weight,
                        double eps) {
    const Tensor x = x_in.contiguous();
    Tensor y = torch::empty_like(x);
    const int64_t rows = Rows(x), n = x.size(-1);
    Tensor inverse = torch::empty({rows}, x.options());
    const float *px = Data(x), *pw = Data(weight);
    float *py = Mutable(y), *pr = Mutable(inverse);
#pragma omp parallel for
    for (int64_t i = 0; i < rows; ++i) {
      pr[i] = cpu::RmsNormRow(px + i * n, pw, py + i * n, n, static_cast<float>(eps));
    }
    ctx->save_for_backward({x, weight, inverse});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], dy = upstream[0].contiguous();
    const int64_t rows = Rows(x), n = x.size(-1);
    Tensor dx = torch::empty_like(x);
    Tensor partial = torch::zeros({kPartialSums, n}, x.options());
    const float *px = Data(x), *pw = Data(weight), *pdy = Data(dy), *pr = Data(saved[2]);
    float *pdx = Mutable(dx), *sums = Mutable(partial);
#pragma omp parallel for schedule(static, 1)
    for (int64_t part = 0; part < kPartialSums; ++part) {
      for (int64_t i = rows * part / kPartialSums; i < rows * (part + 1) / kPartialSums; ++i) {
        cpu::RmsNormGradientRow(px + i * n, pw, pdy + i * n, pr[i], pdx + i * n, sums + part * n,
                                n);
      }
    }
    Tensor dweight;
    if (weight.requires_grad()) dweight = VectorGradient(weight, partial.sum(0));
    return {dx, dweight, Tensor()};
  }
};

Tensor Rotated(const Tensor& x, const Tensor& cosine, const Tensor& sine, float sign) {
  Tensor y = torch::empty_like(x);
  const int64_t time = x.size(1), heads = x.size(2), d = x.size(3);
  const float *px = Data(x), *pc = Data(cosine), *ps = Data(sine);
  float* py = Mutable(y);
#pragma omp parallel for
  for (int64_t row = 0; row < x.size(0) * time; ++row) {
    const int64_t angle = row % time * (d / 2);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = (row * heads + h) * d;
      cpu::RopeRow(px + at, pc + angle, ps + angle, sign, py + at, d / 2);
    }
  }
  return y;
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cosine,
                        const Tensor& sine) {
    ctx->save_for_backward({cosine, sine});
    return Rotated(x.contiguous(), cosine, sine, 1);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    return {Rotated(dy[0].contiguous(), saved[0], saved[1], -1), Tensor(), Tensor()};
  }
};

cpu::AttentionShape ShapeOf(const Tensor& q, const Tensor& k, int64_t window) {
  return {.batch = q.size(0),
          .time = q.size(1),
          .heads = q.size(2),
          .kv_heads = k.size(2),
          .head_dim = q.size(3),
          .window = window};
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q_in, const Tensor& k_in,
                        const Tensor& v_in, int64_t window) {
    const Tensor q = q_in.contiguous(), k = k_in.contiguous(), v = v_in.contiguous();
    Tensor out = torch::empty_like(q);
    Tensor log_sum = torch::empty({q.size(0), q.size(2), q.size(1)}, q.options());
    cpu::AttentionForward(ShapeOf(q, k, window), Data(q), Data(k), Data(v), Mutable(out),
                          Mutable(log_sum));
    ctx->save_for_backward({q, k, v, out, log_sum});
    ctx->saved_data["window"] = window;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], dout = upstream[0].contiguous();
    Tensor dq = torch::empty_like(q), dk = torch::empty_like(k), dv = torch::empty_like(v);
    cpu::AttentionBackward(ShapeOf(q, k, ctx->saved_data["window"].toInt()), Data(q), Data(k),
                           Data(v), Data(saved[3]), Data(saved[4]), Data(dout),
                           {.dq = Mutable(dq), .dk = Mutable(dk), .dv = Mutable(dv)});
    return {dq, dk, dv, Tensor()};
  }
};

struct SwiGluFunction : torch::autograd::Function<SwiGluFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate_in, const Tensor& up_in) {
    const Tensor gate = gate_in.contiguous(), up = up_in.contiguous();
    Tensor y = torch::empty_like(gate);
    const int64_t rows = Rows(gate), n = gate.size(-1);
    const float *pg = Data(gate), *pu = Data(up);
    float* py = Mutable(y);
#pragma omp parallel for
    for (int64_t i = 0; i < rows; ++i) cpu::SwiGluRow(pg + i * n, pu + i * n, py + i * n, n);
    ctx->save_for_backward({gate, up});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &gate = saved[0], &up = saved[1], dy = upstream[0].contiguous();
    Tensor dgate = torch::empty_like(gate), dup = torch::empty_like(up);
    const int64_t rows = Rows(gate), n = gate.size(-1);
    const float *pg = Data(gate), *pu = Data(up), *pdy = Data(dy);
    float *pdg = Mutable(dgate), *pdu = Mutable(dup);
#pragma omp parallel for
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = i * n;
      cpu::SwiGluGradientRow(pg + at, pu + at, pdy + at, pdg + at, pdu + at, n);
    }
    return {dgate, dup};
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
    const Tensor target = bound ? table.grad() : torch::zeros_like(table);
    const int64_t n = table.size(1), positions = ids.numel();
    const int64_t* pid = ids.data_ptr<int64_t>();
    const float* pdy = Data(dy);
    float* rows = Mutable(target);
    // Threads share out columns, so that the additions to a row keep their order.
#pragma omp parallel for schedule(static, 1)
    for (int64_t part = 0; part < kPartialSums; ++part) {
      const int64_t from = n * part / kPartialSums, to = n * (part + 1) / kPartialSums;
      for (int64_t i = 0; i < positions; ++i) {
        float* row = rows + pid[i] * n;
        for (int64_t c = from; c < to; ++c) row[c] += pdy[i * n + c];
      }
    }
    return {Tensor(), bound ? Tensor() : target};
  }
};

}  // namespace

bool Apply(const Tensor& x) { return x.device().is_cpu() && x.scalar_type() == torch::kFloat; }

std::vector<Tensor> Linears(const Tensor& x, const std::vector<Tensor>& weights,
                            const std::vector<Tensor>& biases) {
  const Tensor none = torch::empty({0}, x.options());
  const auto at = [&none](const std::vector<Tensor>& list, size_t i) {
    return i < list.size() && list[i].defined() ? list[i] : none;
  };
  return LinearsFunction::apply(x, at(weights, 0), at(weights, 1), at(weights, 2), at(biases, 0),
                                at(biases, 1), at(biases, 2));
}

Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps) {
  return RmsNormFunction::apply(x, weight, eps);
}

Tensor Rope(const Tensor& x, const RopeTable& table) {
  return RopeFunction::apply(x, table.cosine, table.sine);
}

Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t window) {
  return AttentionFunction::apply(q, k, v, window);
}

Tensor SwiGlu(const Tensor& gate, const Tensor& up) { return SwiGluFunction::apply(gate, up); }

Tensor Embedding(const Tensor& ids, const Tensor& table) {
  return EmbeddingFunction::apply(ids, table);
}

}  // namespace espalier::cpu_ops
