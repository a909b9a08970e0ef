// Products with weights, and the norm that feeds them, on any device: on the CPU what the norm
// makes is made again in the backward pass instead of being kept.
#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "worker/ops/adapters.h"
#include "worker/ops/fused_ops.h"
#include "worker/ops/fused_tensor.h"
#include "worker/ops/norms.h"
#include "worker/ops/products.h"

namespace espalier::fused_ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Products of one input, or of what a norm makes of it.
struct Linears {
  ops::Norm norm;  // an empty weight: no norm
  Projections projections;

  std::vector<Tensor> Weights() const {
    std::vector<Tensor> weights;
    for (const ops::Projection& one : projections) weights.push_back(one.weight);
    return weights;
  }
  bool HasBias() const {
    return std::any_of(projections.begin(), projections.end(),
                       [](const ops::Projection& one) { return one.bias.defined(); });
  }
  bool IsFrozen() const {
    return std::none_of(projections.begin(), projections.end(),
                        [](const ops::Projection& one) { return one.weight.requires_grad(); });
  }
  torch::ScalarType type() const { return projections[0].weight.scalar_type(); }
};

// What LinearsFunction keeps.
struct SavedLinears {
  Tensor x;                   // or what the norm keeps of it
  Tensor statistics;          // of the norm
  Tensor input;               // the normalised x; undefined: made again
  std::vector<Tensor> inner;  // of the adapters

  variable_list Packed() const {
    variable_list all = {x, statistics, input};
    all.insert(all.end(), inner.begin(), inner.end());
    return all;
  }
  static SavedLinears From(const variable_list& v) {
    return {v[0], v[1], v[2], {v.begin() + 3, v.end()}};
  }
};

// x, and the products.
struct LinearsFunction : torch::autograd::Function<LinearsFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x_in, const Tensor& norm_weight,
                               const Tensor& /*norm_bias*/, at::TensorList /*leaves*/,
                               const Linears& linears, const Made& product) {
    const Tensor x = x_in.contiguous();
    SavedLinears saved{x, {}, {}, {}};
    Tensor input = x;
    if (Given(norm_weight)) {
      const NormalRows normal = NormalizedRows(x, linears.norm, linears.type());
      input = normal.y;
      saved.statistics = normal.statistics;
      if (normal.kept.defined()) saved.x = normal.kept;
      if (KeepsInputs(x, linears.IsFrozen()) || !HasNormKernel(x, linears.norm)) {
        saved.input = input;
      }
    }
    std::vector<Tensor> products = {product.value};
    if (!product.value.defined()) products = AllProducts(linears, input, saved.inner);
    ctx->save_for_backward(saved.Packed());
    Hold(ctx, linears);
    products.insert(products.begin(), x);
    return products;
  }

  // upstream: of x, then of each product.
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const SavedLinears saved = SavedLinears::From(ctx->get_saved_variables());
    const auto linears = Held<Linears>(ctx);
    const ops::Norm& norm = linears.norm;
    Tensor input = saved.input.defined() ? saved.input : saved.x;
    if (Given(norm.weight) && !saved.input.defined()) {
      input = NormalizedRows(saved.x, norm, linears.type()).y;
    }
    const bool wanted =
        ctx->needs_input_grad(0) || norm.weight.requires_grad() || norm.bias.requires_grad();
    variable_list gradients(kFirstLeaf);
    std::vector<Tensor> dy(std::make_move_iterator(upstream.begin() + 1),
                           std::make_move_iterator(upstream.end()));
    Tensor dinput;
    std::vector<Tensor> adapters;
    const bool first = WritesAdapterGradientsFirst(input, linears.projections, dy);
    if (first) {
      if (wanted) dinput = torch::empty_like(input);
      adapters = WriteAdapterGradients(input, linears.projections, saved.inner, dy, dinput);
    }
    Tensor other = upstream[0].defined() ? upstream[0].contiguous() : upstream[0];
    const Tensor plus =
        wanted && MeetInProduct(linears, dy, other) ? std::exchange(other, {}) : Tensor();
    const Products of = ProductGradients(linears, input, dy, wanted, dinput, plus);
    dinput = of.dinput;
    if (!first) {
      adapters = AddAdapterGradients(input, linears.projections, saved.inner, dy, dinput);
    }
    dy.clear();
    auto next = adapters.begin();
    for (size_t i = 0; i < linears.projections.size(); ++i) {
      const ops::Projection& one = linears.projections[i];
      gradients.push_back(of.weights[i]);
      if (one.bias.defined()) gradients.push_back(of.biases[i]);
      if (!one.adapter.a.defined()) continue;
      gradients.insert(gradients.end(), next, next + 2);
      next += 2;
    }
    gradients.resize(gradients.size() + 2);  // of what is no variable
    FinishInput(norm, saved, dinput, other, gradients);
    return gradients;
  }

 private:
  static constexpr size_t kFirstLeaf = 3;  // of the arguments of forward

  // Of `input`, with what adapters add.
  static std::vector<Tensor> AllProducts(const Linears& linears, const Tensor& input,
                                         std::vector<Tensor>& inner) {
    std::vector<Tensor> products;
    if (!linears.HasBias()) {
      products = AdaptedProducts(input, linears.projections, inner);
      if (!products.empty()) return products;
      products = JoinedProducts(input, linears.Weights());
    }
    if (products.empty()) {
      for (const ops::Projection& one : linears.projections) {
        products.push_back(Product(input, one, {}));
      }
    }
    inner = AddAdapters(input, linears.projections, products);
    return products;
  }

  // Whether the one product's part of the gradient of x and the one that came by x itself, `other`,
  // are one product on CUDA, which is no slower than the sum of two.
  static bool MeetInProduct(const Linears& linears, const std::vector<Tensor>& dy,
                            const Tensor& other) {
    const bool one = linears.projections.size() == 1 && dy[0].defined() && dy[0].is_cuda() &&
                     !linears.projections[0].adapter.a.defined();
    return one && !Given(linears.norm.weight) && other.defined() && Apply(dy[0]) &&
           other.scalar_type() == dy[0].scalar_type();
  }

  // What the products come to by themselves; the gradient of the input is added to `to` where that
  // is defined, or is that of MeetInProduct with `plus`. One that is not wanted may be undefined.
  struct Products {
    Tensor dinput;
    std::vector<Tensor> weights, biases;
  };
  static Products ProductGradients(const Linears& linears, const Tensor& input,
                                   std::vector<Tensor>& dy, bool wanted, const Tensor& to,
                                   const Tensor& plus) {
    const size_t count = linears.projections.size();
    Products of;
    of.weights.resize(count);
    of.biases.resize(count);
    if (!wanted && !TakesGradients(linears)) return of;
    of.dinput = JoinedGradient(linears.Weights(), dy, input, to);
    const bool joined = of.dinput.defined();
    if (!joined) of.dinput = to;
    for (size_t i = 0; i < count && !joined; ++i) {
      const ops::Projection& projection = linears.projections[i];
      if (!dy[i].defined()) continue;
      dy[i] = dy[i].contiguous();
      of.weights[i] = WeightGradient(projection, dy[i], input);
      of.biases[i] = BiasGradient(projection.bias, dy[i]);
      if (!wanted) continue;
      if (plus.defined()) {
        of.dinput = Product(dy[i], {projection.weight, {}, !projection.transposed}, plus);
        continue;
      }
      const bool add = of.dinput.defined();
      if (!add) of.dinput = torch::empty_like(input);
      InputGradient(dy[i], projection, add, of.dinput);
      if (!projection.adapter.a.defined()) dy[i].reset();
    }
    return of;
  }

  static bool TakesGradients(const Linears& linears) {
    const auto takes = [](const Tensor& one) { return one.defined() && one.requires_grad(); };
    return std::any_of(
        linears.projections.begin(), linears.projections.end(),
        [&](const ops::Projection& one) { return takes(one.weight) || takes(one.bias); });
  }

  // From the gradient of what is multiplied to those of x and the norm; `other` came by x itself.
  static void FinishInput(const ops::Norm& norm, const SavedLinears& saved, Tensor dinput,
                          const Tensor& other, variable_list& gradients) {
    if (!dinput.defined()) {
      gradients[0] = other;
    } else if (Given(norm.weight)) {
      const bool same = dinput.scalar_type() == saved.x.scalar_type();
      const NormGradients of = NormalizedRowsBackward(saved.x, norm, saved.statistics, dinput,
                                                      other, same ? dinput : Tensor());
      gradients[0] = of.x;
      gradients[1] = of.weight;
      gradients[2] = of.bias;
    } else {
      gradients[0] = other.defined() ? dinput.add_(other) : dinput;
    }
  }
};

// One product of x, added to a residual.
struct LinearAddFunction : torch::autograd::Function<LinearAddFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_in, const Tensor& residual,
                        at::TensorList /*leaves*/, const Projections& one) {
    const Tensor x = x_in.contiguous();
    Tensor y = Product(x, one[0], residual);
    variable_list saved = {x};
    for (const Tensor& inner : AddAdapters(x, one, {y})) saved.push_back(inner);
    ctx->save_for_backward(saved);
    Hold(ctx, one);
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor& x = saved[0];
    const auto one = Held<Projections>(ctx);
    const Tensor dy = upstream[0].to(x.scalar_type()).contiguous();
    variable_list gradients = {Tensor(), upstream[0], WeightGradient(one[0], dy, x)};
    if (one[0].bias.defined()) gradients.push_back(BiasGradient(one[0].bias, upstream[0]));
    const std::vector<Tensor> inner = {saved.begin() + 1, saved.end()};
    const bool first = WritesAdapterGradientsFirst(x, one, {dy}), wanted = ctx->needs_input_grad(0);
    std::vector<Tensor> adapters;
    if (wanted) gradients[0] = torch::empty_like(x);
    if (first) adapters = WriteAdapterGradients(x, one, inner, {dy}, gradients[0]);
    if (wanted) InputGradient(dy, one[0], /*add=*/first, gradients[0]);
    if (!first) adapters = AddAdapterGradients(x, one, inner, {dy}, gradients[0]);
    gradients.insert(gradients.end(), adapters.begin(), adapters.end());
    gradients.emplace_back();
    return gradients;
  }
};

// Parts of rows: on the CPU dense copies, which its loops take, elsewhere where they are.
struct SplitFunction : torch::autograd::Function<SplitFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x,
                               const std::vector<int64_t>& columns) {
    ctx->saved_data["shape"] = x.sizes();
    variable_list parts = PartsOf(x, columns, ColumnOrder::kFirstFirst);
    const bool dense = x.is_cpu() && Apply(x);
    for (Tensor& part : parts) part = dense ? part.contiguous() : part;
    return parts;
  }
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const std::vector<int64_t> shape = ctx->saved_data["shape"].toIntVector();
    const Tensor joined = JoinedColumns({upstream.rbegin(), upstream.rend()});  // side by side
    if (joined.defined()) return {joined.view(shape), Tensor()};
    return {torch::cat(upstream, -1), Tensor()};
  }
};

}  // namespace

ops::Branches NormLinears(const Tensor& x, const ops::Norm& norm,
                          const std::vector<ops::Projection>& projections, const Tensor& product) {
  const Linears linears{{OrNone(norm.weight, x), OrNone(norm.bias, x), norm.eps, norm.constants},
                        projections};
  variable_list out =
      LinearsFunction::apply(x, linears.norm.weight, linears.norm.bias,
                             at::TensorList(LeavesOf(projections)), linears, Made{product});
  return {out[0], {out.begin() + 1, out.end()}};
}

Tensor LinearAdd(const Tensor& x, const ops::Projection& projection, const Tensor& residual) {
  const Projections one = {projection};
  return LinearAddFunction::apply(x, OrNone(residual, x), at::TensorList(LeavesOf(one)), one);
}

std::vector<Tensor> Split(const Tensor& x, const std::vector<int64_t>& columns) {
  return SplitFunction::apply(x, columns);
}

}  // namespace espalier::fused_ops
