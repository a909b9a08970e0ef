#include "worker/task/token_batch.h"

#include <algorithm>
#include <vector>

#include "common/base/random.h"
#include "worker/ops/row_loss.h"

namespace espalier {
namespace {

// Widths are of so many columns, so that a device meets few shapes of tensors.
constexpr int64_t kColumnStep = 64;

// The columns that a pass over the rows needs.
int64_t ColumnsOf(const Samples& samples, SlotRange rows) {
  const int64_t counted = std::max<int64_t>(samples.CountedColumns(rows), 1);
  const int64_t steps = (counted + kColumnStep - 1) / kColumnStep;
  return std::min(steps * kColumnStep, samples.sequence_length());
}

// The first `columns` of some rows of a matrix of `width`, which must outlive the tensor.
template <typename T>
torch::Tensor Columns(const std::vector<T>& matrix, torch::Dtype type, SlotRange rows,
                      int64_t columns, int64_t width) {
  return torch::from_blob(const_cast<T*>(matrix.data()) + rows.begin * width, {rows.size(), width},
                          type)
      .narrow(1, 0, columns)
      .contiguous();
}

}  // namespace

TokenBatch MakeTokenBatch(const Samples& samples, SlotRange rows, Transfers& transfers) {
  const int64_t time = ColumnsOf(samples, rows);
  const torch::Tensor windows = transfers.ToDevice(
      Columns(samples.tokens, torch::kInt64, rows, time + 1, samples.sequence_length() + 1));
  TokenBatch batch;
  batch.inputs = windows.narrow(1, 0, time).contiguous();
  batch.targets = windows.narrow(1, 1, time).contiguous();
  if (samples.counted.empty()) return batch;
  const torch::Tensor counted = transfers.ToDevice(
      Columns(samples.counted, torch::kByte, rows, time, samples.sequence_length()));
  // Not in place: of a single row, inputs and targets are views of the samples.
  batch.targets = batch.targets.masked_fill(counted.eq(0), kIgnoredTarget);
  return batch;
}

TokenBatch MadeUpTokenBatch(int64_t rows, int64_t sequence_length, torch::Device device) {
  const auto ids = torch::TensorOptions().dtype(torch::kInt64).device(device);
  return {
      torch::zeros({rows, sequence_length}, ids), torch::zeros({rows, sequence_length}, ids), {}};
}

DropoutKeys MakeDropoutKeys(const v1::JobSpec& spec, int64_t step, const Samples& samples,
                            SlotRange rows, Transfers& transfers) {
  DropoutKeys made = DropoutRates(spec);
  if (!made.any()) return made;
  const uint64_t of_step = SplitMix64(spec.train().seed(), static_cast<uint64_t>(step)).Next();
  std::vector<int64_t> keys;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const uint64_t sample = SplitMix64(static_cast<uint64_t>(samples.ids[row])).Next();
    keys.push_back(static_cast<int64_t>(MixBits(of_step ^ sample)));
  }
  made.of_row = transfers.ToDevice(torch::tensor(keys, torch::kInt64));
  return made;
}

DropoutKeys DropoutRates(const v1::JobSpec& spec) {
  return {
      .rate = spec.model().dropout(), .of_row = {}, .adapter_rate = spec.train().lora().dropout()};
}

}  // namespace espalier
