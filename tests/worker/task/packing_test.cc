// Examples that share rows have the losses and gradients that they have in rows of their own.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/worker/support/tiny_model.h"
#include "tests/worker/support/training_world.h"
#include "worker/data/packed_table.h"
#include "worker/task/next_token.h"

namespace espalier {
namespace {

struct PassResult {
  double loss = 0;
  torch::Tensor gradient;
};

struct Kind {
  const char* name;
  DecoderConfig config;
  torch::ScalarType type = torch::kFloat;  // fp64 is computed by LibTorch's operators
  bool recompute = false;
  int64_t lora_rank = 0;
  double dropout = 0;
  double tolerance = 1e-5;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

DecoderConfig Small(Architecture architecture = Architecture::kLlama) {
  DecoderConfig config = architecture == Architecture::kGpt2 ? TinyGpt2Config() : TinyModelConfig();
  config.vocab_size = TinyConfig().vocab_size;
  config.initializer_range = 0.1;
  return config;
}

DecoderConfig Windowed(int64_t window) {
  DecoderConfig config = Small();
  config.sliding_window = window;
  return config;
}

DecoderConfig Scaled(RopeScalingConfig::Kind kind) {
  DecoderConfig config = Small();
  config.rope_scaling = RopeScalingConfig{.kind = kind, .factor = 2};
  config.rope_scaling->original_max_position_embeddings = 16;
  return config;
}

std::vector<Kind> Kinds() {
  const DecoderConfig llama = Small(), gpt2 = Small(Architecture::kGpt2);
  DecoderConfig tied = llama;
  tied.tie_word_embeddings = true;
  tied.qk_norm = true;
  return {{.name = "Llama", .config = llama},
          {.name = "TiedNormedHeads", .config = tied},
          {.name = "Gpt2", .config = gpt2},
          {.name = "Window", .config = Windowed(4)},
          {.name = "Yarn", .config = Scaled(RopeScalingConfig::Kind::kYarn)},
          {.name = "Recompute", .config = llama, .recompute = true, .dropout = 0.2},
          {.name = "Dropout", .config = llama, .dropout = 0.3},
          {.name = "Gpt2Dropout", .config = gpt2, .recompute = true, .dropout = 0.3},
          {.name = "Lora", .config = llama, .lora_rank = 4, .dropout = 0.2},
          {.name = "LoraGpt2Recompute", .config = gpt2, .recompute = true, .lora_rank = 4},
          {.name = "Bf16", .config = llama, .type = torch::kBFloat16, .tolerance = 2e-2},
          {.name = "Operators", .config = llama, .type = torch::kDouble},
          {.name = "OperatorsInAWindow", .config = Windowed(4), .type = torch::kDouble},
          {.name = "OperatorsGpt2", .config = gpt2, .type = torch::kDouble, .dropout = 0.2},
          {.name = "OperatorsLora",
           .config = tied,
           .type = torch::kDouble,
           .recompute = true,
           .lora_rank = 4,
           .dropout = 0.2}};
}

class Packing : public testing::TestWithParam<Kind> {
 protected:
  // All rows of the table, `at_once` a pass.
  PassResult Passes(const std::shared_ptr<const SampleTable>& table, int64_t at_once) const {
    const Kind& kind = GetParam();
    Parameters::Options options = Parameters::ForTraining(torch::kCPU, kind.type);
    options.untied_embedding = EmbeddingGradient::kDense;
    if (kind.lora_rank > 0) {
      options.lora = LoraConfig{};
      options.lora->rank = kind.lora_rank;
      options.trained = [](const ParameterShape& shape) { return shape.is_adapter(); };
    }
    Parameters parameters = *Parameters::Create(kind.config, options);
    parameters.Initialize(3, 0.2);
    Stir(parameters);
    Decoder decoder(kind.config, parameters);
    decoder.set_recompute(
        std::vector<bool>(static_cast<size_t>(kind.config.layers), kind.recompute));
    v1::JobSpec spec = TinySpec(1);
    spec.mutable_model()->set_dropout(kind.dropout);
    if (kind.lora_rank > 0) spec.mutable_train()->mutable_lora()->set_dropout(kind.dropout);
    const NextToken task(table);
    std::vector<int64_t> all(static_cast<size_t>(table->size()));
    std::iota(all.begin(), all.end(), 0);
    const Samples samples = *table->Read(all);
    Transfers transfers{torch::kCPU};
    PassResult result;
    for (int64_t row = 0; row < samples.rows(); row += at_once) {
      const SlotRange rows{row, std::min(row + at_once, samples.rows())};
      PassInputs inputs;
      inputs.dropout = MakeDropoutKeys(spec, /*step=*/5, samples, rows, transfers);
      const torch::Tensor loss =
          task.LossSum(decoder, task.Batch(samples, rows, transfers), inputs);
      loss.backward();
      result.loss += loss.item<double>();
    }
    result.gradient = parameters.flat_gradient().Only().to(torch::kDouble);
    return result;
  }

 private:
  // Adapters begin as nothing.
  static void Stir(Parameters& parameters) {
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (const Parameter& parameter : parameters.trained()) {
      if (!parameter.shape.is_adapter()) continue;
      torch::Tensor(parameter.value).copy_(torch::randn(parameter.value.sizes()) * 0.1);
    }
    parameters.RefreshCopy();
  }
};

INSTANTIATE_TEST_SUITE_P(Of, Packing, testing::ValuesIn(Kinds()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Packing, ExamplesInARowHaveTheLossAndTheGradientsThatTheyHaveAlone) {
  const auto examples = TinyExamples(60);
  const auto packed = std::make_shared<const PackedTable>(examples, 1);
  ASSERT_LT(packed->size(), 30);
  const PassResult apart = Passes(examples, 7), together = Passes(packed, 4);
  EXPECT_NEAR(together.loss, apart.loss, GetParam().tolerance * apart.loss);
  EXPECT_LT((together.gradient - apart.gradient).norm().item<double>(),
            GetParam().tolerance * apart.gradient.norm().item<double>());
}

TEST(PackingOfABatch, WhatIsMadeUpIsAsLargeAsWhatIsRead) {
  const NextToken task(std::make_shared<const PackedTable>(TinyExamples(60), 1));
  const Samples samples = *task.training()->Read({0, 1, 2});
  Transfers transfers{torch::kCPU};
  const TokenBatch read = task.Batch(samples, {0, 3}, transfers);
  const TokenBatch made_up = task.MadeUpBatch(3, 32, torch::kCPU);
  EXPECT_EQ(read.shared.begins.sizes(), made_up.shared.begins.sizes());
  EXPECT_LE(read.shared.longest, made_up.shared.longest);
  EXPECT_FALSE(NextToken(TinyExamples(6)).MadeUpBatch(3, 32, torch::kCPU).shared.begins.defined());
}

}  // namespace
}  // namespace espalier
