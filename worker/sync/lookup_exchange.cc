#include "worker/sync/lookup_exchange.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/ops/operand_bounds.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

// Places of what is not zero.
std::vector<int64_t> IdsOf(const std::vector<float>& used) {
  std::vector<int64_t> ids;
  for (size_t id = 0; id < used.size(); ++id) {
    if (used[id] != 0) ids.push_back(static_cast<int64_t>(id));
  }
  return ids;
}

// Steps look up other ids each, so that rows are no more than this part of a shape of their own.
constexpr int64_t kRowsOfAShape = 1024;

// Where the sum of its gradient is.
Tensor SumOf(Parameters& parameters, const Parameter& parameter) {
  if (!parameter.trained || !parameters.values_on_host() ||
      parameter.offset >= parameters.dense_elements()) {
    return parameter.leaf.grad();
  }
  return parameters.summed_gradient()
      .Slice(parameter.offset, parameter.size)
      .view(parameter.shape.shape);
}

Tensor OnDevice(const std::vector<int64_t>& values, torch::Device device) {
  return torch::tensor(values, torch::kInt64).to(device);
}

}  // namespace

LookupExchange::LookupExchange(Collective& collective, Parameters& parameters, WireType wire)
    : collective_(collective),
      parameters_(parameters),
      wire_(wire == WireType::kInt8 ? WireType::kBf16 : wire),
      table_(parameters.Embedding().value),
      device_(parameters.device()),
      gradient_(SumOf(parameters, parameters.Embedding())) {}

bool LookupExchange::Needed() const {
  switch (parameters_.embedding()) {
    case EmbeddingGradient::kDense:
      return collective_.world_size() > 1;
    case EmbeddingGradient::kRowsApart:
      return true;
    case EmbeddingGradient::kFrozen:
      return false;
  }
  return false;
}

// 1 for each id of the vocabulary that is among the tokens. The decoder refuses what is outside.
std::vector<float> LookupExchange::UsedBy(absl::Span<const int64_t> tokens) const {
  const int64_t vocabulary = table_.size(0);
  std::vector<float> used(vocabulary);
  for (const int64_t token : tokens) {
    if (token >= 0 && token < vocabulary) used[token] = 1;
  }
  return used;
}

int64_t LookupExchange::RowsFor(int64_t ids) const {
  return std::min(SharedSize(ids, kRowsOfAShape, device_), table_.size(0));
}

int64_t LookupExchange::Bytes(absl::Span<const int64_t> tokens) const {
  if (!Needed()) return 0;
  const int64_t rows = RowsFor(static_cast<int64_t>(IdsOf(UsedBy(tokens)).size()));
  if (rows == 0) return 0;
  constexpr int64_t kRowAndGradient = 2 * sizeof(float);
  return rows * table_.size(1) * kRowAndGradient +
         table_.size(0) * static_cast<int64_t>(sizeof(int64_t));
}

absl::StatusOr<EmbeddingRows> LookupExchange::Begin(absl::Span<const int64_t> tokens) {
  EmbeddingRows lookup;
  if (!Needed()) return lookup;
  const int64_t vocabulary = table_.size(0);
  used_ = UsedBy(tokens);
  mine_ = IdsOf(used_);
  rows_ = Tensor();
  if (!mine_.empty()) {
    std::vector<int64_t> row_of(vocabulary);
    for (size_t row = 0; row < mine_.size(); ++row) row_of[mine_[row]] = static_cast<int64_t>(row);
    std::vector<int64_t> taken = mine_;
    taken.resize(static_cast<size_t>(RowsFor(static_cast<int64_t>(mine_.size()))));
    RETURN_IF_ERROR(CatchTorch("taking the rows of the embedding that a step needs", [&] {
      torch::NoGradGuard no_grad;
      rows_ = table_.index_select(0, OnDevice(taken, table_.device()))
                  .to(device_)
                  .set_requires_grad(true);
      rows_.mutable_grad() = torch::zeros_like(rows_);
      lookup = {rows_, OnDevice(row_of, device_)};
    }));
  }
  if (collective_.world_size() > 1) {
    used_ticket_ = collective_.StartAllReduce({.values = absl::MakeSpan(used_)});
  }
  return lookup;
}

absl::Status LookupExchange::StartSum() {
  if (!used_ticket_) return absl::OkStatus();
  RETURN_IF_ERROR(collective_.Wait(*used_ticket_));
  used_ticket_.reset();
  all_ = IdsOf(used_);
  if (all_.empty()) return absl::OkStatus();
  return CatchTorch("gathering the gradient of the embedding's rows", [&] {
    sums_ = torch::zeros({static_cast<int64_t>(all_.size()), table_.size(1)}, torch::kFloat);
    if (rows_.defined()) {
      std::vector<int64_t> places;
      for (const int64_t id : mine_) {
        places.push_back(std::lower_bound(all_.begin(), all_.end(), id) - all_.begin());
      }
      const Tensor mine = rows_.grad().cpu().narrow(0, 0, static_cast<int64_t>(mine_.size()));
      sums_.index_copy_(0, torch::tensor(places, torch::kInt64), mine);
      rows_ = Tensor();
    }
    const auto size = static_cast<size_t>(sums_.numel());
    sums_ticket_ = collective_.StartAllReduce(
        {.values = absl::MakeSpan(sums_.data_ptr<float>(), size), .wire = wire_});
  });
}

absl::Status LookupExchange::Finish() {
  if (collective_.world_size() == 1) {
    if (!rows_.defined()) return absl::OkStatus();
    const Tensor gradient = std::exchange(rows_, Tensor()).grad();
    return CatchTorch("taking the gradient of the embedding's rows", [&] {
      const Tensor rows = parameters_.values_on_host() ? gradient.cpu() : gradient;
      parameters_.lookup_gradient() = {mine_,
                                       rows.narrow(0, 0, static_cast<int64_t>(mine_.size()))};
    });
  }
  if (!sums_ticket_) return absl::OkStatus();
  RETURN_IF_ERROR(collective_.Wait(*sums_ticket_));
  sums_ticket_.reset();
  return CatchTorch("adding the gradient of the embedding's rows", [&] {
    torch::NoGradGuard no_grad;
    if (parameters_.embedding() == EmbeddingGradient::kRowsApart) {
      parameters_.lookup_gradient() = {all_, sums_};
    } else {
      gradient_.index_add_(0, OnDevice(all_, gradient_.device()), sums_.to(gradient_.device()));
    }
    sums_ = Tensor();
  });
}

}  // namespace espalier
