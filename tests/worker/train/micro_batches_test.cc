// Running out of memory at any allocation of a pass changes the gradient by rounding only.
#include "worker/train/micro_batches.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/support/failing_allocator.h"
#include "tests/worker/support/training_world.h"
#include "worker/collective/in_process.h"
#include "worker/model/decoder.h"
#include "worker/sync/gradient_exchange.h"
#include "worker/task/token_batch.h"

namespace espalier {
namespace {

constexpr int64_t kRows = 4, kTime = 6;
constexpr char kTable[] = "model.embed_tokens.weight";

Samples SomeSamples() {
  Samples samples;
  for (int64_t row = 0; row < kRows; ++row) {
    samples.ids.push_back(row);
    for (int64_t t = 0; t <= kTime; ++t) samples.tokens.push_back((row * 17 + t * 5 + t * t) % 50);
  }
  return samples;
}

// A model, and its shard computed in passes of two rows of which one may run out of memory.
struct Shard {
  Shard(const DecoderConfig& config, torch::ScalarType type, bool recompute = false)
      : parameters(*Parameters::Create(config, Parameters::ForTraining(torch::kCPU, type))),
        decoder(config, parameters),
        passes(governor, [this] { ++caches_freed; }) {
    parameters.Initialize(3, 0.2);
    if (recompute) decoder.set_recompute(std::vector<bool>(config.layers, true));
    // As in the trainer among several ranks: the rows that are looked up have a gradient of their
    // own.
    rows = parameters.Get(kTable).detach().clone().set_requires_grad(true);
    rows.mutable_grad() = torch::zeros_like(rows);
  }
  std::vector<torch::Tensor> Leaves() const {
    std::vector<torch::Tensor> leaves = parameters.GradientLeaves();
    leaves.push_back(rows);
    return leaves;
  }
  torch::Tensor Gradient() {
    return torch::cat({parameters.flat_gradient().Only(), rows.grad().flatten()});
  }

  // `final`: told of final gradients in the last pass, as the trainer tells the exchange.
  absl::Status Run(const std::function<void(int64_t end)>& final = {}) {
    const Samples samples = SomeSamples();
    return passes.Run(kRows, Leaves(), [&](SlotRange of, bool last) {
      PassInputs inputs{.lookup = {rows, torch::arange(rows.size(0))}};
      if (last) inputs.gradients_final = final;
      const TokenBatch batch = MakeTokenBatch(samples, of, transfers);
      const torch::Tensor sum = decoder.LossSum(batch.inputs, batch.targets, {}, inputs);
      sum.backward();
      loss += sum.item<double>();
    });
  }

  MemoryGovernor governor{{.min = 2, .max = 2}};
  Parameters parameters;
  Decoder decoder;
  Transfers transfers{torch::kCPU};
  int caches_freed = 0;
  double loss = 0;
  MicroBatches passes;
  torch::Tensor rows;
};

struct Expected {
  Expected(const DecoderConfig& config, torch::ScalarType type)
      : rounding(type == torch::kFloat ? 1e-4 : 3e-2) {
    Shard shard(config, type);
    EXPECT_TRUE(shard.Run().ok());
    EXPECT_EQ(shard.passes.largest(), 2);
    gradient = shard.Gradient();
    loss = shard.loss;
  }
  // Loss and gradient of a shard that was disturbed.
  void Compare(Shard& shard, const std::string& what) const {
    EXPECT_NEAR(shard.loss, loss, rounding * loss) << what;
    const torch::Tensor difference = (shard.Gradient() - gradient).abs();
    EXPECT_LT(difference.max().item<double>(), rounding * gradient.abs().max().item<double>())
        << what;
    for (const torch::Tensor& leaf : shard.Leaves()) {
      EXPECT_TRUE(leaf.requires_grad()) << what;
    }
  }
  double rounding;
  torch::Tensor gradient;
  double loss = 0;
};

DecoderConfig ConfigOf(bool tied) {
  DecoderConfig config = TinyConfig();
  config.tie_word_embeddings = tied;
  config.qk_norm = true;
  config.attention_bias = tied;
  return config;
}

struct Case {
  const char* name;
  bool tied;
  bool recompute;
  torch::ScalarType type;
};

class MicroBatchesTest : public testing::TestWithParam<Case> {
 protected:
  const DecoderConfig config_ = ConfigOf(GetParam().tied);
  const torch::ScalarType type_ = GetParam().type;
  const Expected expected_{config_, type_};
};
INSTANTIATE_TEST_SUITE_P(Models, MicroBatchesTest,
                         testing::Values(Case{"Untied", false, false, torch::kFloat},
                                         Case{"Tied", true, false, torch::kFloat},
                                         Case{"Recomputed", true, true, torch::kFloat},
                                         Case{"TiedBf16", true, false, torch::kBFloat16}),
                         [](const auto& info) { return info.param.name; });

TEST_P(MicroBatchesTest, AFailureAtAnyAllocationChangesRoundingOnly) {
  int64_t n = 1;
  // Every one of a layer's; behind them each third, since thousands make minutes of a slow machine.
  for (bool failed = true; failed; n += n < 150 ? 1 : 3) {
    Shard shard(config_, type_, GetParam().recompute);
    {
      const FailingAllocator allocator(n);
      ASSERT_TRUE(shard.Run().ok()) << n;
      failed = FailingAllocator::failed();
    }
    expected_.Compare(shard, absl::StrCat("allocation ", n));
    EXPECT_EQ(shard.governor.micro_batch(), failed ? 1 : 2) << "allocation " << n;
    EXPECT_EQ(shard.caches_freed, failed ? 1 : 0) << "allocation " << n;
  }
  EXPECT_GT(n, 100) << "a pass must allocate";
}

// The same with the exchange of gradients under way in the last pass: the other rank adds zeros.
TEST_P(MicroBatchesTest, BucketsThatAreAlreadyInTheExchangeAreLeftAlone) {
  std::vector<std::unique_ptr<Collective>> group = InProcessGroup(2, absl::Seconds(60));
  int64_t n = 1;
  for (bool failed = true; failed; n += 3) {
    Shard mine(config_, type_, GetParam().recompute);
    FlatTensor zeros = FlatTensor::Zeros(mine.parameters.flat_gradient().ends(), {}), host;
    const std::vector<int64_t> ends =
        BucketEnds(mine.parameters, mine.parameters.elements_before_embedding(), 2000);
    GradientExchange exchange(*group[0], {mine.parameters.flat_gradient(), host}, ends, {});
    GradientExchange other(*group[1], {zeros, host}, ends, {});
    other.GradientsFinal(zeros.numel());
    {
      const FailingAllocator allocator(n);
      ASSERT_TRUE(mine.Run([&](int64_t end) { exchange.GradientsFinal(end); }).ok()) << n;
      failed = FailingAllocator::failed();
    }
    std::thread finish([&] { EXPECT_TRUE(other.Finish().ok()); });
    EXPECT_TRUE(exchange.StartRest().ok());
    EXPECT_TRUE(exchange.Finish().ok());
    finish.join();
    expected_.Compare(mine, absl::StrCat("allocation ", n));
  }
}

TEST(MicroBatches, ARowThatDoesNotFitFailsOnceTheCachesAreFreed) {
  MemoryGovernor governor({.min = 4, .max = 4});
  int caches_freed = 0;
  MicroBatches passes(governor, [&] { ++caches_freed; });
  std::vector<int64_t> sizes;
  const absl::Status status = passes.Run(4, {}, [&](SlotRange rows, bool) {
    sizes.push_back(rows.size());
    throw std::bad_alloc();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(sizes, (std::vector<int64_t>{4, 2, 1, 1}));
  EXPECT_EQ(caches_freed, 3);
}

TEST(MicroBatches, ASizeThatFailedIsNotTriedAgain) {
  MemoryGovernor governor({.min = 8, .max = 8});
  MicroBatches passes(governor, [] {});
  std::vector<int64_t> sizes;
  const auto pass = [&](SlotRange rows, bool) {
    sizes.push_back(rows.size());
    if (rows.size() > 2) throw std::bad_alloc();
  };
  EXPECT_TRUE(passes.Run(16, {}, pass).ok());
  EXPECT_EQ(sizes, (std::vector<int64_t>{8, 4, 2, 2, 2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(passes.largest(), 2);
  sizes.clear();
  EXPECT_TRUE(passes.Run(16, {}, pass).ok());
  EXPECT_EQ(sizes, std::vector<int64_t>(8, 2));
}

}  // namespace
}  // namespace espalier
