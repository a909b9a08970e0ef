// Sums of gradients are the same bits wherever the gradients are: in host memory, or on a device of
// this machine, whose buckets are copied beside its computation.
#include "worker/sync/gradient_exchange.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "worker/collective/in_process.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

std::vector<std::string> Devices() {
  std::vector<std::string> devices = {"cpu"};
  if (HasCuda()) devices.push_back("cuda");
  if (HasMps()) devices.push_back("mps");
  return devices;
}

constexpr int64_t kElements = 3 << 20;
constexpr int kSteps = 3;

Tensor GradientOf(int rank, int step) {
  return torch::arange(kElements, torch::kFloat).mul(0.37 * (rank + 1)).sin_().mul_(step + 1);
}

class ExchangeOnDevice : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Devices, ExchangeOnDevice, testing::ValuesIn(Devices()),
                         [](const auto& info) { return info.param; });

// The gradient of a step is written by the device just before its buckets are announced, and
// overwritten as soon as the sums are there.
void Train(Collective& collective, torch::Device device) {
  const int rank = static_cast<int>(collective.rank().value());
  // The second bucket begins a new arena.
  const std::vector<int64_t> ends = {1 << 20, 1 << 21, kElements}, arenas = {1 << 20, kElements};
  FlatTensor gradient = FlatTensor::Zeros(arenas, torch::TensorOptions().device(device));
  FlatTensor host = FlatTensor::Zeros(arenas, {});
  GradientExchange exchange(collective, {gradient, host}, ends, {});
  for (int step = 0; step < kSteps; ++step) {
    const Tensor mine = GradientOf(rank, step).to(device);
    for (size_t bucket = 0, begin = 0; bucket < ends.size(); begin = ends[bucket++]) {
      const auto size = ends[bucket] - static_cast<int64_t>(begin);
      const auto first = static_cast<int64_t>(begin);
      gradient.Slice(first, size).add_(mine.narrow(0, first, size));
      exchange.GradientsFinal(ends[bucket]);
    }
    ASSERT_TRUE(exchange.StartRest().ok());
    ASSERT_TRUE(exchange.Finish().ok());
    const Tensor sum = torch::cat(gradient.arenas()).cpu();
    gradient.Zero();
    Tensor expected = GradientOf(0, step);
    for (int other = 1; other < collective.world_size(); ++other) {
      expected += GradientOf(other, step);
    }
    EXPECT_TRUE(torch::equal(sum, expected)) << "rank " << rank << ", step " << step;
  }
}

TEST_P(ExchangeOnDevice, GivesTheSumsOfTheCpu) {
  for (const int ranks : {1, 2, 3}) {
    std::vector<std::unique_ptr<Collective>> group = InProcessGroup(ranks, absl::Seconds(60));
    std::vector<std::thread> threads;
    for (auto& member : group) {
      threads.emplace_back([&] { Train(*member, torch::Device(GetParam())); });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// The dense gradient, cut where parameters end; the closer to the end, the smaller the pieces.
TEST(BucketEnds, CoverAllButAnUntiedEmbeddingAndLeaveLittleForTheEnd) {
  constexpr int64_t kTarget = int64_t{1} << 20;
  for (const bool tied : {false, true}) {
    v1::ModelSpec spec;
    spec.set_preset("17m");
    spec.set_tie_word_embeddings(tied);
    const DecoderConfig config = *DecoderConfigFromSpec(spec, 8192);
    const Parameters parameters = *Parameters::Create(config, Parameters::ForTraining(torch::kCPU));
    std::set<int64_t> ends_of_parameters;
    int64_t dense = 0;
    for (const Parameter& parameter : parameters.all()) {
      ends_of_parameters.insert(parameter.offset + parameter.size);
      const bool own = !tied && parameter.shape.name == "model.embed_tokens.weight";
      if (!own) dense = parameter.offset + parameter.size;
    }
    const std::vector<int64_t> ends =
        BucketEnds(parameters, parameters.elements_before_embedding(), kTarget);
    EXPECT_EQ(ends.back(), dense);
    for (size_t i = 0; i < ends.size(); ++i) {
      EXPECT_TRUE(ends_of_parameters.contains(ends[i]));
      const int64_t begin = i == 0 ? 0 : ends[i - 1];
      const bool early = begin < dense / 2 && i > 0;
      EXPECT_GE(ends[i] - begin, early ? kTarget / 2 : 1);
    }
    const int64_t first_projection = config.hidden_size * config.hidden_size;
    EXPECT_LE(ends.back() - ends[ends.size() - 2], first_projection + config.hidden_size);
  }
}

}  // namespace
}  // namespace espalier
