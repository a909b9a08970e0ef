// Attention in LibTorch's operators: values against loops over what each position sees, gradients
// against finite differences, in double precision; and what it keeps to whatever the shapes.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/worker/ops/finite_differences.h"
#include "worker/ops/generic_ops.h"
#include "worker/ops/ops.h"

namespace espalier::generic_ops {
namespace {

using torch::Tensor;

// softmax(q k' / sqrt(D)) v with explicit loops over what each position sees.
Tensor NaiveAttention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t window) {
  Tensor out = torch::zeros_like(q);
  const int64_t offset = k.size(1) - q.size(1), group = q.size(2) / k.size(2);
  for (int64_t b = 0; b < q.size(0); ++b) {
    for (int64_t t = 0; t < q.size(1); ++t) {
      for (int64_t h = 0; h < q.size(2); ++h) {
        const int64_t end = window == kBothWays ? k.size(1) : offset + t + 1;
        const int64_t begin = window > 0 ? std::max<int64_t>(0, end - window) : 0;
        const Tensor keys = k[b].slice(0, begin, end).select(1, h / group);
        const Tensor values = v[b].slice(0, begin, end).select(1, h / group);
        const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
        out[b][t][h] = torch::softmax(keys.mv(q[b][t][h]) * scale, 0).matmul(values);
      }
    }
  }
  return out;
}

Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t window,
                 int64_t most_score_bytes = kMostScoreBytes) {
  return CausalAttention(q, k, v, window, c10::make_intrusive<CausalMasks>(), most_score_bytes);
}

struct AttentionCase {
  const char* name;
  int64_t query_time, key_time, heads, kv_heads, window;
};

class GenericAttention : public testing::TestWithParam<AttentionCase> {};

TEST_P(GenericAttention, EqualsTheFormulaForwardAndBackward) {
  const AttentionCase& c = GetParam();
  torch::manual_seed(3);
  const Inputs inputs = {Random({2, c.query_time, c.heads, 4}),
                         Random({2, c.key_time, c.kv_heads, 4}),
                         Random({2, c.key_time, c.kv_heads, 4})};
  const auto attention = [&](const Inputs& in) { return Attention(in[0], in[1], in[2], c.window); };
  const Tensor expected = NaiveAttention(inputs[0], inputs[1], inputs[2], c.window);
  EXPECT_TRUE(torch::allclose(attention(inputs), expected, 1e-10, 1e-12));
  if (c.key_time <= 8) ExpectGradients(attention, inputs);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GenericAttention,
    testing::Values(AttentionCase{"OnePosition", 1, 1, 2, 2, 0},
                    AttentionCase{"AllPositions", 6, 6, 2, 2, 0},
                    AttentionCase{"GroupedHeads", 5, 5, 4, 2, 0},
                    AttentionCase{"Window", 7, 7, 2, 1, 3},
                    AttentionCase{"WindowOfOne", 4, 4, 2, 2, 1},
                    AttentionCase{"LastPositionsOnly", 2, 7, 4, 2, 0},
                    AttentionCase{"LastPositionsInAWindow", 3, 8, 2, 2, 4},
                    AttentionCase{"BothWays", 6, 6, 4, 2, kBothWays},
                    AttentionCase{"SeveralBlocksBothWays", 300, 300, 2, 2, kBothWays},
                    AttentionCase{"SeveralBlocks", 300, 300, 2, 1, 0},
                    AttentionCase{"SeveralBlocksAndWindow", 300, 310, 2, 2, 150}),
    [](const auto& info) { return std::string(info.param.name); });

// Parts of the batch, blocks of fewer rows, single rows: what MPS needs of large batches.
TEST_P(GenericAttention, IsTheSameHoweverFewScoresExistAtATime) {
  const AttentionCase& c = GetParam();
  torch::manual_seed(3);
  const Inputs inputs = {Random({3, c.query_time, c.heads, 4}).set_requires_grad(true),
                         Random({3, c.key_time, c.kv_heads, 4}).set_requires_grad(true),
                         Random({3, c.key_time, c.kv_heads, 4}).set_requires_grad(true)};
  const Tensor whole = Attention(inputs[0], inputs[1], inputs[2], c.window);
  const Tensor upstream = torch::randn_like(whole);
  const auto expected = torch::autograd::grad({whole}, inputs, {upstream});
  const int64_t row_bytes = c.heads * c.key_time * 8;
  for (const int64_t bound : {2 * c.query_time * row_bytes, 7 * row_bytes, int64_t{1}}) {
    const Tensor out = Attention(inputs[0], inputs[1], inputs[2], c.window, bound);
    EXPECT_TRUE(torch::allclose(out, whole, 1e-12)) << bound;
    const auto found = torch::autograd::grad({out}, inputs, {upstream});
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-10, 1e-13)) << bound << ", " << i;
    }
  }
}

struct RotaryCase {
  const char* name;
  int64_t time, heads, kv_heads, window, bound;
};

class GenericRotaryAttention : public testing::TestWithParam<RotaryCase> {};

INSTANTIATE_TEST_SUITE_P(Shapes, GenericRotaryAttention,
                         testing::Values(RotaryCase{"EqualHeads", 6, 2, 2, 0, kMostScoreBytes},
                                         RotaryCase{"GroupedHeads", 6, 4, 2, 0, kMostScoreBytes},
                                         RotaryCase{"Window", 6, 4, 2, 3, kMostScoreBytes},
                                         RotaryCase{"Blocks", 140, 4, 2, 0, kMostScoreBytes},
                                         RotaryCase{"FewScores", 6, 4, 4, 0, 1}),
                         [](const auto& info) { return std::string(info.param.name); });

// Whether the three are parts of the same rows, as one product makes them, or tensors of their own.
TEST_P(GenericRotaryAttention, IsAttentionOfWhatRopeTurns) {
  const RotaryCase& c = GetParam();
  torch::manual_seed(3);
  DecoderConfig config;
  config.head_dim = 4;
  const RopeTable table = MakeRopeTable(config, c.time, torch::kCPU);
  const std::vector<int64_t> widths = {c.heads * 4, c.kv_heads * 4, c.kv_heads * 4};
  const Inputs parts = PartsOf(Random({3, c.time, widths[0] + widths[1] + widths[2]}), widths);
  Inputs x, apart;
  for (size_t i = 0; i < 3; ++i) {
    x.push_back(parts[i].view({3, c.time, -1, 4}).set_requires_grad(true));
    apart.push_back(x[i].detach().clone().set_requires_grad(true));
  }
  const Tensor expected =
      Attention(Rope(apart[0], table), Rope(apart[1], table), apart[2], c.window);
  const Tensor upstream = torch::randn_like(expected);
  const Inputs gradients = torch::autograd::grad({expected}, apart, {upstream});
  for (const Inputs& inputs : {x, apart}) {
    const Tensor found = RotaryAttention({inputs[0], inputs[1], inputs[2]}, table, c.window,
                                         c10::make_intrusive<CausalMasks>(), c.bound);
    EXPECT_TRUE(torch::allclose(found, expected, 1e-10, 1e-12));
    const Inputs own = torch::autograd::grad({found}, inputs, {upstream});
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(torch::allclose(own[i], gradients[i], 1e-10, 1e-12)) << i;
    }
  }
}

TEST(CausalMasks, AreMadeOnceForEachShape) {
  CausalMasks masks;
  const Tensor mask = masks.Of({2, 3, 0}, torch::kFloat);
  EXPECT_TRUE(mask.is_same(masks.Of({2, 3, 0}, torch::kFloat)));
  EXPECT_FALSE(mask.is_same(masks.Of({2, 3, 1}, torch::kFloat)));
  EXPECT_TRUE(
      torch::equal(mask, torch::tensor({0.0F, 0.0F, -INFINITY, 0.0F, 0.0F, 0.0F}).view({2, 3})));
}

TEST(CausalMasks, KeepNoMoreThanTheirBound) {
  CausalMasks masks;
  const int64_t side = 4096;  // 64 MiB each
  EXPECT_TRUE(
      masks.Of({side, side, 0}, torch::kFloat).is_same(masks.Of({side, side, 0}, torch::kFloat)));
  EXPECT_FALSE(
      masks.Of({side, side, 9}, torch::kFloat).is_same(masks.Of({side, side, 9}, torch::kFloat)));
}

struct PartCase {
  const char* name;
  AttentionSize size;
  AttentionPart part;
};

class AttentionParts : public testing::TestWithParam<PartCase> {};

TEST_P(AttentionParts, StayBelowTheBound) {
  const PartCase& c = GetParam();
  const AttentionPart part = AttentionPartOf(c.size, 1024, kMostOperandBytes);
  EXPECT_EQ(part.rows, c.part.rows);
  EXPECT_EQ(part.batch, c.part.batch);
  EXPECT_LE(part.batch * part.rows * c.size.heads * c.size.keys * c.size.score_bytes,
            kMostOperandBytes);
  EXPECT_LE(part.rows * c.size.group, kMostReduction);
}

INSTANTIATE_TEST_SUITE_P(Sizes, AttentionParts,
                         testing::Values(PartCase{"Small", {2, 4, 2, 64, 4}, {2, 1024}},
                                         // 17 sequences passed 2^32 bytes.
                                         PartCase{"LargeBatch", {17, 32, 4, 2048, 4}, {4, 1024}},
                                         PartCase{"LongSequence", {8, 32, 4, 65536, 4}, {1, 128}},
                                         PartCase{
                                             "ManyHeadsShareKeys", {1, 64, 64, 1024, 4}, {1, 256}}),
                         [](const auto& info) { return std::string(info.param.name); });

// Scores near 500 are 2 apart in bfloat16: rounded to it they would choose other values.
TEST(GenericAttentionOf16Bits, DoesNotRoundScores) {
  torch::manual_seed(4);
  Inputs narrow, wide;
  for (int i = 0; i < 3; ++i) {
    const double magnitude = i < 2 ? 4 : 1;
    narrow.push_back((Random({1, 40, 2, 64}) * magnitude).to(torch::kBFloat16));
    wide.push_back(narrow.back().to(torch::kDouble).set_requires_grad(true));
    narrow.back().set_requires_grad(true);
  }
  const Tensor out = Attention(narrow[0], narrow[1], narrow[2], 0);
  const Tensor expected = Attention(wide[0], wide[1], wide[2], 0);
  const Tensor upstream = torch::randn_like(out);
  out.backward(upstream);
  expected.backward(upstream.to(torch::kDouble));
  const auto error = [](const Tensor& a, const Tensor& b) {
    return ((a.to(torch::kDouble) - b).abs().max() / b.abs().max()).item<double>();
  };
  EXPECT_LT(error(out, expected), 5e-3);
  for (size_t i = 0; i < 3; ++i) EXPECT_LT(error(narrow[i].grad(), wide[i].grad()), 2e-2) << i;
}

}  // namespace
}  // namespace espalier::generic_ops
