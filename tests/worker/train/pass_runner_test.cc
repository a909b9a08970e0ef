// A recorded pass does what the same pass does kernel by kernel. On devices that cannot record,
// passes run as ever; the list holds the CPU and what else the machine has.
#include "worker/train/pass_runner.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/worker/support/training_world.h"
#include "worker/data/packed_table.h"
#include "worker/task/next_token.h"
#include "worker/tensor/device.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

constexpr int64_t kTime = 24;

struct DeviceCase {
  std::string device;
  torch::ScalarType type;
};

std::vector<DeviceCase> Cases() {
  std::vector<DeviceCase> cases = {{"cpu", torch::kFloat}};
  if (HasCuda()) {
    cases.push_back({"cuda", torch::kFloat});
    cases.push_back({"cuda", torch::kBFloat16});
    cases.push_back({"cuda", torch::kHalf});
  }
  return cases;
}

DecoderConfig Config(bool tied) {
  DecoderConfig config;
  config.vocab_size = 64;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.max_position_embeddings = kTime;
  config.tie_word_embeddings = tied;
  return config;
}

Parameters::Options Dense(torch::Device device, torch::ScalarType type) {
  Parameters::Options options = Parameters::ForTraining(device, type);
  options.untied_embedding = EmbeddingGradient::kDense;
  return options;
}

class EveryDevicesPass : public testing::TestWithParam<DeviceCase> {
 protected:
  // One run of a model that everything starts with: what is set up then cannot be recorded.
  struct Model {
    Model(const DecoderConfig& config, const DeviceCase& of, double dropout = 0,
          std::shared_ptr<const SampleTable> table = nullptr)
        : device(of.device),
          dropout_rate(dropout),
          task(std::move(table)),
          parameters(*Parameters::Create(config, Dense(device, of.type))),
          decoder(config, parameters),
          runner(task, decoder, parameters) {
      parameters.Initialize(3, 0.1);
      for (const int64_t rows : {2, 3}) Run(rows, 0);
      parameters.ZeroGradients();
    }
    double Run(int64_t rows, int64_t variant, double loss_scale = 1) {
      const Tensor ids =
          ((torch::arange(rows * kTime) * 13 + variant * 7) % 64).view({rows, kTime}).to(device);
      DropoutKeys dropout{.rate = dropout_rate, .of_row = {}};
      if (dropout_rate > 0) dropout.of_row = (torch::arange(rows) + variant * 1000003).to(device);
      TokenBatch batch{ids, (ids + 1) % 64, {}};
      if (task.training() != nullptr) Pack(rows, variant, batch, dropout);
      return runner.Run(batch, {.dropout = dropout}, loss_scale).item<double>();
    }
    // In examples of as many columns as `variant` says.
    void Pack(int64_t rows, int64_t variant, TokenBatch& batch, DropoutKeys& dropout) const {
      const Tensor column = torch::arange(kTime).expand({rows, kTime});
      batch.shared = {(column - column.remainder(3 + variant)).to(device), 3 + variant};
      if (dropout_rate == 0) return;
      dropout.positions = batch.shared.Positions();
      dropout.of_row = batch.shared.begins + dropout.of_row.unsqueeze(1);
    }
    absl::Status Record() {
      return runner.Record({2, 3}, kTime, {.rate = dropout_rate, .of_row = {}});
    }
    Tensor Gradient() { return parameters.flat_gradient().Only().cpu(); }

    torch::Device device;
    double dropout_rate;
    NextToken task;
    Parameters parameters;
    Decoder decoder;
    PassRunner runner;
  };
  // `recorded` is told to record, and gives what `model` does.
  static void ExpectRepeated(Model& model, Model& recorded) {
    ASSERT_TRUE(recorded.Record().ok());
    EXPECT_EQ(recorded.Gradient().abs().sum().item<double>(), 0) << "recording computes nothing";
    EXPECT_EQ(recorded.runner.recorded_bytes() > 0, recorded.runner.CanRecord());
    // Several passes of either size, each with ids, dropout and a scale of its own.
    for (int64_t variant = 1; variant < 4; ++variant) {
      for (const int64_t rows : {2, 3}) {
        const double scale = static_cast<double>(variant * variant);
        EXPECT_EQ(recorded.Run(rows, variant, scale), model.Run(rows, variant, scale));
      }
    }
    EXPECT_GT(model.Gradient().norm().item<double>(), 0);
    EXPECT_LE((recorded.Gradient() - model.Gradient()).abs().max().item<double>(),
              1e-6 * model.Gradient().abs().max().item<double>());
  }
};

TEST_P(EveryDevicesPass, IsRepeatedAsItWasRecorded) {
  for (const bool tied : {false, true}) {
    for (const double dropout : {0.0, 0.3}) {
      SCOPED_TRACE(testing::Message() << "tied " << tied << ", dropout " << dropout);
      Model model(Config(tied), GetParam(), dropout), recorded(Config(tied), GetParam(), dropout);
      ExpectRepeated(model, recorded);
    }
  }
}

TEST_P(EveryDevicesPass, IsRepeatedOverPackedRows) {
  const auto packed = std::make_shared<const PackedTable>(TinyExamples(9), 1);
  for (const double dropout : {0.0, 0.3}) {
    SCOPED_TRACE(testing::Message() << "dropout " << dropout);
    Model model(Config(false), GetParam(), dropout, packed);
    Model recorded(Config(false), GetParam(), dropout, packed);
    ExpectRepeated(model, recorded);
  }
}

TEST_P(EveryDevicesPass, AddsNothingToWhatTakesNoGradientNow) {
  Model model(Config(false), GetParam());
  ASSERT_TRUE(model.Record().ok());
  Tensor frozen = model.parameters.Find("model.layers.0.mlp.up_proj.weight")->leaf;
  frozen.set_requires_grad(false);
  model.Run(2, 1);
  EXPECT_EQ(frozen.grad().abs().sum().item<double>(), 0);
  // And everything else what it does with it.
  Model whole(Config(false), GetParam());
  whole.Run(2, 1);
  whole.parameters.Find("model.layers.0.mlp.up_proj.weight")->leaf.grad().zero_();
  EXPECT_LE((model.Gradient() - whole.Gradient()).abs().max().item<double>(),
            2e-2 * whole.Gradient().abs().max().item<double>());
}

TEST_P(EveryDevicesPass, SurvivesALongerSequenceInBetween) {
  DecoderConfig config = Config(false);
  config.max_position_embeddings = 8 * kTime;
  Model model(config, GetParam());
  const double expected = model.Run(2, 1);
  ASSERT_TRUE(model.Record().ok());
  model.decoder.LossSum(torch::zeros({1, 4 * kTime}, torch::kInt64).to(model.device),
                        torch::zeros({1, 4 * kTime}, torch::kInt64).to(model.device));
  const Tensor other = torch::full({1 << 16}, 1e9, model.parameters.flat().Only().options());
  EXPECT_EQ(model.Run(2, 1), expected);
}

// Angles of such a model are computed anew on the host in every pass.
TEST_P(EveryDevicesPass, RunsAsEverWhenItCannotBeRecorded) {
  DecoderConfig config = Config(false);
  config.max_position_embeddings = kTime / 2;
  config.rope_scaling = RopeScalingConfig{.kind = RopeScalingConfig::Kind::kDynamic, .factor = 2};
  Model model(config, GetParam());
  const double expected = model.Run(2, 1);
  const Tensor gradient = model.Gradient();
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(model.Record().ok(), !model.runner.CanRecord());
    EXPECT_EQ(model.runner.recorded_bytes(), 0);
    FreeDeviceCache(model.device);  // the allocator knows that the recording has ended
  }
  model.parameters.ZeroGradients();
  EXPECT_EQ(model.Run(2, 1), expected);
  EXPECT_TRUE(torch::equal(model.Gradient(), gradient));
  Model other(Config(false), GetParam());
  ASSERT_TRUE(other.Record().ok()) << "what can be recorded still is";
  EXPECT_EQ(other.runner.recorded_bytes() > 0, other.runner.CanRecord());
}

TEST_P(EveryDevicesPass, IsRecordedWithLayersThatAreComputedAgain) {
  Model model(Config(false), GetParam(), 0.3), recorded(Config(false), GetParam(), 0.3);
  for (Model* one : {&model, &recorded}) {
    one->decoder.set_recompute({true, false});
    one->Run(2, 0);
    one->parameters.ZeroGradients();
  }
  ASSERT_TRUE(recorded.Record().ok());
  for (int64_t variant = 1; variant < 3; ++variant) {
    EXPECT_EQ(recorded.Run(2, variant), model.Run(2, variant));
  }
  EXPECT_LE((recorded.Gradient() - model.Gradient()).abs().max().item<double>(),
            1e-6 * model.Gradient().abs().max().item<double>());
}

TEST_P(EveryDevicesPass, OfASmallerSizeFindsRoomInTheMemoryOfALarger) {
  DecoderConfig config = Config(false);
  config.max_position_embeddings = 2048;
  Model model(config, GetParam());
  const auto bytes = [&](std::vector<int64_t> sizes) {
    for (const int64_t size : sizes) {
      const Tensor ids = torch::zeros({size, 2048}, torch::kInt64).to(model.device);
      model.runner.Run({ids, ids, {}}, {}, 1);
    }
    EXPECT_TRUE(model.runner.Record(sizes, 2048, {}).ok());
    return model.runner.recorded_bytes();
  };
  const int64_t larger = bytes({8}), both = bytes({7, 8});
  EXPECT_EQ(larger > 0, model.runner.CanRecord());
  EXPECT_LE(both, larger + larger / 4);
}

TEST_P(EveryDevicesPass, GivesItsMemoryBackWhenForgotten) {
  Model model(Config(false), GetParam());
  const double expected = model.Run(2, 1);
  ASSERT_TRUE(model.Record().ok());
  model.runner.Forget();
  EXPECT_EQ(model.runner.recorded_bytes(), 0);
  EXPECT_EQ(model.Run(2, 1), expected);
}

INSTANTIATE_TEST_SUITE_P(Devices, EveryDevicesPass, testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           return info.param.device + torch::toString(info.param.type);
                         });

}  // namespace
}  // namespace espalier
