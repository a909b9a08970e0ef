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

// x with values dropped and the others as they are: Scale has their factor.
Tensor InputOf(const Tensor& x, const Projections& projections) {
  const ops::Adapter* const dropping = Dropping(projections);
  return dropping == nullptr ? x : KeptOf(x, dropping->dropout, dropping->site);
}

Tensor Matrix(const Tensor& x) { return x.view({-1, x.size(-1)}); }

// The first or second halves of those that there are, in the order of the projections.
std::vector<Tensor> HalvesOf(const Projections& projections, Tensor ops::Adapter::*half) {
  std::vector<Tensor> halves;
  for (const ops::Projection& one : projections) {
    if (Has(one)) halves.push_back(one.adapter.*half);
  }
  return halves;
}

// As one where they lie side by side, or there is but one; undefined where that is not so.
Tensor JoinedHalves(const std::vector<Tensor>& halves) {
  return halves.size() == 1 ? halves[0] : JoinedRows(halves);
}

bool ScaleAlike(const Projections& projections) {
  const auto first = std::find_if(projections.begin(), projections.end(), Has);
  return std::all_of(projections.begin(), projections.end(), [&](const ops::Projection& one) {
    return !Has(one) || Scale(one.adapter) == Scale(first->adapter);
  });
}

// Whether those of an input on CUDA are computed as one.
bool IsOne(const Tensor& x, const Projections& projections) {
  return x.is_cuda() && Apply(x) && std::any_of(projections.begin(), projections.end(), Has) &&
         ScaleAlike(projections) && JoinedHalves(HalvesOf(projections, &ops::Adapter::a)).defined();
}

// Uninitialised [..., r] of each adapter, parts of the rows of one, which is `whole`.
std::vector<Tensor> InnerParts(const Tensor& x, const std::vector<Tensor>& a, Tensor& whole) {
  std::vector<int64_t> ranks;
  int64_t all = 0;
  for (const Tensor& one : a) {
    ranks.push_back(one.size(0));
    all += one.size(0);
  }
  whole = ResizedLast(x, all);
  return a.size() == 1 ? std::vector<Tensor>{whole} : PartsOf(whole, ranks);
}

double ScaleOf(const Projections& projections) {
  return Scale(std::find_if(projections.begin(), projections.end(), Has)->adapter);
}

// y = t b', or added to y, on CUDA.
void LowRank(const Tensor& t, const Tensor& b, bool add, const Tensor& y) {
  Tensor to = y.view({-1, y.size(-1)});
  add ? to.addmm_(Matrix(t), b.t()) : torch::mm_out(to, Matrix(t), b.t());
}

// to = scale * x b, on CUDA.
void ScaledProduct(const Tensor& x, const Tensor& b, double scale, const Tensor& to) {
  Tensor rows = to.view({-1, to.size(-1)});
  torch::addmm_out(rows, rows, Matrix(x), b, /*beta=*/0, scale);
}

// The gradients of all adapters of one input on CUDA; `add`: to dx, else dx is written.
std::vector<Tensor> GradientsAsOne(const Tensor& x, const Projections& projections,
                                   const std::vector<Tensor>& inner, const std::vector<Tensor>& dy,
                                   const Tensor& dx, bool add) {
  const ops::Adapter* const dropping = Dropping(projections);
  const std::vector<Tensor> a = HalvesOf(projections, &ops::Adapter::a);
  Tensor whole;
  const std::vector<Tensor> dt = InnerParts(x, a, whole);
  std::vector<Tensor> of_b;
  for (size_t i = 0, next = 0; i < projections.size(); ++i) {
    if (!Has(projections[i])) continue;
    const ops::Projection up{projections[i].adapter.b, {}};
    ScaledProduct(dy[i], up.weight, ScaleOf(projections), dt[next]);
    of_b.push_back(WeightGradient(up, dy[i], inner[next]));
    ++next;
  }
  const Tensor input = InputOf(x, projections);
  const std::vector<Tensor> of_a = WeightGradients(a, dt, input);
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < a.size(); ++i) {
    gradients.push_back(of_a[i]);
    gradients.push_back(of_b[i]);
  }
  if (!dx.defined()) return gradients;
  const Tensor down = JoinedHalves(a).t();
  if (dropping == nullptr) {
    LowRank(whole, down, add, dx);
  } else {
    const Tensor through = torch::empty_like(input);
    LowRank(whole, down, /*add=*/false, through);
    AddKept(dx, through, dropping->dropout, dropping->site);
  }
  return gradients;
}

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
    if (x.is_cuda() && Apply(x)) {
      inner.push_back(ResizedLast(x, adapter.a.size(0)));
      ScaledProduct(input, adapter.a.t(), Scale(adapter), inner.back());
      LowRank(inner.back(), adapter.b, /*add=*/true, y[i]);
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

std::vector<Tensor> AdaptedProducts(const Tensor& x, const Projections& projections,
                                    std::vector<Tensor>& inner) {
  std::vector<Tensor> weights;
  std::vector<int64_t> columns;
  for (const ops::Projection& one : projections) {
    weights.push_back(one.weight);
    columns.push_back(one.weight.size(0));
  }
  const Tensor weight = JoinedRows(weights);
  if (!weight.defined() || !IsOne(x, projections)) return {};
  const std::vector<Tensor> a = HalvesOf(projections, &ops::Adapter::a);
  Tensor t;
  inner = InnerParts(x, a, t);
  ScaledProduct(InputOf(x, projections), JoinedHalves(a).t(), ScaleOf(projections), t);
  const Tensor y = ResizedLast(x, weight.size(0));
  const std::vector<Tensor> parts = PartsOf(y, columns);
  for (size_t i = 0, next = 0; i < projections.size(); ++i) {
    if (Has(projections[i])) {
      LowRank(inner[next++], projections[i].adapter.b, /*add=*/false, parts[i]);
    } else {
      Tensor(parts[i]).zero_();
    }
  }
  AddProductTo(y, x, {weight, {}});
  return parts;
}

bool WritesAdapterGradientsFirst(const Tensor& x, const Projections& projections,
                                 const std::vector<Tensor>& dy) {
  return Dropping(projections) == nullptr && IsOne(x, projections) &&
         std::all_of(dy.begin(), dy.end(), [](const Tensor& one) { return one.defined(); });
}

std::vector<Tensor> WriteAdapterGradients(const Tensor& x, const Projections& projections,
                                          const std::vector<Tensor>& inner,
                                          const std::vector<Tensor>& dy, const Tensor& dx) {
  return GradientsAsOne(x, projections, inner, dy, dx, /*add=*/false);
}

std::vector<Tensor> AddAdapterGradients(const Tensor& x, const Projections& projections,
                                        const std::vector<Tensor>& inner,
                                        const std::vector<Tensor>& dy, const Tensor& dx) {
  std::vector<Tensor> gradients;
  if (inner.empty()) return gradients;
  const bool all =
      std::all_of(dy.begin(), dy.end(), [](const Tensor& one) { return one.defined(); });
  if (all && IsOne(x, projections)) {
    return GradientsAsOne(x, projections, inner, dy, dx, /*add=*/true);
  }
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
    AddKept(dx, through, dropping->dropout, dropping->site);
  }
  return gradients;
}

}  // namespace espalier::fused_ops
