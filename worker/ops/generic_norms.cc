#include <cmath>

#include "worker/ops/generic_ops.h"
#include "worker/ops/norm_constants.h"

namespace espalier::generic_ops {
namespace {

using torch::Tensor;

Tensor Rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

Tensor As(const Tensor& x, const Tensor& like) { return x.to(like.scalar_type()); }

c10::intrusive_ptr<NormConstants> ConstantsOf(const ops::Norm& norm) {
  return norm.constants ? norm.constants : c10::make_intrusive<NormConstants>();
}

// inner, which is of the type of sums, times scale / size of each row, plus `other`, as x.
Tensor PlusOther(const Tensor& inner, const Tensor& size, double scale, const Tensor& other,
                 const Tensor& x, NormConstants& constants) {
  const bool joins = other.defined() && other.scalar_type() == inner.scalar_type();
  const Tensor to = joins ? Rows(other) : constants.Zero(inner.options());
  const Tensor dx = As(torch::addcdiv(to, inner, size, scale), x);
  return (other.defined() && !joins ? dx.add_(Rows(other)) : dx).view_as(x);
}

// With h = sqrt(sum(x^2) + C eps), q = x / h and s = sqrt(C), so that y = s w q:
// dx = s / h (w dy - q sum(q w dy)), dw = s sum over rows of q dy. `kept` is q where it is of the
// type of sums, else x.
NormGradients RmsBackward(const Tensor& kept, const ops::Norm& norm, const Tensor& size,
                          const Tensor& dy, const Tensor& other) {
  const bool whole = kept.scalar_type() == SumType(kept);
  const Tensor q = whole ? Rows(kept) : Wide(Rows(kept)) / size;
  const Tensor &weight = norm.weight, dy_rows = Rows(dy), product = q * dy_rows;
  const auto constants = ConstantsOf(norm);
  const double scale = std::sqrt(static_cast<double>(q.size(1)));
  Tensor dweight;
  if (weight.requires_grad()) {
    const bool bound = weight.grad().defined();
    const Tensor sum = bound ? weight.grad() : torch::zeros_like(weight);
    AddWeightedRows(sum, constants->Ones(q.size(0), q.options()), product, scale);
    if (!bound) dweight = sum;
  }
  const Tensor along = product.mv(As(weight, product)).unsqueeze(1);
  const Tensor inner = (dy_rows * weight).addcmul_(q, along, -1);
  return {PlusOther(inner, size, scale, other, kept, *constants), dweight, {}};
}

// Adds to `leaf.grad()`, or returns the gradient where there is none to add to.
Tensor Deliver(const Tensor& leaf, const Tensor& gradient) {
  if (!gradient.defined() || !leaf.grad().defined()) return gradient;
  leaf.grad().add_(gradient);
  return {};
}

NormGradients CentredBackward(const Tensor& x, const ops::Norm& norm, const Tensor& statistics,
                              const Tensor& dy, const Tensor& other) {
  const Tensor rows = Wide(Rows(x));
  const auto [dx, dweight, dbias] = at::native_layer_norm_backward(
      As(Rows(dy), rows), rows, {x.size(-1)}, statistics[0].unsqueeze(1),
      statistics[1].unsqueeze(1), As(norm.weight, rows), As(norm.bias, rows),
      {true, norm.weight.requires_grad(), norm.bias.requires_grad()});
  Tensor of_x = As(dx, x).view_as(x);
  if (other.defined()) of_x = of_x.add_(other.view_as(x));
  return {of_x, Deliver(norm.weight, dweight), Deliver(norm.bias, dbias)};
}

}  // namespace

NormalRows Normalize(const Tensor& x, const ops::Norm& norm, torch::ScalarType type) {
  const Tensor rows = Wide(Rows(x));
  if (norm.bias.defined() && norm.bias.numel() > 0) {
    const auto [y, mean, inverse] = at::native_layer_norm(rows, {x.size(-1)}, As(norm.weight, rows),
                                                          As(norm.bias, rows), norm.eps);
    return {y.to(type).view_as(x), torch::cat({mean.view({1, -1}), inverse.view({1, -1})})};
  }
  const auto columns = static_cast<double>(x.size(-1));
  const Tensor least = torch::scalar_tensor(std::sqrt(columns * norm.eps), rows.scalar_type());
  const Tensor size = at::linalg_vector_norm(rows, 2, {1}, /*keepdim=*/true).hypot_(least);
  const Tensor q = rows / size;
  const Tensor y = torch::addcmul(ConstantsOf(norm)->Zero(rows.options()), q, As(norm.weight, rows),
                                  std::sqrt(columns));
  return {y.to(type).view_as(x), size, x.scalar_type() == SumType(x) ? q.view_as(x) : Tensor()};
}

NormGradients NormalizeBackward(const Tensor& x, const ops::Norm& norm, const Tensor& statistics,
                                const Tensor& dy, const Tensor& other) {
  if (norm.bias.defined() && norm.bias.numel() > 0) {
    return CentredBackward(x, norm, statistics, dy, other);
  }
  return RmsBackward(x, norm, statistics, dy, other);
}

}  // namespace espalier::generic_ops
