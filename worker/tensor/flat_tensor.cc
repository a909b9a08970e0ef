#include "worker/tensor/flat_tensor.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace espalier {

FlatTensor FlatTensor::Empty(absl::Span<const int64_t> ends, const torch::TensorOptions& options) {
  FlatTensor flat;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    flat.arenas_.push_back(torch::empty({end - begin}, options));
    flat.ends_.push_back(end);
    begin = end;
  }
  return flat;
}

FlatTensor FlatTensor::Zeros(absl::Span<const int64_t> ends, const torch::TensorOptions& options) {
  FlatTensor flat = Empty(ends, options);
  flat.Zero();
  return flat;
}

FlatTensor::FlatTensor(torch::Tensor only) {
  ends_.push_back(only.numel());
  arenas_.push_back(std::move(only));
}

int64_t FlatTensor::nbytes() const {
  int64_t bytes = 0;
  for (const torch::Tensor& arena : arenas_) bytes += static_cast<int64_t>(arena.nbytes());
  return bytes;
}

torch::Tensor FlatTensor::Slice(int64_t begin, int64_t size) const {
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), begin);
  ESPALIER_CHECK(begin >= 0 && end != ends_.end() && begin + size <= *end,
                 "a slice lies within one arena");
  const int64_t arena_begin = end == ends_.begin() ? 0 : *std::prev(end);
  return arenas_[end - ends_.begin()].narrow(0, begin - arena_begin, size);
}

const torch::Tensor& FlatTensor::Only() const {
  ESPALIER_CHECK(arenas_.size() == 1, "there is one arena");
  return arenas_.front();
}

void FlatTensor::Zero() {
  for (torch::Tensor& arena : arenas_) arena.zero_();
}

std::vector<int64_t> ArenaEnds(absl::Span<const int64_t> part_ends, int64_t limit) {
  std::vector<int64_t> ends;
  int64_t begin = 0, last = 0;
  for (const int64_t end : part_ends) {
    if (end - begin > limit && last > begin) {
      ends.push_back(last);
      begin = last;
    }
    last = end;
  }
  if (last > begin) ends.push_back(last);
  return ends;
}

std::vector<int64_t> PrefixEnds(absl::Span<const int64_t> ends, int64_t elements) {
  std::vector<int64_t> prefix;
  for (const int64_t end : ends) {
    if (!prefix.empty() && prefix.back() >= elements) break;
    prefix.push_back(std::min(end, elements));
  }
  if (elements == 0) prefix.clear();
  return prefix;
}

}  // namespace espalier
