#include "worker/ops/products.h"

#include <algorithm>
#include <type_traits>

#include "worker/kernels/gemm.h"
#include "worker/kernels/rows_apart.h"
#include "worker/ops/cuda_ops.h"
#include "worker/ops/fused_tensor.h"
#include "worker/ops/generic_ops.h"
#include "worker/tensor/torch_compat.h"

namespace espalier::fused_ops {

namespace {

using torch::Tensor;

// c = a b, or added to c, which is dense and fp32 or of the type of a and b.
template <typename Real>
void Multiply(const cpu::GemmShape& shape, const cpu::Matrix<Real>& a, const cpu::Matrix<Real>& b,
              bool add, const Tensor& c) {
  const float beta = add ? 1.0F : 0.0F;
  if constexpr (!std::is_same_v<Real, float>) {
    if (c.scalar_type() != torch::kFloat) {
      return cpu::Gemm(shape, a, b, beta, Mutable<Real>(c), shape.n);
    }
  }
  cpu::Gemm(shape, a, b, beta, Mutable(c), shape.n);
}

// The same by RowProduct.
template <typename Real>
void MultiplyRows(const cpu::GemmShape& shape, const Tensor& x, const cpu::Matrix<Real>& w,
                  bool add, const Tensor& y) {
  if constexpr (!std::is_same_v<Real, float>) {
    if (y.scalar_type() != torch::kFloat) {
      return cpu::RowProduct(shape, Data<Real>(x), w, add, Mutable<Real>(y));
    }
  }
  cpu::RowProduct(shape, Data<Real>(x), w, add, Mutable(y));
}

// A projection's weight as the right side of a product of rows of `in` numbers.
template <typename Real>
cpu::Matrix<Real> RightSide(const ops::Projection& projection, int64_t in) {
  if (projection.transposed) return {Data<Real>(projection.weight), projection.out()};
  return {Data<Real>(projection.weight), in, cpu::Op::kTranspose};
}

bool TakesGradient(const Tensor& weight) { return weight.requires_grad(); }

// The weights' gradients side by side in the flat gradient; undefined when a weight takes none or
// has no neighbours.
Tensor JoinedGradients(const std::vector<Tensor>& weights) {
  std::vector<Tensor> gradients;
  for (const Tensor& weight : weights) {
    if (!weight.requires_grad() || !weight.grad().defined()) return {};
    gradients.push_back(weight.grad());
  }
  return JoinedRows(gradients);
}

// One product of x and several weights, where reading and adding to x costs: all but our loops on
// the CPU.
bool Joins(const Tensor& x) { return !x.is_cpu() || !Apply(x); }

// On CUDA; undefined where that has no kernel for it.
Tensor OneRowProduct(const Tensor& x, const ops::Projection& projection, const Tensor& residual) {
  if (projection.transposed) return {};
  Tensor y =
      cuda::OneRowProduct({.x = x}, projection.weight, Given(residual) ? residual : Tensor());
  return y.defined() && Given(projection.bias) ? y.add_(projection.bias) : y;
}

// x's, but for the last dimension.
std::vector<int64_t> ShapeOfRows(const Tensor& x, int64_t last) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = last;
  return shape;
}

// Whether rows of so many columns may exist for all rows of x.
bool IsWithinBounds(const Tensor& x, int64_t columns) {
  return Apply(x) || Rows(x) * columns * x.element_size() <= kMostOperandBytes;
}

}  // namespace

Tensor Product(const Tensor& x, const ops::Projection& projection, const Tensor& residual) {
  if (!Apply(x)) return generic_ops::Product(x, projection, residual);
  const Tensor &weight = projection.weight, &bias = projection.bias;
  const int64_t n = projection.out(), k = x.size(-1);
  if (x.is_cuda()) {
    const Tensor few = OneRowProduct(x, projection, residual);
    if (few.defined()) return few;
    const Tensor right = projection.transposed ? weight : weight.t();  // [k, n]
    if (!Given(residual)) {
      const bool plain = !Given(bias) && x.is_contiguous();
      const Tensor y =
          plain ? cuda::DenseProduct(x.view({-1, k}), weight, projection.transposed, {}) : Tensor();
      if (y.defined()) return y.view(ShapeOfRows(x, n));
      return torch::linear(x, right.t(), Given(bias) ? bias : Tensor());
    }
    const Tensor rows = x.view({-1, k}), to = residual.reshape({-1, n});
    Tensor y = cuda::DenseProduct(rows, weight, projection.transposed, to);
    if (!y.defined()) y = PlusProduct(to, rows, right);
    return (Given(bias) ? y.add_(bias) : y).view_as(residual);
  }
  Tensor y = Given(residual) ? torch::empty(residual.sizes(), residual.options()).copy_(residual)
                             : ResizedLast(x, n);
  if (Given(bias)) Given(residual) ? y.add_(bias) : y.copy_(bias.expand_as(y));
  WithReal(x, [&](auto zero) {
    using Real = decltype(zero);
    const bool add = Given(bias) || Given(residual);
    const cpu::Matrix<Real> right = RightSide<Real>(projection, k);
    cpu::RowsApart::Here() ? MultiplyRows<Real>({Rows(x), n, k}, x, right, add, y)
                           : Multiply<Real>({Rows(x), n, k}, {Data<Real>(x), k}, right, add, y);
  });
  return y;
}

void AddProductTo(const Tensor& y, const Tensor& x, const ops::Projection& projection) {
  const int64_t n = projection.out(), k = x.size(-1);
  if (x.is_cpu() && Apply(x)) {
    return WithReal(x, [&](auto zero) {
      using Real = decltype(zero);
      const cpu::Matrix<Real> right = RightSide<Real>(projection, k);
      cpu::RowsApart::Here()
          ? MultiplyRows<Real>({Rows(x), n, k}, x, right, /*add=*/true, y)
          : Multiply<Real>({Rows(x), n, k}, {Data<Real>(x), k}, right, /*add=*/true, y);
    });
  }
  const Tensor right = projection.transposed ? projection.weight : projection.weight.t();
  const Tensor rows = x.view({-1, k});
  Tensor out = y.view({-1, n});
  y.scalar_type() == x.scalar_type() ? out.addmm_(rows, right) : out.add_(rows.mm(right));
}

void InputGradient(const Tensor& dy, const ops::Projection& projection, bool add,
                   const Tensor& dx) {
  const int64_t n = dy.size(-1), k = dx.size(-1);
  if (!dy.is_cpu() || !Apply(dy)) {
    const Tensor weight = projection.transposed ? projection.weight.t() : projection.weight;
    Tensor out = dx.view({-1, k});  // on CUDA also of parts of wider rows
    const Tensor rows = dy.view({-1, n});
    if (!Apply(dy)) return ProductInParts(rows, weight, add, out);
    const Tensor made = cuda::DenseProduct(rows, projection.weight, !projection.transposed,
                                           add ? out : Tensor(), out);
    if (made.defined()) return;
    add ? out.addmm_(rows, weight) : torch::mm_out(out, rows, weight);
    return;
  }
  // What is the right side of a product of x is, turned round, that of one of dy.
  const ops::Projection back{projection.weight, {}, !projection.transposed};
  WithReal(dy, [&](auto zero) {
    using Real = decltype(zero);
    Multiply<Real>({Rows(dy), k, n}, {Data<Real>(dy), n}, RightSide<Real>(back, n), add, dx);
  });
}

Tensor WeightGradient(const ops::Projection& projection, const Tensor& dy_in, const Tensor& x_in) {
  const Tensor& weight = projection.weight;
  if (!weight.requires_grad()) return {};
  // (dy' x)' = x' dy.
  const Tensor &dy = projection.transposed ? x_in : dy_in,
               &x = projection.transposed ? dy_in : x_in;
  if (!Apply(x)) return generic_ops::WeightGradient(weight, dy, x);
  const int64_t out = weight.size(0), in = weight.size(1);
  const bool bound = weight.grad().defined();
  if (x.is_cuda()) {
    const Tensor dy_t = dy.view({-1, out}).t(), rows = x.view({-1, in});
    if (!bound) return dy_t.mm(rows);
    AddProduct(weight.grad(), dy_t, rows);
    MarkAdded(weight.grad());
    return {};
  }
  const Tensor target = bound ? weight.grad() : torch::empty(weight.sizes(), FloatOptions(x));
  WithReal(x, [&](auto zero) {
    using Real = decltype(zero);
    Multiply<Real>({out, in, Rows(x)}, {Data<Real>(dy), out, cpu::Op::kTranspose},
                   {Data<Real>(x), in}, bound, target);
  });
  if (bound) MarkAdded(target);
  return bound ? Tensor() : target.to(weight.scalar_type());
}

std::vector<Tensor> WeightGradients(const std::vector<Tensor>& weights,
                                    const std::vector<Tensor>& dy, const Tensor& x) {
  const Tensor rows = Joins(x) ? JoinedColumns(dy) : Tensor();
  const Tensor gradient = rows.defined() ? JoinedGradients(weights) : Tensor();
  std::vector<Tensor> unbound(weights.size());
  if (!gradient.defined()) {
    for (size_t i = 0; i < weights.size(); ++i) {
      unbound[i] = WeightGradient({weights[i], {}}, dy[i], x);
    }
    return unbound;
  }
  const Tensor input = x.view({-1, x.size(-1)});
  Apply(x) ? AddProduct(gradient, rows.t(), input) : AddOuterProducts(gradient, rows, input);
  for (const Tensor& one : weights) MarkAdded(one.grad());
  return unbound;
}

Tensor BiasGradient(const Tensor& bias, const Tensor& dy) {
  if (!bias.requires_grad()) return {};
  return Deliver(bias,
                 dy.reshape({-1, dy.size(-1)}).sum(0, /*keepdim=*/false, generic_ops::SumType(dy)));
}

std::vector<Tensor> JoinedProducts(const Tensor& x, const std::vector<Tensor>& weights) {
  if (!Joins(x)) return {};
  const Tensor joined = JoinedRows(weights);
  if (!joined.defined() || !IsWithinBounds(x, joined.size(0))) return {};
  std::vector<int64_t> columns;
  for (const Tensor& weight : weights) columns.push_back(weight.size(0));
  const Tensor few = OneRowProduct(x, {joined, {}}, {});
  if (few.defined()) return PartsOf(few, columns);
  return PartsOf(
      torch::linear(x.reshape({-1, x.size(-1)}), joined).view(ShapeOfRows(x, joined.size(0))),
      columns);
}

Tensor JoinedGradient(const std::vector<Tensor>& weights, const std::vector<Tensor>& dy,
                      const Tensor& x, const Tensor& to) {
  if (!Joins(x)) return {};
  const Tensor rows = JoinedColumns(dy), weight = JoinedRows(weights);
  if (!rows.defined() || !weight.defined()) return {};
  const bool frozen = std::none_of(weights.begin(), weights.end(), TakesGradient);
  const Tensor gradient = frozen ? Tensor() : JoinedGradients(weights);
  if (!frozen && !gradient.defined()) return {};
  Tensor dx = to.defined() ? to : torch::empty_like(x);
  const Tensor input = x.view({-1, x.size(-1)});
  if (!frozen) {
    Apply(x) ? AddProduct(gradient, rows.t(), input) : AddOuterProducts(gradient, rows, input);
    for (const Tensor& one : weights) MarkAdded(one.grad());
  }
  InputGradient(rows, {weight, {}}, /*add=*/to.defined(), dx);
  return dx;
}

}  // namespace espalier::fused_ops
