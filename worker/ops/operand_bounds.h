// How large the operands of LibTorch's operators may get. On MPS one of 2^32 bytes ends the process
// (pytorch#149325), and on M1 and M2 products whose common dimension reaches 32,767 are wrong
// (pytorch#177116, #195163); elsewhere working memory would grow with the batch. So what does is
// made in parts.
// Used by generic_attention.cc, generic_loss.cc, generic_ops.cc, generic_norms.cc,
// kept_attention.cc, products.cc and dropout.cc, by worker/sync and worker/generation. Any thread.
#pragma once

#include <cstdint>

#include "worker/tensor/torch.h"

namespace espalier {

inline constexpr int64_t kMostOperandBytes = int64_t{1} << 30;
inline constexpr int64_t kMostReduction = 16384;

// Rows of `row_bytes` that an operand holds: at least 1, at most `most_rows`.
int64_t RowsWithin(int64_t row_bytes, int64_t most_rows, int64_t most_bytes = kMostOperandBytes);

// `size`, or a multiple of `step` that is not less, on a device where LibTorch compiles most
// operators for each shape that they meet, and keeps what it compiled as long as the process lives
// (MPS: pytorch#132596, #181485): for sizes that differ from call to call.
int64_t SharedSize(int64_t size, int64_t step, torch::Device device);

// Attention over queries of `heads` heads, of which `group` share a key/value head, that see up to
// `keys` keys each.
struct AttentionSize {
  int64_t batch, heads, group, keys;
  int64_t score_bytes;  // of one score
};
// Sequences and query rows whose scores exist at a time.
struct AttentionPart {
  int64_t batch, rows;
};
// At most `most_rows` rows, and as many sequences as `most_bytes` of scores leave room for; fewer
// rows only where one sequence is too much: a matrix of few rows costs as much to read the keys of.
AttentionPart AttentionPartOf(const AttentionSize& size, int64_t most_rows, int64_t most_bytes);

// a [.., N, R] times b [.., R, M] in a's type; a long common dimension is cut and the parts are
// added in the type of sums.
torch::Tensor BoundedProduct(const torch::Tensor& a, const torch::Tensor& b);

// to [N, M] = a [N, R] b [R, M], or added to it, of one type; a long common dimension is cut, and
// each part is rounded to that type.
void ProductInParts(const torch::Tensor& a, const torch::Tensor& b, bool add, torch::Tensor to);

// sum [M, C] += dy' x for dy [N, M] and x [N, C] of any types, computed in the type of the sum,
// which is not rounded in between: a few hundred rows of 16 bits already lose the last ones. The
// sum changes once, when all is allocated: a pass that runs out of memory has added all or nothing.
void AddOuterProducts(const torch::Tensor& sum, const torch::Tensor& dy, const torch::Tensor& x);

// sum [C] += scale weights' rows for weights [N] and rows [N, C], computed in the type of the sum,
// which changes once, too.
void AddWeightedRows(const torch::Tensor& sum, const torch::Tensor& weights,
                     const torch::Tensor& rows, double scale);

}  // namespace espalier
