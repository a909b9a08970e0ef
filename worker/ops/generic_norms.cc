#include "worker/ops/generic_ops.h"

namespace espalier::generic_ops {
namespace {

using torch::Tensor;

Tensor Rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

Tensor As(const Tensor& x, const Tensor& like) { return x.to(like.scalar_type()); }

// inner, which is of the type of sums, times `factor` of each row, plus `other`, as x.
Tensor PlusOther(const Tensor& inner, const Tensor& factor, const Tensor& other, const Tensor& x) {
  if (other.defined() && other.scalar_type() == inner.scalar_type()) {
    return torch::addcmul(Rows(other), inner, factor).view_as(x);
  }
  const Tensor dx = As(inner * factor, x);
  return (other.defined() ? dx.add_(Rows(other)) : dx).view_as(x);
}

// With m = mean(x^2) + eps and r = 1 / sqrt(m): dx = r (w dy - x mean(x w dy) / m), dw = sum over
// rows of r x dy.
NormGradients RmsBackward(const Tensor& x, const Tensor& weight, const Tensor& statistics,
                          const Tensor& dy, const Tensor& other) {
  const Tensor rows = Wide(Rows(x)), dy_rows = Rows(dy), product = rows * dy_rows;
  const Tensor mean_square = statistics[0], inverse = statistics[1];
  Tensor dweight;
  if (weight.requires_grad()) {
    const bool bound = weight.grad().defined();
    const Tensor sum = bound ? weight.grad() : torch::zeros_like(weight);
    AddWeightedRows(sum, inverse, product);
    if (!bound) dweight = sum;
  }
  const Tensor mean = product.mv(As(weight, product)).div_(mean_square).unsqueeze(1);
  const Tensor inner =
      (dy_rows * weight).addcmul_(rows, mean, -1 / static_cast<double>(x.size(-1)));
  return {PlusOther(inner, inverse.unsqueeze(1), other, x), dweight, {}};
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
  const Tensor statistics = rows.new_empty({2, rows.size(0)});
  Tensor mean_square = statistics[0], inverse = statistics[1];
  at::mean_out(mean_square, rows.square(), 1);
  at::rsqrt_out(inverse, mean_square.add_(norm.eps));
  return {(rows * inverse.unsqueeze(1)).mul_(norm.weight).to(type).view_as(x), statistics};
}

NormGradients NormalizeBackward(const Tensor& x, const ops::Norm& norm, const Tensor& statistics,
                                const Tensor& dy, const Tensor& other) {
  if (norm.bias.defined() && norm.bias.numel() > 0) {
    return CentredBackward(x, norm, statistics, dy, other);
  }
  return RmsBackward(x, norm.weight, statistics, dy, other);
}

}  // namespace espalier::generic_ops
