// Attention of one new position of each sequence of a batch over keys and values that are kept:
// sequences of different lengths, side by side in memory of one capacity. Used by
// worker/model/key_value_cache.h. Compute thread; without gradients.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/tensor/torch.h"

namespace espalier::ops {

// Positions that each sequence holds, the new one included.
class KeptLengths {
 public:
  KeptLengths() = default;
  // `on_device`: the same, [B] int64.
  KeptLengths(std::vector<int64_t> lengths, torch::Tensor on_device);

  const std::vector<int64_t>& lengths() const { return lengths_; }
  int64_t longest() const { return longest_; }
  // [B] int64 on the device.
  const torch::Tensor& on_device() const { return on_device_; }
  // Added to scores, [B, 1, keys]: 0 for a key that a sequence's new position sees, else minus
  // infinity. Made once for each window; `keys` is the same each time.
  torch::Tensor Mask(int64_t window, int64_t keys) const;

 private:
  std::vector<int64_t> lengths_;
  int64_t longest_ = 0;
  torch::Tensor on_device_;
  mutable std::vector<std::pair<int64_t, torch::Tensor>> masks_;  // by window
};

// q [B, H, D]; keys and values [rows, K, capacity, D] of one type, of which the first B rows are
// meant, and all numbers are finite -> [B, H, D]. Each position sees the last `window` ones (0:
// all). On the CPU each sequence is computed by itself. Elsewhere the products are in the type of
// q, the softmax is in fp32.
torch::Tensor KeptAttention(const torch::Tensor& q, const torch::Tensor& keys,
                            const torch::Tensor& values, const KeptLengths& lengths,
                            int64_t window);

}  // namespace espalier::ops
