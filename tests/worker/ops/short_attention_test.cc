// Attention of short sequences in 16 bits, on every device of this machine: values and gradients
// are those of double precision on the CPU, whether q, k and v lie in one another's rows or apart.
#include <gtest/gtest.h>

#include "worker/ops/ops.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

struct ShortCase {
  int64_t batch, time, heads;
  bool turned, causal;
};

void PrintTo(const ShortCase& c, std::ostream* out) {
  *out << c.batch << " x " << c.time << " x " << c.heads << (c.turned ? " turned" : "")
       << (c.causal ? " causal" : "");
}

class ShortAttention : public testing::TestWithParam<ShortCase> {};

// Of what is given: the output, and the gradients of q, k and v, side by side.
struct Found {
  Tensor out, gradient;
};

// `order`: places of q, k and v in the rows of x.
Found Attend(const ShortCase& c, const Tensor& x, const Tensor& upstream,
             const std::vector<int64_t>& order) {
  DecoderConfig config;
  config.head_dim = 64;
  const RopeTable table = c.turned ? MakeRopeTable(config, c.time, x.device()) : RopeTable();
  const Tensor leaf = x.detach().clone().set_requires_grad(true);
  const auto part = [&](int64_t place) {
    return leaf.select(2, order[static_cast<size_t>(place)]);
  };
  const Tensor out =
      ops::RotaryAttention({part(0), part(1), part(2)}, table, c.causal ? 0 : kBothWays,
                           c10::make_intrusive<CausalMasks>());
  out.backward(upstream);
  return {out.detach(), leaf.grad()};
}

double Distance(const Tensor& found, const Tensor& expected) {
  const Tensor difference = found.cpu().to(torch::kDouble) - expected;
  return (difference.norm() / expected.norm()).item<double>();
}

TEST_P(ShortAttention, IsOnEveryDeviceThatOfDoublePrecision) {
  const ShortCase& c = GetParam();
  torch::manual_seed(5);
  const Tensor x = torch::randn({c.batch, c.time, 3, c.heads, 64}).to(torch::kBFloat16);
  const Tensor upstream = torch::randn({c.batch, c.time, c.heads, 64}).to(torch::kBFloat16);
  const Found expected = Attend(c, x.to(torch::kDouble), upstream.to(torch::kDouble), {0, 1, 2});
  std::vector<torch::Device> devices = {torch::kCPU};
  if (HasCuda()) devices.emplace_back(torch::kCUDA);
  for (const torch::Device device : devices) {
    for (const torch::ScalarType type : {torch::kBFloat16, torch::kHalf}) {
      for (const std::vector<int64_t>& order :
           {std::vector<int64_t>{0, 1, 2}, std::vector<int64_t>{2, 1, 0}}) {
        const Tensor places = torch::tensor(order, torch::kLong);
        const Found found =
            Attend(c, x.index_select(2, places).to(device, type), upstream.to(device, type), order);
        EXPECT_LT(Distance(found.out, expected.out), 0.01) << device << " " << type;
        EXPECT_LT(Distance(found.gradient.cpu().index_select(2, places), expected.gradient), 0.015)
            << device << " " << type;
      }
    }
  }
}

TEST_P(ShortAttention, WithoutGradientsIsTheSame) {
  const ShortCase& c = GetParam();
  const torch::Device device(HasCuda() ? torch::kCUDA : torch::kCPU);
  const Tensor x = torch::randn({c.batch, c.time, 3, c.heads, 64}).to(device, torch::kBFloat16);
  const Found found = Attend(c, x, torch::ones_like(x.select(2, 0)), {0, 1, 2});
  torch::NoGradGuard no_grad;
  DecoderConfig config;
  config.head_dim = 64;
  const RopeTable table = c.turned ? MakeRopeTable(config, c.time, device) : RopeTable();
  const Tensor again =
      ops::RotaryAttention({x.select(2, 0).clone(), x.select(2, 1).clone(), x.select(2, 2).clone()},
                           table, c.causal ? 0 : kBothWays, c10::make_intrusive<CausalMasks>());
  EXPECT_TRUE(torch::equal(again, found.out));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, ShortAttention,
    testing::Values(ShortCase{2, 81, 8, true, false}, ShortCase{2, 81, 8, true, true},
                    ShortCase{3, 1, 2, true, false}, ShortCase{1, 17, 1, false, false},
                    ShortCase{2, 32, 3, true, true}, ShortCase{2, 64, 2, false, true},
                    ShortCase{2, 96, 2, true, false}, ShortCase{2, 97, 2, true, true},
                    ShortCase{1, 128, 2, true, false}, ShortCase{1, 129, 2, true, true}));

}  // namespace
}  // namespace espalier
