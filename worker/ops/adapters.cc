#include "worker/ops/adapters.h"

#include <algorithm>

#include "worker/ops/dropout.h"
#include "worker/ops/fused_tensor.h"
#include "worker/ops/products.h"

namespace espalier::fused_ops {
namespace {

using torch::Tensor;

bool Has(const ops::Projection& projection) { return projection.adapter.a.defined(); }

// That of the adapters: they drop alike. Null: nothing is dropped.
const ops::Adapter* Dropping(const Projections& projections) {
  const auto found = std::find_if(projections.begin(), projections.end(), Has);
  if (found == projections.end() || found->adapter.dropout.rate == 0) return nullptr;
  return &found->adapter;
}

// Of what an adapter makes of the values that its input keeps.
double Scale(const ops::Adapter& adapter) {
  const double rate = adapter.dropout.rate;
  return rate == 0 ? adapter.scale : adapter.scale * KeptFactor(rate);
}

Tensor Mask(const ops::Adapter& adapter, const Tensor& like) {
  return DropoutMask(like, adapter.dropout, adapter.site);
}

// x with values dropped and the others as they are: Scale has their factor.
Tensor InputOf(const Tensor& x, const Projections& projections) {
  const ops::Adapter* const dropping = Dropping(projections);
  return dropping == nullptr ? x : x * Mask(*dropping, x);
}

Tensor Matrix(const Tensor& x) { return x.view({-1, x.size(-1)}); }

}  // namespace

std::vector<Tensor> LeavesOf(const Projections& projections) {
  std::vector<Tensor> leaves;
  for (const ops::Projection& one : projections) {
    for (const Tensor& leaf : {one.weight, one.bias, one.adapter.a, one.adapter.b}) {
      if (leaf.defined()) leaves.push_back(leaf);
    }
  }
  return leaves;
}

std::vector<Tensor> AddAdapters(const Tensor& x, const Projections& projections,
                                const std::vector<Tensor>& y) {
  std::vector<Tensor> inner;
  if (std::none_of(projections.begin(), projections.end(), Has)) return inner;
  const Tensor input = InputOf(x, projections);
  // Parts of wider rows, which not every device adds products to.
  const Tensor whole = x.is_cuda() ? Tensor() : JoinedColumns(y);
  std::vector<Tensor> added;
  for (size_t i = 0; i < projections.size(); ++i) {
    const ops::Adapter& adapter = projections[i].adapter;
    if (!Has(projections[i])) {
      if (whole.defined()) added.push_back(torch::zeros({Rows(x), y[i].size(-1)}, y[i].options()));
      continue;
    }
    Tensor t = Product(input, {adapter.a, {}}, {});
    if (const double scale = Scale(adapter); scale != 1) t.mul_(scale);
    inner.push_back(t);
    const ops::Projection up{adapter.b, {}};
    whole.defined() ? added.push_back(Matrix(Product(t, up, {}))) : AddProductTo(y[i], t, up);
  }
  // The last comes first in memory.
  if (whole.defined()) {
    std::reverse(added.begin(), added.end());
    whole.add_(torch::cat(added, 1));
  }
  return inner;
}

std::vector<Tensor> AddAdapterGradients(const Tensor& x, const Projections& projections,
                                        const std::vector<Tensor>& inner,
                                        const std::vector<Tensor>& dy, const Tensor& dx) {
  std::vector<Tensor> gradients;
  if (inner.empty()) return gradients;
  const ops::Adapter* const dropping = Dropping(projections);
  const Tensor input = InputOf(x, projections);
  Tensor through = dropping == nullptr ? dx : Tensor();  // what x gets, before it is dropped
  size_t next = 0;
  for (size_t i = 0; i < projections.size(); ++i) {
    if (!Has(projections[i])) continue;
    const Tensor& t = inner[next++];
    if (!dy[i].defined()) {
      gradients.resize(gradients.size() + 2);
      continue;
    }
    const ops::Projection down{projections[i].adapter.a, {}}, up{projections[i].adapter.b, {}};
    const Tensor dense = x.is_cuda() ? dy[i] : dy[i].contiguous(), dt = torch::empty_like(t);
    InputGradient(dense, up, /*add=*/false, dt);
    if (const double scale = Scale(projections[i].adapter); scale != 1) dt.mul_(scale);
    gradients.push_back(WeightGradient(down, dt, input));
    gradients.push_back(WeightGradient(up, dense, t));
    if (!dx.defined()) continue;
    const bool add = through.defined();
    if (!add) through = torch::empty_like(input);
    InputGradient(dt, down, add, through);
  }
  if (dx.defined() && dropping != nullptr && through.defined()) {
    Tensor(dx).add_(through.mul_(Mask(*dropping, through)));
  }
  return gradients;
}

}  // namespace espalier::fused_ops
