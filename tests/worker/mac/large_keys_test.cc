// Decoding with large keys, as Qwen 2 has them, in 16 bits: a large part that all keys share, and
// what they differ by, which alone decides. The processor and CUDA have kernels for it, and this is
// what a Mac takes.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/worker/mac/mac_device.h"
#include "worker/ops/kept_attention.h"

namespace espalier::ops {
namespace {

using torch::Tensor;

TEST(LargeKeys, DecideByWhatTheyDifferBy) {
  constexpr int64_t kHeads = 4, kDim = 8, kCapacity = 16;
  const std::vector<int64_t> lengths = {1, 16, 7};
  const auto rows = static_cast<int64_t>(lengths.size());
  const MacDevice mac;
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    torch::manual_seed(5);
    // Products of about 8 x 100 x 100: more than fp16 holds.
    const Tensor q = (torch::randn({rows, kHeads, kDim}) + 100).to(type),
                 keys = (torch::randn({rows, kHeads, kCapacity, kDim}) + 100).to(type),
                 values = torch::randn({rows, kHeads, kCapacity, kDim}).to(type);
    const auto there = [](const Tensor& x) { return x.to(MacDevice::device()); };
    const KeptLengths kept(lengths, there(torch::tensor(lengths)));
    const Tensor got =
        KeptAttention(there(q), there(keys), there(values), kept, /*window=*/0).cpu();
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t length = lengths[static_cast<size_t>(row)];
      for (int64_t head = 0; head < kHeads; ++head) {
        const auto seen = [&](const Tensor& all) {
          return all[row][head].slice(0, 0, length).to(torch::kDouble);
        };
        const Tensor scores = seen(keys).mv(q[row][head].to(torch::kDouble));
        const Tensor mixed = seen(values).t().mv((scores / std::sqrt(1.0 * kDim)).softmax(0));
        EXPECT_LT((got[row][head].to(torch::kDouble) - mixed).abs().max().item<double>(), 3e-2)
            << torch::toString(type) << " row " << row << " head " << head;
      }
    }
  }
}

}  // namespace
}  // namespace espalier::ops
