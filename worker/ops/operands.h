// What the operations of the decoder take and give: shapes as ops.h names them. Used by worker/ops
// and worker/model. Plain data.
#pragma once

#include <torch/torch.h>

#include <vector>

namespace espalier {

// Rotation angles of every position: cosine and sine, each [max_positions, D / 2], fp32.
struct RopeTable {
  torch::Tensor cosine;
  torch::Tensor sine;
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
