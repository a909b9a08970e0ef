// Which keys a block of queries sees, as numbers to add to its scores: 0, or minus infinity. Made
// once for each shape and kept, since all layers of a pass need the same few, and each takes half a
// dozen launches. A decoder owns one, which lives as long as what was recorded of its passes; a
// pass over rows that examples share has one of its own. Used by
// worker/ops/generic_attention.cc and worker/ops/ops.h. One thread at a time: the one that
// computes, or autograd's while that one waits for it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/tensor/torch.h"

namespace espalier {

// As a window: each position sees all, also those after it.
inline constexpr int64_t kBothWays = -1;

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
  // Where such a block lies in rows that examples share: in the sequences [sequence, sequence +
  // sequences), its first key in column `key`.
  struct Place {
    int64_t sequence, sequences, key;
    bool operator==(const Place& other) const {
      return sequence == other.sequence && sequences == other.sequences && key == other.key;
    }
  };

  CausalMasks() = default;
  // Of a pass over rows [B, T] that examples share. `begins` [B, T] int64: the column in which the
  // example at each column begins, before which nothing is seen; it never falls along a row.
  explicit CausalMasks(torch::Tensor begins) : begins_(std::move(begins)) {}

  // Undefined: rows are not shared.
  const torch::Tensor& begins() const { return begins_; }

  // The mask in the type and on the device of `options`. One that would take what is kept above
  // kMostBytes is made anew each time.
  torch::Tensor Of(const Shape& shape, const torch::TensorOptions& options);
  // The same of rows that examples share, for each sequence: [sequences, 1, rows, keys].
  torch::Tensor Of(const Shape& shape, const Place& place, const torch::TensorOptions& options);

  // Of one device: masks of 2,048 positions take 12 MiB.
  static constexpr int64_t kMostBytes = int64_t{1} << 26;

 private:
  struct Kept {
    Shape shape;
    Place place;
    torch::Tensor mask;
  };
  // Undefined: there is none.
  torch::Tensor Find(const Shape& shape, const Place& place,
                     const torch::TensorOptions& options) const;
  torch::Tensor Keep(const Shape& shape, const Place& place, torch::Tensor mask);

  torch::Tensor begins_;
  std::vector<Kept> kept_;
  int64_t bytes_ = 0;
};

}  // namespace espalier
