// Rows that examples share: attention, positions and dropout of each example are those of the
// example alone, forward and backward, by the kernels of the CPU and by the operators of other
// devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "worker/ops/dropout.h"
#include "worker/ops/fused_ops.h"
#include "worker/ops/generic_ops.h"
#include "worker/ops/ops.h"

namespace espalier {
namespace {

using torch::Tensor;

using Inputs = std::vector<Tensor>;
using Lengths = std::vector<std::vector<int64_t>>;  // of the examples of each row

// The columns in which examples of these lengths begin, [B, T].
Tensor BeginsOf(const Lengths& rows) {
  std::vector<int64_t> begins;
  for (const std::vector<int64_t>& row : rows) {
    int64_t begin = 0;
    for (const int64_t length : row) {
      begins.insert(begins.end(), static_cast<size_t>(length), begin);
      begin += length;
    }
  }
  return torch::tensor(begins, torch::kLong).view({static_cast<int64_t>(rows.size()), -1});
}

ops::Masks MasksOf(const Lengths& rows) { return c10::make_intrusive<CausalMasks>(BeginsOf(rows)); }

// Of(part of each input), for each example by itself, put together again.
template <typename Of>
Tensor ExampleByExample(const Lengths& rows, const Inputs& in, const Of& of) {
  Inputs made;
  for (size_t b = 0; b < rows.size(); ++b) {
    Inputs row;
    int64_t begin = 0;
    for (const int64_t length : rows[b]) {
      Inputs parts;
      for (const Tensor& x : in) {
        parts.push_back(x.narrow(0, static_cast<int64_t>(b), 1).narrow(1, begin, length));
      }
      row.push_back(of(parts));
      begin += length;
    }
    made.push_back(torch::cat(row, 1));
  }
  return torch::cat(made, 0);
}

double Error(const Tensor& a, const Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(0.1)).item<double>();
}

struct Case {
  const char* name;
  Lengths rows;
  int64_t heads, kv_heads, window;
};

class ExamplesInRows : public testing::TestWithParam<Case> {
 protected:
  Inputs Random(torch::ScalarType type) const {
    const Case& c = GetParam();
    torch::manual_seed(1);
    const auto batch = static_cast<int64_t>(c.rows.size());
    const int64_t time = BeginsOf(c.rows).size(1);
    Inputs inputs;
    for (const int64_t heads : {c.heads, c.kv_heads, c.kv_heads}) {
      inputs.push_back(torch::randn({batch, time, heads, 8}, torch::kDouble).to(type));
    }
    return inputs;
  }
  // Values and gradients of `shared` are those of `alone`, in double precision, of each example.
  template <typename Shared, typename Alone>
  void ExpectSame(torch::ScalarType type, double tolerance, const Shared& shared,
                  const Alone& alone) const {
    Inputs mine = Random(type), theirs;
    for (Tensor& x : mine) {
      theirs.push_back(x.to(torch::kDouble).clone().set_requires_grad(true));
      x.set_requires_grad(true);
    }
    const Tensor out = shared(mine), expected = ExampleByExample(GetParam().rows, theirs, alone);
    EXPECT_LT(Error(out.to(torch::kDouble), expected), tolerance);
    const Tensor upstream = torch::randn_like(out);
    const Inputs found = torch::autograd::grad({out}, mine, {upstream});
    const Inputs wanted = torch::autograd::grad({expected}, theirs, {upstream.to(torch::kDouble)});
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_LT(Error(found[i].to(torch::kDouble), wanted[i]), tolerance) << "input " << i;
    }
  }
  static Tensor Alone(const Inputs& in, int64_t window) {
    return generic_ops::CausalAttention(in[0], in[1], in[2], window,
                                        c10::make_intrusive<CausalMasks>());
  }
};

INSTANTIATE_TEST_SUITE_P(
    Rows, ExamplesInRows,
    testing::Values(Case{"OneExample", {{20}, {20}}, 2, 2, 0},
                    Case{"OfOneColumnEach", {{1, 1, 1, 1}}, 2, 1, 0},
                    Case{"Several", {{7, 5, 8}, {3, 16, 1}}, 4, 2, 0},
                    Case{"InAWindow", {{7, 5, 8}, {3, 16, 1}}, 4, 2, 4},
                    Case{"AcrossBlocks", {{130, 3, 150, 17}, {60, 64, 76, 100}, {300}}, 2, 1, 0},
                    Case{"AcrossBlocksInAWindow", {{130, 3, 150, 18}, {1, 300}}, 2, 2, 70},
                    Case{"OneColumnInABlockOfItsOwn", {{100, 28, 1}, {64, 64, 1}}, 2, 2, 0}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(ExamplesInRows, KernelsAttendWithinExamples) {
  const Tensor begins = BeginsOf(GetParam().rows);
  const int64_t window = GetParam().window;
  for (const auto& [type, tolerance] : {std::pair{torch::kFloat, 1e-5}, {torch::kBFloat16, 2e-2}}) {
    ExpectSame(
        type, tolerance,
        [&](const Inputs& in) {
          return fused_ops::CausalAttention(in[0], in[1], in[2], window, begins);
        },
        [&](const Inputs& in) { return Alone(in, window); });
  }
}

// However few scores exist at a time, in parts of the batch and blocks of rows.
TEST_P(ExamplesInRows, OperatorsAttendWithinExamples) {
  const int64_t window = GetParam().window;
  for (const int64_t bound : {generic_ops::kMostScoreBytes, int64_t{20000}, int64_t{1}}) {
    if (bound == 1 && BeginsOf(GetParam().rows).size(1) > 30) continue;  // a row at a time
    ExpectSame(
        torch::kDouble, 1e-10,
        [&](const Inputs& in) {
          return generic_ops::CausalAttention(in[0], in[1], in[2], window, MasksOf(GetParam().rows),
                                              bound);
        },
        [&](const Inputs& in) { return Alone(in, window); });
  }
}

// Positions begin anew with each example.
TEST_P(ExamplesInRows, TurnEachExampleFromItsBeginning) {
  DecoderConfig config;
  config.head_dim = 8;
  const Tensor begins = BeginsOf(GetParam().rows);
  const int64_t window = GetParam().window;
  const RopeTable plain = MakeRopeTable(config, begins.size(1), torch::kCPU);
  const SharedRows shared{begins, begins.size(1)};
  const RopeTable table = plain.At(shared.Positions().flatten());
  const auto alone = [&](const Inputs& in) {
    const RopeTable own = plain.Of(0, in[0].size(1));
    return Alone({generic_ops::Rope(in[0], own), generic_ops::Rope(in[1], own), in[2]}, window);
  };
  for (const auto& [type, tolerance] : {std::pair{torch::kFloat, 1e-5}, {torch::kDouble, 1e-10}}) {
    for (const int64_t bound : {generic_ops::kMostScoreBytes, int64_t{20000}}) {
      ExpectSame(
          type, tolerance,
          [&](const Inputs& in) {
            return generic_ops::RotaryAttention({in[0], in[1], in[2]}, table, window,
                                                MasksOf(GetParam().rows), bound);
          },
          alone);
    }
    ExpectSame(
        type, tolerance,
        [&](const Inputs& in) {  // by kernels in fp32
          return ops::RotaryAttention({in[0], in[1], in[2]}, table, window,
                                      MasksOf(GetParam().rows));
        },
        alone);
  }
}

TEST(ExamplesInRowsMasks, AreMadeOnceForEachPlace) {
  const ops::Masks masks = MasksOf({{2, 1}, {1, 2}});
  const Tensor mask = masks->Of({3, 3, 0}, {0, 2, 0}, torch::kFloat);
  EXPECT_TRUE(mask.is_same(masks->Of({3, 3, 0}, {0, 2, 0}, torch::kFloat)));
  EXPECT_FALSE(mask.is_same(masks->Of({3, 3, 0}, {1, 1, 0}, torch::kFloat)));
  const float x = -INFINITY;
  EXPECT_TRUE(torch::equal(mask, torch::tensor({0.F, x, x, 0.F, 0.F, x, x, x, 0.F,  //
                                                0.F, x, x, x, 0.F, x, x, 0.F, 0.F})
                                     .view({2, 1, 3, 3})));
}

TEST(ExamplesInRowsPositions, AddTheirRowsOfTheTable) {
  const Tensor begins = BeginsOf({{3, 2}, {1, 4}});
  const Tensor places = SharedRows{begins, 4}.Positions();
  const Tensor x = torch::randn({2, 5, 6}, torch::kDouble).set_requires_grad(true);
  const Tensor table = torch::randn({9, 6}, torch::kDouble).set_requires_grad(true);
  const Tensor formula = x + table.index({places});
  const Tensor found = ops::AddPositions(x, table, places), upstream = torch::randn_like(found);
  EXPECT_TRUE(torch::equal(found, formula));
  const Inputs wanted = torch::autograd::grad({formula}, {x, table}, {upstream});
  const Inputs got = torch::autograd::grad({found}, {x, table}, {upstream});
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(torch::allclose(got[i], wanted[i], 1e-12)) << i;
  table.mutable_grad() = torch::ones_like(table);
  ops::AddPositions(x, table, places).backward(upstream);
  EXPECT_TRUE(torch::allclose(table.grad(), wanted[1] + 1, 1e-12)) << "added to what is there";
}

TEST(ExamplesInRowsDropout, DropsWhatIsDroppedOfTheExampleAlone) {
  const Lengths rows = {{3, 2, 4}, {1, 8}};
  const SharedRows shared{BeginsOf(rows), 8};
  DropoutKeys keys{.rate = 0.4};
  keys.of_row = shared.begins * 7 + torch::arange(2).unsqueeze(1) * 1000;  // one an example
  keys.positions = shared.Positions();
  const Tensor x = torch::randn({2, 9, 10}).set_requires_grad(true);
  const Tensor mask = DropoutMask(x, keys, 3);
  const Tensor expected =
      ExampleByExample(rows, {x.detach(), keys.of_row.unsqueeze(2)}, [&](const Inputs& in) {
        return DropoutMask(in[0], {.rate = 0.4, .of_row = in[1].flatten().narrow(0, 0, 1)}, 3);
      });
  EXPECT_TRUE(torch::equal(mask, expected));
  EXPECT_TRUE(torch::equal(mask, internal::GenericDropoutMask(x.detach(), keys, 3)));
  const Tensor y = Dropout(x, keys, 3);
  const Tensor dx = torch::autograd::grad({y.sum()}, {x})[0];
  EXPECT_TRUE(torch::allclose(dx, mask * KeptFactor(0.4)));
}

}  // namespace
}  // namespace espalier
