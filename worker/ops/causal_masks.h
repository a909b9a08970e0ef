// Which keys a block of queries sees, as numbers to add to its scores: 0, or minus infinity. Made
// once for each shape and kept, since all layers of a pass need the same few, and each takes half a
// dozen launches. A decoder owns one, which lives as long as what was recorded of its passes.
// Used by worker/ops/generic_attention.cc and worker/ops/ops.h. One thread at a time: the one that
// computes, or autograd's while that one waits for it.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace espalier {

class CausalMasks : public torch::CustomClassHolder {
 public:
  // [rows, keys]: the queries are the last `rows` of `keys` positions, and each sees itself and
  // what comes before it, `window` positions in all (0: all of them).
  struct Shape {
    int64_t rows, keys, window;
    bool operator==(const Shape& other) const {
      return rows == other.rows && keys == other.keys && window == other.window;
    }
  };

  // The mask in the type and on the device of `options`. One that would take what is kept above
  // kMostBytes is made anew each time.
  torch::Tensor Of(const Shape& shape, const torch::TensorOptions& options);

  // Of one device: masks of 2,048 positions take 12 MiB.
  static constexpr int64_t kMostBytes = int64_t{1} << 26;

 private:
  struct Kept {
    Shape shape;
    torch::Tensor mask;
  };
  std::vector<Kept> kept_;
  int64_t bytes_ = 0;
};

}  // namespace espalier
