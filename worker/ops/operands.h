// What the operations of the decoder take and give: shapes as ops.h names them. Used by worker/ops
// and worker/model. Plain data.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace espalier {

// Rotation angles of every position, fp32: cosine and sine, each [positions, D / 2]; and the two
// for whole heads, [positions, D], as operators on whole tensors want them: the cosine twice, and
// the sine with its sign, minus first.
struct RopeTable {
  torch::Tensor cosine, sine;
  torch::Tensor whole_cosine, signed_sine;

  RopeTable Of(int64_t begin, int64_t positions) const {
    const auto part = [&](const torch::Tensor& all) { return all.narrow(0, begin, positions); };
    return {part(cosine), part(sine), part(whole_cosine), part(signed_sine)};
  }
};

namespace ops {

// A learned linear map: weight [out, in] and bias [out], or undefined: none. Either may be frozen
// (it requires no gradient, and none is computed); the gradients of what is trained are added in
// place to its grad() when that is defined.
struct Projection {
  torch::Tensor weight, bias;
};

// What becomes of the residual stream where a block begins.
struct Branches {
  torch::Tensor residual;  // x as it was, for what is added to it: gradients of both meet for free
  std::vector<torch::Tensor> products;
};

// What attention takes.
struct Heads {
  torch::Tensor q, k, v;  // [B, T, H, D], [B, T, K, D], [B, T, K, D]
};

}  // namespace ops
}  // namespace espalier
