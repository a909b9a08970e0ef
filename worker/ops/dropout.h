// Dropout (Srivastava et al. 2014) whose choice is a function, not a stream: what is dropped
// depends on the sequence, the place in the model, the position and the channel, and on nothing
// else. So micro-batches, ranks, restarts and recomputation drop the same values, on every device.
// Used by worker/model, worker/task (which makes the keys) and worker/train. Compute thread
// (forward), autograd's (backward).
#pragma once

#include <cstdint>

#include "worker/tensor/torch.h"

namespace espalier {

// What a pass drops.
struct DropoutKeys {
  double rate = 0;  // share of the values that become 0, in [0, 1); 0: none
  // [B] int64: a well mixed key per sequence; undefined when nothing is dropped. Of rows that
  // examples share, [B, T]: the key of the example at each column.
  torch::Tensor of_row;
  double adapter_rate = 0;  // the same share of what adapters are given
  // [B, T] int64: the position of each column in its sequence; undefined: its number.
  torch::Tensor positions = {};

  bool any() const { return rate > 0 || adapter_rate > 0; }
};

// x [B, T, C] with values dropped, the others divided by the share that is kept. The rate is taken
// as a whole number of 1/65536. `site` tells the places of a model apart.
torch::Tensor Dropout(const torch::Tensor& x, const DropoutKeys& keys, int64_t site);

// Which values Dropout keeps: 0 or 1, [B, T, C] in the type and on the device of `like`; and what
// it multiplies those by, 1 / kept, which 16 bits would round.
torch::Tensor DropoutMask(const torch::Tensor& like, const DropoutKeys& keys, int64_t site);
double KeptFactor(double rate);
// x with what is dropped made 0 and the others as they are; and that added to `to`, where x is of
// no more use.
torch::Tensor KeptOf(const torch::Tensor& x, const DropoutKeys& keys, int64_t site);
void AddKept(const torch::Tensor& to, const torch::Tensor& x, const DropoutKeys& keys,
             int64_t site);

namespace internal {
// DropoutMask by LibTorch's operators, which is what devices other than the CPU use; for tests.
torch::Tensor GenericDropoutMask(const torch::Tensor& like, const DropoutKeys& keys, int64_t site);
}  // namespace internal

}  // namespace espalier
