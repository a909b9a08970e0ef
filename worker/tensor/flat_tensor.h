// FlatTensor: a row of elements that are numbered through and lie in one or more allocations, the
// arenas. An arena stays below the limits of MPS (2^31 elements, 4 GiB); what must lie in one piece
// (a parameter, a bucket of gradients) lies within one arena. Copies share the memory. Used by
// worker/model/parameters.h and worker/state/replica.h for values, gradients and optimizer state of
// what is trained. Compute thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/tensor/torch.h"

namespace espalier {

// Most elements of an arena of fp32: 4 GiB is the limit of MPS.
inline constexpr int64_t kArenaElements = (int64_t{1} << 30) - 1;

class FlatTensor {
 public:
  FlatTensor() = default;
  // `ends`: where arenas end, growing; the last one is the number of elements. Uninitialised, or
  // zeroed; throws what LibTorch throws.
  static FlatTensor Empty(absl::Span<const int64_t> ends, const torch::TensorOptions& options);
  static FlatTensor Zeros(absl::Span<const int64_t> ends, const torch::TensorOptions& options);
  // One arena that is there already, [elements].
  explicit FlatTensor(torch::Tensor only);

  bool defined() const { return !arenas_.empty(); }
  bool is_cpu() const { return device().is_cpu(); }
  torch::Device device() const { return arenas_.front().device(); }
  int64_t numel() const { return ends_.empty() ? 0 : ends_.back(); }
  int64_t nbytes() const;
  absl::Span<const int64_t> ends() const { return ends_; }
  const std::vector<torch::Tensor>& arenas() const { return arenas_; }

  // Elements [begin, begin + size), which must lie in one arena: a view.
  torch::Tensor Slice(int64_t begin, int64_t size) const;
  // The only arena: for what is known to be small.
  const torch::Tensor& Only() const;
  void Zero();

 private:
  std::vector<int64_t> ends_;
  std::vector<torch::Tensor> arenas_;
};

// The ends of arenas of at most `limit` elements that cut no part: `part_ends` grow. A part that is
// larger has an arena of its own.
std::vector<int64_t> ArenaEnds(absl::Span<const int64_t> part_ends, int64_t limit);
// Those of the first `elements`.
std::vector<int64_t> PrefixEnds(absl::Span<const int64_t> ends, int64_t elements);

}  // namespace espalier
