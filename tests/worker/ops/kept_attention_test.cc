#include "worker/ops/kept_attention.h"

#include <gtest/gtest.h>

#include <cmath>

namespace espalier::ops {
namespace {

using torch::Tensor;

struct Kept {
  Tensor q, keys, values;
  std::vector<int64_t> lengths;
};

// Rows of lengths of their own; what lies behind them must not matter.
Kept SomeKept(torch::ScalarType type) {
  torch::manual_seed(5);
  Kept kept{torch::randn({3, 4, 8}),
            torch::randn({5, 2, 16, 8}),
            torch::randn({5, 2, 16, 8}),
            {1, 16, 7}};
  return {kept.q.to(type), kept.keys.to(type), kept.values.to(type), kept.lengths};
}

Tensor ByFormula(const Kept& kept, int64_t window) {
  Tensor out = torch::empty({3, 4, 8}, torch::kDouble);
  for (int64_t row = 0; row < 3; ++row) {
    const int64_t end = kept.lengths[static_cast<size_t>(row)];
    const int64_t begin = window > 0 ? std::max<int64_t>(0, end - window) : 0;
    for (int64_t head = 0; head < 4; ++head) {
      const auto seen = [&](const Tensor& all) {
        return all[row][head / 2].slice(0, begin, end).to(torch::kDouble);
      };
      const Tensor scores = seen(kept.keys).mv(kept.q[row][head].to(torch::kDouble));
      out[row][head] = seen(kept.values).t().mv((scores / std::sqrt(8.0)).softmax(0));
    }
  }
  return out;
}

TEST(KeptAttention, SeesWhatEachSequenceHolds) {
  // fp64 takes the operators of any device, fp32 and bf16 our loops.
  for (const auto& [type, tolerance] :
       {std::pair(torch::kDouble, 1e-5), {torch::kFloat, 1e-5}, {torch::kBFloat16, 3e-2}}) {
    const Kept kept = SomeKept(type);
    for (const int64_t window : {0, 1, 5, 16}) {
      const KeptLengths lengths(kept.lengths, torch::tensor(kept.lengths));
      const Tensor got = KeptAttention(kept.q, kept.keys, kept.values, lengths, window);
      EXPECT_EQ(got.scalar_type(), type);
      EXPECT_LT((got.to(torch::kDouble) - ByFormula(kept, window)).abs().max().item<double>(),
                tolerance)
          << torch::toString(type) << " window " << window;
    }
  }
}

TEST(KeptAttention, ARowHasTheSameBitsAlone) {
  const Kept kept = SomeKept(torch::kFloat);
  const auto first = [&](int64_t rows) {
    const std::vector<int64_t> of_rows(kept.lengths.begin(), kept.lengths.begin() + rows);
    const KeptLengths lengths(of_rows, torch::tensor(of_rows));
    return KeptAttention(kept.q.narrow(0, 0, rows), kept.keys, kept.values, lengths, 0)[0];
  };
  EXPECT_TRUE(torch::equal(first(1), first(3)));
}

}  // namespace
}  // namespace espalier::ops
