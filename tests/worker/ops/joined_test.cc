// Neighbours in memory are one tensor, and nothing else is.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/support/tiny_model.h"
#include "worker/model/parameters.h"
#include "worker/ops/products.h"

namespace espalier::fused_ops {
namespace {

using torch::Tensor;

TEST(Joined, WeightsOfABlockLieSideBySide) {
  const DecoderConfig config = TinyModelConfig();
  const Parameters parameters = *Parameters::Create(config, Trained(EmbeddingGradient::kDense));
  const auto leaf = [&](const char* name) {
    return parameters.Find(absl::StrCat("model.layers.1.", name, ".weight"))->leaf;
  };
  const std::vector<Tensor> qkv = {leaf("self_attn.q_proj"), leaf("self_attn.k_proj"),
                                   leaf("self_attn.v_proj")};
  const std::vector<Tensor> gate_up = {leaf("mlp.gate_proj"), leaf("mlp.up_proj")};
  for (const std::vector<Tensor>& weights : {qkv, gate_up}) {
    torch::NoGradGuard no_grad;
    std::vector<Tensor> reversed(weights.rbegin(), weights.rend()), gradients;
    for (const Tensor& weight : weights) {
      weight.normal_();
      gradients.push_back(weight.grad());
    }
    ASSERT_TRUE(JoinedRows(weights).defined());
    EXPECT_TRUE(torch::equal(JoinedRows(weights), torch::cat(reversed)));
    JoinedRows(gradients).fill_(2);
    for (const Tensor& gradient : gradients) EXPECT_EQ(gradient.mean().item<float>(), 2);
    EXPECT_FALSE(JoinedRows(reversed).defined()) << "the order counts";
  }
  EXPECT_FALSE(JoinedRows({leaf("self_attn.q_proj"), leaf("mlp.gate_proj")}).defined());
  EXPECT_FALSE(JoinedRows({leaf("self_attn.q_proj")}).defined());
  EXPECT_FALSE(JoinedRows({torch::ones({2, 3}), torch::ones({2, 3})}).defined());
}

TEST(Joined, PartsOfRowsAreOneAgain) {
  const Tensor whole = torch::rand({2, 5, 12});
  const std::vector<Tensor> parts = PartsOf(whole, {6, 4, 2});
  EXPECT_TRUE(torch::equal(parts[0], whole.narrow(2, 6, 6)));
  EXPECT_TRUE(torch::equal(parts[2], whole.narrow(2, 0, 2)));
  ASSERT_TRUE(JoinedColumns(parts).defined());
  EXPECT_TRUE(torch::equal(JoinedColumns(parts), whole.view({10, 12})));
  EXPECT_EQ(JoinedColumns(parts).data_ptr(), whole.data_ptr());
}

TEST(Joined, PartsLieInEitherOrder) {
  const Tensor whole = torch::rand({2, 5, 12});
  const std::vector<int64_t> widths = {6, 4, 2};
  const std::vector<Tensor> first_last = PartsOf(whole, widths);
  const std::vector<Tensor> first_first = PartsOf(whole, widths, ColumnOrder::kFirstFirst);
  EXPECT_TRUE(torch::equal(first_first[0], whole.narrow(2, 0, 6)));
  EXPECT_TRUE(torch::equal(first_first[2], whole.narrow(2, 10, 2)));
  EXPECT_EQ(OrderOfColumns(first_last), ColumnOrder::kFirstLast);
  EXPECT_EQ(OrderOfColumns(first_first), ColumnOrder::kFirstFirst);
  EXPECT_EQ(OrderOfColumns({first_first[0], first_first[1].clone(), first_first[2]}),
            ColumnOrder::kApart);
  EXPECT_EQ(OrderOfColumns({first_first[1], first_first[0], first_first[2]}), ColumnOrder::kApart);
  EXPECT_EQ(OrderOfColumns({whole}), ColumnOrder::kApart);
}

TEST(Joined, PartsThatAreNotWholeAreNotOne) {
  const Tensor whole = torch::rand({2, 5, 12});
  const std::vector<Tensor> parts = PartsOf(whole, {6, 4, 2});
  EXPECT_FALSE(JoinedColumns({parts[0], parts[1]}).defined()) << "a part of the row is missing";
  EXPECT_FALSE(JoinedColumns({parts[1], parts[0], parts[2]}).defined());
  EXPECT_FALSE(JoinedColumns({parts[0], parts[1], parts[2].clone()}).defined());
  EXPECT_FALSE(JoinedColumns({parts[0], Tensor(), parts[2]}).defined());
  EXPECT_FALSE(JoinedColumns({whole}).defined());
  const std::vector<Tensor> turned = PartsOf(whole.transpose(0, 1), {6, 6});
  EXPECT_FALSE(JoinedColumns(turned).defined()) << "rows in another order";
}

}  // namespace
}  // namespace espalier::fused_ops
