#include "worker/model/key_value_cache.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using torch::Tensor;

// Of one tensor: limits of MPS.
constexpr int64_t kMostElements = (int64_t{1} << 31) - 1;
constexpr int64_t kMostBytes = (int64_t{1} << 32) - 1;

int64_t NumbersOfAPosition(const DecoderConfig& config) {
  return config.kv_heads * config.head_dim;
}

// Of one row: the first positions of all heads.
Tensor First(const Tensor& kept, int64_t row, int64_t count) {
  return kept.select(0, row).narrow(1, 0, count);
}

}  // namespace

absl::Status KeyValueCache::CheckSize(const DecoderConfig& config, const Size& size,
                                      int64_t element_bytes) {
  const int64_t most =
      std::min(kMostElements, kMostBytes / element_bytes) / NumbersOfAPosition(config);
  if (size.rows <= most / std::max<int64_t>(1, size.positions)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      size.rows, " sequences of ", size.positions,
      " positions have more keys in a layer than one tensor holds (4 GiB, 2^31 numbers); allowed "
      "for this model: ",
      most, " positions together; ask for fewer sequences at a time, or shorter ones"));
}

int64_t KeyValueCache::Bytes(const DecoderConfig& config, const Size& size, int64_t element_bytes) {
  return 2 * config.layers * size.rows * size.positions * NumbersOfAPosition(config) *
         element_bytes;
}

// Zeros: what has never been written is multiplied with 0 where rows are longer than others.
KeyValueCache::KeyValueCache(const DecoderConfig& config, const Size& size,
                             torch::TensorOptions options)
    : size_(size),
      transfers_(std::make_unique<Transfers>(options.device())),
      lengths_(static_cast<size_t>(size.rows)) {
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (std::vector<Tensor>* kept : {&keys_, &values_}) {
      kept->push_back(torch::zeros({size.rows, config.kv_heads, size.positions, config.head_dim},
                                   options.requires_grad(false)));
    }
  }
  if (!keys_.empty() && cuda::TakesKept(keys_[0], config.heads)) {
    work_ = cuda::MakeKeptWork(keys_[0], config.heads);
    all_positions_ = torch::zeros({size.rows}, keys_[0].options().dtype(torch::kLong));
  }
}

void KeyValueCache::Clear(int64_t row) {
  Truncate(row, 0);
  for (const std::vector<Tensor>* kept : {&keys_, &values_}) {
    for (const Tensor& one : *kept) one[row].zero_();
  }
}

void KeyValueCache::CopyPrefix(int64_t from, int64_t to, int64_t count) {
  Truncate(to, count);
  if (from == to || count == 0) return;
  for (const std::vector<Tensor>* kept : {&keys_, &values_}) {
    for (const Tensor& layer : *kept) First(layer, to, count).copy_(First(layer, from, count));
  }
}

void KeyValueCache::Swap(int64_t a, int64_t positions_of_a, int64_t b, int64_t positions_of_b) {
  std::swap(lengths_[static_cast<size_t>(a)], lengths_[static_cast<size_t>(b)]);
  for (const std::vector<Tensor>* kept : {&keys_, &values_}) {
    for (const Tensor& layer : *kept) {
      Tensor of_b;
      if (positions_of_b > 0) of_b = First(layer, b, positions_of_b).clone();
      if (positions_of_a > 0) {
        First(layer, b, positions_of_a).copy_(First(layer, a, positions_of_a));
      }
      if (positions_of_b > 0) First(layer, a, positions_of_b).copy_(of_b);
    }
  }
}

void KeyValueCache::BeginPrompt(int64_t row, int64_t count, int64_t computed_in) {
  const int64_t computed = std::max(count, computed_in);
  TORCH_CHECK_INDEX(row >= 0 && row < size_.rows && length(row) + computed <= size_.positions,
                    "row ", row, " holds ", row < size_.rows ? length(row) : 0, " positions, and ",
                    computed, " more exceed the ", size_.positions, " that each of ", size_.rows,
                    " rows has room for");
  step_ = false;
  pass_row_ = row;
  pass_count_ = count;
  pass_computed_ = computed;
}

void KeyValueCache::BeginStep(int64_t rows) {
  TORCH_CHECK_INDEX(rows > 0 && rows <= size_.rows, "a step of ", rows, " rows, of ", size_.rows);
  std::vector<int64_t> lengths(lengths_.begin(), lengths_.begin() + rows);
  for (int64_t row = 0; row < rows; ++row) {
    TORCH_CHECK_INDEX(length(row) < size_.positions, "row ", row, " is full: it has room for ",
                      size_.positions, " positions");
  }
  step_ = true;
  pass_rows_ = rows;
  step_longest_ = *std::max_element(lengths.begin(), lengths.end()) + 1;
  if (StepsAreAlike()) {
    step_positions_ = all_positions_.narrow(0, 0, rows);
    step_positions_.copy_(torch::tensor(lengths, torch::kLong));
    return;
  }
  const int64_t heads = keys_[0].size(1);
  std::vector<int64_t> places;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      places.push_back((row * heads + head) * size_.positions + length(row));
    }
  }
  step_positions_ = OnDevice(lengths);
  step_places_ = OnDevice(places);
  for (int64_t& one : lengths) ++one;
  step_lengths_ = ops::KeptLengths(std::move(lengths), step_positions_ + 1);
}

Tensor KeyValueCache::OnDevice(const std::vector<int64_t>& values) {
  return transfers_->ToDevice(torch::tensor(values, torch::kLong));
}

Tensor KeyValueCache::Attend(size_t layer, const ops::Heads& x, const RopeTable& rope,
                             int64_t window, const ops::Masks& masks) {
  return step_ ? AttendStep(layer, x, rope, window)
               : AttendPrompt(layer, ops::Rope(x, rope), window, masks);
}

Tensor KeyValueCache::AttendPrompt(size_t layer, const ops::Heads& x, int64_t window,
                                   const ops::Masks& masks) {
  const int64_t begin = prompt_begin(), end = begin + pass_computed_;
  const auto keep = [&](const Tensor& kept, const Tensor& added) {
    const Tensor row = kept.select(0, pass_row_);
    row.narrow(1, begin, pass_computed_).copy_(added[0].transpose(0, 1));
    return row.narrow(1, 0, end).transpose(0, 1).unsqueeze(0);
  };
  const Tensor keys = keep(keys_[layer], x.k), values = keep(values_[layer], x.v);
  if (begin == 0) return ops::CausalAttention(x.q, x.k, x.v, window, masks);
  return ops::CausalAttention(x.q, keys, values, window, masks);
}

Tensor KeyValueCache::AttendStep(size_t layer, const ops::Heads& heads, const RopeTable& rope,
                                 int64_t window) {
  if (StepsAreAlike()) {
    const cuda::KeptRows kept{keys_[layer], values_[layer], step_positions_, window};
    return cuda::KeptAttention(heads.q[0], heads.k[0], heads.v[0], rope.cosine, rope.sine, kept,
                               work_)
        .unsqueeze(0);
  }
  const ops::Heads x = ops::Rope(heads, rope);
  Keep(keys_[layer], x.k);
  Keep(values_[layer], x.v);
  return ops::KeptAttention(x.q[0], keys_[layer], values_[layer], step_lengths_, window)
      .unsqueeze(0);
}

void KeyValueCache::Keep(const Tensor& kept, const Tensor& added_in) const {
  const Tensor added = added_in.reshape({-1, kept.size(3)}).contiguous();
  Tensor places = kept.view({-1, kept.size(3)});
  if (!kept.is_cpu() || kept.scalar_type() == torch::kDouble) {  // as other devices do, for tests
    places.index_put_({step_places_}, added);
    return;
  }
  const auto bytes = static_cast<size_t>(kept.size(3) * kept.element_size());
  auto* to = static_cast<char*>(places.data_ptr());
  const auto* from = static_cast<const char*>(added.data_ptr());
  const int64_t* place = step_places_.data_ptr<int64_t>();
  for (int64_t i = 0; i < added.size(0); ++i) {
    std::memcpy(to + static_cast<size_t>(place[i]) * bytes, from + static_cast<size_t>(i) * bytes,
                bytes);
  }
}

void KeyValueCache::Count(int64_t times) {
  if (!step_) {
    lengths_[static_cast<size_t>(pass_row_)] += times * pass_count_;
    return;
  }
  for (int64_t row = 0; row < pass_rows_; ++row) lengths_[static_cast<size_t>(row)] += times;
}

}  // namespace espalier
