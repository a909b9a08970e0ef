// What a device can do is asked of the device, and what it cannot is refused by name. Every device
// of this machine, in every precision it has, gives the loss and the gradients of the CPU in fp32.
// On a machine without an accelerator the list holds the CPU alone.
#include "worker/tensor/device.h"

#include <gtest/gtest.h>

#include <tuple>

#include "absl/strings/match.h"
#include "tests/worker/support/device_cases.h"
#include "tests/worker/support/tiny_model.h"
#include "worker/model/self_check.h"
#include "worker/ops/fused_tensor.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

// Widths that fused kernels take: rows of a multiple of 4, heads of a multiple of 8.
DecoderConfig Config(bool tied, int64_t window) {
  DecoderConfig config = TinyModelConfig();
  config.vocab_size = 64;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.head_dim = 16;
  config.initializer_range = 0.1;
  config.tie_word_embeddings = tied;
  config.sliding_window = window;
  config.qk_norm = tied;  // without it, q, k and v stay side by side where products are joined
  return config;
}

struct Result {
  double loss;
  Tensor gradient;
};

enum class Rows { kOfOne, kPacked };

// Examples of 11 columns, of 9 and of 40.
SharedRows PackedRowsOf(torch::Device device) {
  const Tensor column = torch::arange(40, torch::kLong);
  const Tensor begins = torch::stack(
      {column - column.remainder(11), column - column.remainder(9), torch::zeros_like(column)});
  return {begins.to(device), 40};
}

// Two passes, so that gradients are added to what is there.
Result TwoPasses(const DecoderConfig& config, torch::Device device, torch::ScalarType type,
                 Rows rows) {
  Parameters parameters =
      *Parameters::Create(config, Trained(EmbeddingGradient::kDense, device, type));
  parameters.Initialize(7, config.initializer_range);
  const Decoder decoder(config, parameters);
  double sum = 0;
  for (int64_t pass = 0; pass < 2; ++pass) {
    Tensor ids = (SomeIds(3, 40, 64) + pass).remainder(64), targets = (ids + 1).remainder(64);
    targets[0][pass] = -100;
    PassInputs inputs;
    if (rows == Rows::kPacked) inputs.shared = PackedRowsOf(device);
    const Tensor loss = decoder.LossSum(ids.to(device), targets.to(device), {}, inputs);
    loss.backward();
    sum += loss.item<double>();
  }
  return {sum, parameters.flat_gradient().Only().cpu()};
}

class EveryDevice : public testing::TestWithParam<DeviceCase> {
 protected:
  static void ExpectWhatTheCpuGives(const DecoderConfig& config, Rows rows = Rows::kOfOne) {
    const auto& [device, type, tolerance] = GetParam();
    const Result expected = TwoPasses(config, torch::kCPU, torch::kFloat, rows);
    const Result result = TwoPasses(config, torch::Device(device), type, rows);
    EXPECT_NEAR(result.loss / expected.loss, 1, tolerance / 4);
    EXPECT_LT((result.gradient - expected.gradient).norm().item<double>(),
              tolerance * expected.gradient.norm().item<double>());
  }
};

TEST_P(EveryDevice, GivesTheLossAndTheGradientOfTheCpu) {
  for (const bool tied : {false, true}) {
    for (const int64_t window : {0, 12}) {
      SCOPED_TRACE(testing::Message() << "tied " << tied << ", window " << window);
      ExpectWhatTheCpuGives(Config(tied, window));
    }
  }
}

TEST_P(EveryDevice, GivesTheLossAndTheGradientOfTheCpuForGpt2) {
  for (const bool tied : {false, true}) {
    DecoderConfig config = Config(tied, 0);
    config.architecture = Architecture::kGpt2;
    config.qk_norm = false;
    config.kv_heads = config.heads;
    ExpectWhatTheCpuGives(config);
  }
}

TEST_P(EveryDevice, GivesTheLossAndTheGradientOfTheCpuOverPackedRows) {
  for (const bool tied : {false, true}) {
    for (const int64_t window : {0, 5}) {
      SCOPED_TRACE(testing::Message() << "tied " << tied << ", window " << window);
      ExpectWhatTheCpuGives(Config(tied, window), Rows::kPacked);
    }
    DecoderConfig gpt2 = Config(tied, 0);
    gpt2.architecture = Architecture::kGpt2;
    gpt2.qk_norm = false;
    gpt2.kv_heads = gpt2.heads;
    ExpectWhatTheCpuGives(gpt2, Rows::kPacked);
  }
}

// As a task with a mask or advantages has them.
TEST_P(EveryDevice, WeighsTheRowsOfTheLoss) {
  const auto& [device, type, tolerance] = GetParam();
  const Tensor ids = SomeIds(3, 40, 64);
  torch::manual_seed(2);
  const Tensor weights = torch::rand({ids.numel()}) * 2 - 0.5;  // of either sign
  const auto run = [&](torch::Device on, torch::ScalarType in) -> Result {
    const DecoderConfig config = Config(false, 0);
    Parameters parameters = *Parameters::Create(config, Trained(EmbeddingGradient::kDense, on, in));
    parameters.Initialize(7, config.initializer_range);
    const Tensor loss = Decoder(config, parameters)
                            .LossSum(ids.to(on), (ids + 1).remainder(64).to(on),
                                     {.weights = weights.to(on), .function = nullptr});
    loss.backward();
    return {loss.item<double>(), parameters.flat_gradient().Only().cpu()};
  };
  const Result expected = run(torch::kCPU, torch::kFloat),
               result = run(torch::Device(device), type);
  EXPECT_NEAR(result.loss / expected.loss, 1, tolerance / 4);
  EXPECT_LT((result.gradient - expected.gradient).norm().item<double>(),
            tolerance * expected.gradient.norm().item<double>());
}

TEST_P(EveryDevice, AddsBiasesToProductsThatLieSideBySide) {
  DecoderConfig config = Config(false, 0);
  config.attention_bias = config.output_bias = config.mlp_bias = true;
  ExpectWhatTheCpuGives(config);
}

// Beside a frozen base, of all projections or of some of those that lie side by side, with and
// without what is dropped.
TEST_P(EveryDevice, GivesTheGradientsOfAdaptersOfTheCpu) {
  const auto& [device, type, tolerance] = GetParam();
  const DecoderConfig config = Config(false, 0);
  const auto run = [&](torch::Device on, torch::ScalarType in, const LoraConfig& lora) {
    Parameters::Options options = Parameters::ForTraining(on, in);
    options.lora = lora;
    options.trained = [](const ParameterShape& shape) { return shape.is_adapter(); };
    Parameters parameters = *Parameters::Create(config, options);
    parameters.Initialize(7, config.initializer_range);  // the second half of adapters too
    const Decoder decoder(config, parameters);
    PassInputs inputs;
    if (lora.dropout > 0) {
      inputs.dropout = {.of_row = torch::tensor({3, 1'000'000'007, 5}).to(on),
                        .adapter_rate = lora.dropout};
    }
    for (int64_t pass = 0; pass < 2; ++pass) {
      const Tensor ids = (SomeIds(3, 40, 64) + pass).remainder(64);
      decoder.LossSum(ids.to(on), (ids + 1).remainder(64).to(on), {}, inputs).backward();
    }
    return parameters.flat_gradient().Only().cpu();
  };
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{}, {"q_proj", "v_proj", "up_proj"}}) {
    for (const double rate : {0.0, 0.3}) {
      LoraConfig lora;
      lora.rank = 8;
      lora.alpha = 12;
      lora.dropout = rate;
      lora.targets = targets;
      const Tensor expected = run(torch::kCPU, torch::kFloat, lora),
                   result = run(torch::Device(device), type, lora);
      ASSERT_GT(expected.norm().item<double>(), 0);
      EXPECT_LT((result - expected).norm().item<double>(),
                tolerance * expected.norm().item<double>())
          << targets.size() << " targets, " << rate << " dropped";
    }
  }
}

TEST_P(EveryDevice, ContinuesFromKeptKeysAndValues) {
  const auto& [device, type, tolerance] = GetParam();
  const DecoderConfig config = Config(false, 0);
  Parameters parameters =
      *Parameters::Create(config, {.device = torch::Device(device), .compute_type = type});
  parameters.Initialize(7, config.initializer_range);
  const Decoder decoder(config, parameters);
  torch::NoGradGuard no_grad;
  const Tensor ids = SomeIds(2, 20, 64).to(torch::Device(device));
  const Tensor expected = decoder.Logits(ids).select(1, 19).to(torch::kFloat);
  KeyValueCache cache = *decoder.MakeCache({.rows = 3, .positions = 24});
  for (int64_t row = 0; row < 2; ++row) {
    cache.BeginPrompt(row, 17);
    decoder.Keep(ids[row].narrow(0, 0, 17), cache);
  }
  Tensor logits;
  for (int64_t t = 17; t < 20; ++t) {
    cache.BeginStep(2);
    logits = decoder.NextLogits(ids.select(1, t).contiguous(), cache);
  }
  EXPECT_LT((logits.to(torch::kFloat) - expected).norm().item<double>(),
            tolerance * expected.norm().item<double>());
}

// As many as are divided among blocks of threads, of sequences of different lengths; heads of
// several widths, of which one to six share keys.
TEST_P(EveryDevice, ContinuesLongSequencesOfAnyHeads) {
  const auto& [device, type, tolerance] = GetParam();
  for (const auto& [queries, head_dim, window] :
       {std::tuple(1, 64, 0), {3, 128, 0}, {6, 16, 0}, {2, 96, 70}, {4, 256, 0}}) {
    SCOPED_TRACE(testing::Message() << queries << " of " << head_dim << ", window " << window);
    DecoderConfig config = Config(false, window);
    config.layers = 2;
    config.kv_heads = 2;
    config.heads = 2 * queries;
    config.head_dim = head_dim;
    config.max_position_embeddings = 256;
    Parameters parameters =
        *Parameters::Create(config, {.device = torch::Device(device), .compute_type = type});
    parameters.Initialize(7, config.initializer_range);
    const Decoder decoder(config, parameters);
    torch::NoGradGuard no_grad;
    const Tensor ids = SomeIds(3, 200, 64).to(torch::Device(device));
    KeyValueCache cache = *decoder.MakeCache({.rows = 4, .positions = 210});
    const std::vector<int64_t> lengths = {195, 60, 1};
    for (int64_t row = 0; row < 3; ++row) {
      const int64_t length = lengths[static_cast<size_t>(row)];
      cache.BeginPrompt(row, length);
      decoder.Keep(ids[row].narrow(0, 0, length), cache);
    }
    Tensor logits;
    for (int64_t step = 0; step < 3; ++step) {
      std::vector<Tensor> next;
      for (int64_t row = 0; row < 3; ++row) {
        next.push_back(ids[row][lengths[static_cast<size_t>(row)] + step]);
      }
      cache.BeginStep(3);
      logits = decoder.NextLogits(torch::stack(next), cache).to(torch::kFloat);
    }
    for (int64_t row = 0; row < 3; ++row) {
      const int64_t length = lengths[static_cast<size_t>(row)] + 3;
      const Tensor expected =
          decoder.Logits(ids[row].narrow(0, 0, length).unsqueeze(0))[0][length - 1].to(
              torch::kFloat);
      EXPECT_LT((logits[row] - expected).norm().item<double>(),
                tolerance * expected.norm().item<double>())
          << row;
    }
  }
}

// Feed-forward blocks are wider than the norms that CUDA's kernels take, and stay fused.
TEST_P(EveryDevice, TakesFeedForwardBlocksOfAnyWidth) {
  const torch::Device device(GetParam().device);
  EXPECT_TRUE(fused_ops::Apply(torch::empty({1, 8200}, device)) || device.is_mps());
  DecoderConfig config = Config(false, 0);
  config.intermediate_size = 8200;
  ExpectWhatTheCpuGives(config);
}

// Also where the embedding is converted for the residual stream, and its gradient back.
TEST_P(EveryDevice, TellsOfGradientsThatAreFinal) {
  const auto& [device, type, tolerance] = GetParam();
  for (const bool tied : {false, true}) {
    const DecoderConfig config = Config(tied, 0);
    Parameters parameters = *Parameters::Create(
        config, Trained(EmbeddingGradient::kDense, torch::Device(device), type));
    parameters.Initialize(7, config.initializer_range);
    Decoder decoder(config, parameters);
    std::vector<Tensor> seen;
    const PassInputs inputs{.gradients_final = [&](int64_t end) {
      seen.push_back(parameters.flat_gradient().Only().narrow(0, 0, end).clone());
    }};
    const Tensor ids = SomeIds(3, 40, 64);
    decoder.LossSum(ids.to(device), (ids + 1).remainder(64).to(device), {}, inputs).backward();
    ASSERT_FALSE(seen.empty());
    EXPECT_EQ(seen.back().numel(), parameters.elements());
    for (const Tensor& prefix : seen) {
      EXPECT_TRUE(
          torch::equal(prefix, parameters.flat_gradient().Only().narrow(0, 0, prefix.numel())));
    }
  }
}

TEST_P(EveryDevice, PassesItsSelfTest) {
  for (const Architecture architecture : {Architecture::kLlama, Architecture::kGpt2}) {
    const absl::StatusOr<double> difference =
        SelfTest(torch::Device(GetParam().device), GetParam().type, architecture);
    ASSERT_TRUE(difference.ok()) << difference.status();
    EXPECT_EQ(*difference == 0, GetParam().device == "cpu" && GetParam().type == torch::kFloat);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, EveryDevice, testing::ValuesIn(DeviceCases()), NameOfCase);

// No device computes in whole numbers; what is refused says so.
TEST(SelfTest, WhatADeviceCannotIsRefusedByName) {
  const absl::Status refused = SelfTest(torch::kCPU, torch::kInt).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(), "cpu")) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "choose another train.precision")) << refused;
}

}  // namespace
}  // namespace espalier
