#include "worker/task/token_batch.h"

#include <algorithm>
#include <vector>

#include "absl/types/span.h"
#include "common/base/random.h"
#include "worker/ops/row_loss.h"
#include "worker/task/grpo_slots.h"

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

// A number for each of the first `columns` of each row that examples share, [rows, columns]: that
// of a column is told its example, or null behind the last.
template <typename Number>
torch::Tensor OfColumns(const Samples& samples, SlotRange rows, int64_t columns,
                        const Number& number) {
  torch::Tensor made = torch::empty({rows.size(), columns}, torch::kInt64);
  auto* to = made.data_ptr<int64_t>();
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    int64_t column = 0;
    for (const RowPart& part : samples.parts[static_cast<size_t>(row)]) {
      for (; column < std::min(part.end, columns); ++column) *to++ = number(column, &part);
    }
    for (; column < columns; ++column) *to++ = number(column, nullptr);
  }
  return made;
}

// What no example fills sees itself.
int64_t BeginOf(int64_t column, const RowPart* part) {
  return part == nullptr ? column : part->begin;
}

SharedRows SharedRowsOf(const Samples& samples, SlotRange rows, int64_t columns,
                        Transfers& transfers) {
  SharedRows shared;
  if (samples.parts.empty()) return shared;
  shared.begins = transfers.ToDevice(OfColumns(samples, rows, columns, BeginOf));
  shared.longest = 1;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (const RowPart& part : samples.parts[static_cast<size_t>(row)]) {
      shared.longest = std::max(shared.longest, std::min(part.end, columns) - part.begin);
    }
  }
  return shared;
}

// What a slot keeps of a row.
using Row = absl::Span<const float>;

torch::Tensor View(Row row, int64_t rows) {
  return torch::from_blob(const_cast<float*>(row.data()), {rows, static_cast<int64_t>(row.size())},
                          torch::kFloat);
}

// Whether each follows the one before it.
template <typename T, typename Follows>
bool InTurn(absl::Span<const T> all, const Follows& follows) {
  const auto gap = std::adjacent_find(
      all.begin(), all.end(), [&](const T& one, const T& next) { return !follows(one, next); });
  return gap == all.end();
}

template <typename T>
absl::Span<const T> Of(const std::vector<T>& all, SlotRange rows) {
  return absl::MakeConstSpan(all).subspan(static_cast<size_t>(rows.begin),
                                          static_cast<size_t>(rows.size()));
}

}  // namespace

TokenBatch MakeTokenBatch(const Samples& samples, SlotRange rows, Transfers& transfers) {
  const int64_t time = ColumnsOf(samples, rows);
  const torch::Tensor windows = transfers.ToDevice(
      Columns(samples.tokens, torch::kInt64, rows, time + 1, samples.sequence_length() + 1));
  TokenBatch batch;
  batch.inputs = windows.narrow(1, 0, time).contiguous();
  batch.targets = windows.narrow(1, 1, time).contiguous();
  batch.shared = SharedRowsOf(samples, rows, time, transfers);
  if (samples.counted.empty()) return batch;
  const torch::Tensor counted = transfers.ToDevice(
      Columns(samples.counted, torch::kByte, rows, time, samples.sequence_length()));
  // Not in place: of a single row, inputs and targets are views of the samples.
  batch.targets = batch.targets.masked_fill(counted.eq(0), kIgnoredTarget);
  return batch;
}

TokenBatch MadeUpTokenBatch(const MadeUpRows& size, torch::Device device) {
  const auto zeros = [&] {
    return torch::zeros({size.rows, size.sequence_length},
                        torch::TensorOptions().dtype(torch::kInt64).device(device));
  };
  TokenBatch batch{zeros(), zeros(), {}};
  if (size.packed) batch.shared = {zeros(), size.sequence_length};
  return batch;
}

DropoutKeys MakeDropoutKeys(const v1::JobSpec& spec, int64_t step, const Samples& samples,
                            SlotRange rows, Transfers& transfers) {
  DropoutKeys made = DropoutRates(spec);
  if (!made.any()) return made;
  const bool grpo = spec.train().task() == v1::TASK_GRPO;
  const auto drawn_at = static_cast<uint64_t>(grpo ? SampledAt(spec.train(), step) : step);
  const uint64_t of_step = SplitMix64(spec.train().seed(), drawn_at).Next();
  const auto key = [of_step](int64_t id) {
    const uint64_t sample = SplitMix64(static_cast<uint64_t>(id)).Next();
    return static_cast<int64_t>(MixBits(of_step ^ sample));
  };
  if (samples.parts.empty()) {
    std::vector<int64_t> keys;
    for (int64_t row = rows.begin; row < rows.end; ++row) keys.push_back(key(samples.ids[row]));
    made.of_row = transfers.ToDevice(torch::tensor(keys, torch::kInt64));
    return made;
  }
  const int64_t columns = ColumnsOf(samples, rows);
  const auto of_example = [&](int64_t, const RowPart* part) {
    return part == nullptr ? 0 : key(part->id);
  };
  const auto position = [](int64_t column, const RowPart* part) {
    return column - BeginOf(column, part);
  };
  made.of_row = transfers.ToDevice(OfColumns(samples, rows, columns, of_example));
  made.positions = transfers.ToDevice(OfColumns(samples, rows, columns, position));
  return made;
}

DropoutKeys DropoutRates(const v1::JobSpec& spec) {
  return {
      .rate = spec.model().dropout(), .of_row = {}, .adapter_rate = spec.train().lora().dropout()};
}

DropoutKeys MadeUpDropoutKeys(const DropoutKeys& rates, const TokenBatch& batch) {
  DropoutKeys made = rates;
  if (!made.any()) return made;
  const torch::Tensor zeros = torch::zeros_like(batch.inputs);
  const bool shared = batch.shared.begins.defined();
  made.of_row = shared ? zeros : zeros.select(1, 0).contiguous();
  if (shared) made.positions = torch::zeros_like(batch.inputs);
  return made;
}

torch::Tensor CarriedTogether(const Samples& samples, SlotRange rows) {
  const absl::Span<const Row> carried = Of(samples.carried, rows);
  const auto follows = [](Row one, Row next) { return one.data() + one.size() == next.data(); };
  if (InTurn(carried, follows)) return View(carried[0], rows.size());
  std::vector<torch::Tensor> parts;
  for (const Row row : carried) parts.push_back(View(row, 1));
  return torch::cat(parts);
}

void KeepCarried(const Samples& samples, SlotRange rows, const torch::Tensor& next,
                 const torch::Tensor& numbers, Transfers& transfers) {
  const absl::Span<const int64_t> slots = Of(samples.slots, rows);
  const bool in_turn = InTurn(slots, [](int64_t one, int64_t then) { return one + 1 == then; });
  if (in_turn && next.is_cuda()) {
    transfers.ToHostAndKeep(next, numbers.narrow(0, slots[0], rows.size()));
    return;
  }
  const torch::Tensor on_host = next.cpu();
  if (in_turn) {
    numbers.narrow(0, slots[0], rows.size()).copy_(on_host);
    return;
  }
  for (int64_t row = 0; row < rows.size(); ++row) numbers[slots[row]].copy_(on_host[row]);
}

}  // namespace espalier
