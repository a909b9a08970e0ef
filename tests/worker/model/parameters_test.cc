// Parameters are views of one allocation, in the order in which backward finishes them, and their
// initial values depend on the seed and their names alone.
#include "worker/model/parameters.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/worker/support/tiny_model.h"

namespace espalier {
namespace {

std::vector<std::string> Names(const DecoderConfig& config) {
  std::vector<std::string> names;
  for (const ParameterShape& shape : ParameterShapes(config)) names.push_back(shape.name);
  return names;
}

TEST(ParameterShapes, RunFromTheHeadToTheEmbedding) {
  DecoderConfig config = TinyModelConfig();
  config.layers = 2;
  const std::vector<std::string> tied = Names(config);
  EXPECT_EQ(tied.front(), "model.embed_tokens.weight") << "it is the head too";
  EXPECT_EQ(tied[1], "model.norm.weight");
  EXPECT_EQ(tied[2], "model.layers.1.mlp.down_proj.weight");
  EXPECT_EQ(tied[11], "model.layers.0.mlp.down_proj.weight");
  config.tie_word_embeddings = false;
  EXPECT_EQ(Names(config).front(), "lm_head.weight");
  EXPECT_EQ(Names(config).back(), "model.embed_tokens.weight");
  EXPECT_EQ(Names(config).size(), tied.size() + 1);
}

TEST(ParameterShapes, OfGpt2HaveTheNamesAndShapesOfItsFiles) {
  DecoderConfig config = TinyGpt2Config();
  config.layers = 1;
  std::vector<std::string> found;
  for (const ParameterShape& shape : ParameterShapes(config)) {
    found.push_back(absl::StrCat(shape.name, " ", absl::StrJoin(shape.shape, "x")));
  }
  EXPECT_EQ(found,
            (std::vector<std::string>{
                "transformer.wte.weight 23x16", "transformer.ln_f.bias 16",
                "transformer.ln_f.weight 16", "transformer.h.0.mlp.c_proj.bias 16",
                "transformer.h.0.mlp.c_proj.weight 24x16", "transformer.h.0.mlp.c_fc.bias 24",
                "transformer.h.0.mlp.c_fc.weight 16x24", "transformer.h.0.ln_2.bias 16",
                "transformer.h.0.ln_2.weight 16", "transformer.h.0.attn.c_proj.bias 16",
                "transformer.h.0.attn.c_proj.weight 16x16", "transformer.h.0.attn.c_attn.bias 48",
                "transformer.h.0.attn.c_attn.weight 16x48", "transformer.h.0.ln_1.bias 16",
                "transformer.h.0.ln_1.weight 16", "transformer.wpe.weight 64x16"}));
  config.tie_word_embeddings = false;
  EXPECT_EQ(Names(config).front(), "lm_head.weight");
  EXPECT_EQ(Names(config).back(), "transformer.wte.weight");
}

TEST(ParameterShapes, CountsOfThePresetsAreTheKnownOnes) {
  for (const auto& [preset, known] : {std::pair{"1b", 1105815552}, {"gpt2", 124439808}}) {
    v1::ModelSpec spec;
    spec.set_preset(preset);
    int64_t elements = 0;
    for (const ParameterShape& shape : ParameterShapes(*DecoderConfigFromSpec(spec, 257))) {
      elements += shape.elements();
    }
    EXPECT_EQ(elements, known) << preset;
  }
}

TEST(ParameterShapes, OnlyMatricesDecay) {
  DecoderConfig config = TinyModelConfig();
  config.qk_norm = config.attention_bias = config.output_bias = true;
  for (const ParameterShape& shape : ParameterShapes(config)) {
    EXPECT_EQ(shape.decay, shape.shape.size() == 2) << shape.name;
  }
}

TEST(Parameters, ValuesAndGradientsAreViewsOfTheFlatBuffers) {
  TinyModel model(TinyModelConfig());
  Parameters& parameters = model.parameters;
  int64_t offset = 0;
  for (const Parameter& parameter : parameters.all()) {
    EXPECT_EQ(parameter.offset, offset) << parameter.shape.name;
    EXPECT_EQ(parameter.value.data_ptr<float>(),
              parameters.flat().Only().data_ptr<float>() + offset);
    EXPECT_EQ(parameter.leaf.grad().data_ptr<float>(),
              parameters.flat_gradient().Only().data_ptr<float>() + offset);
    EXPECT_TRUE(parameter.leaf.is_leaf() && parameter.leaf.requires_grad());
    offset += parameter.size;
  }
  EXPECT_EQ(offset, parameters.elements());
}

TEST(Parameters, TheCopyForComputingFollowsTheValuesAndGradientsStayFp32) {
  TinyModel model(TinyModelConfig(), torch::kBFloat16);
  Parameters& parameters = model.parameters;
  parameters.flat().Only().mul_(3);
  parameters.RefreshCopy();
  for (const Parameter& parameter : parameters.all()) {
    EXPECT_TRUE(
        torch::equal(parameter.leaf.to(torch::kBFloat16), parameter.value.to(torch::kBFloat16)));
    EXPECT_EQ(parameter.leaf.grad().scalar_type(), torch::kFloat);
  }
}

TEST(Parameters, AnUntiedEmbeddingHasNoCopyThatNobodyReads) {
  for (const bool tied : {false, true}) {
    DecoderConfig config = TinyModelConfig();
    config.tie_word_embeddings = tied;
    TinyModel model(config, torch::kBFloat16);
    Parameters& parameters = model.parameters;
    const int64_t table = parameters.Find("model.embed_tokens.weight")->size;
    const int64_t norm = config.hidden_size;  // in full too, before the embedding
    EXPECT_EQ(parameters.flat_copy().numel(), parameters.elements() - norm - (tied ? 0 : table));
    EXPECT_EQ(parameters.Head().scalar_type(), torch::kBFloat16);
  }
}

// Beside 1, numbers of bfloat16 are a hundredth apart: a norm's weight would hardly move.
TEST(Parameters, OnlyWhatMatricesAreMultipliedWithIsNarrow) {
  for (const bool tied : {false, true}) {
    DecoderConfig config = TinyModelConfig();
    config.tie_word_embeddings = tied;
    config.attention_bias = config.qk_norm = true;
    const TinyModel model(config, torch::kBFloat16);
    for (const Parameter& parameter : model.parameters.all()) {
      const bool full = absl::StrContains(parameter.shape.name, "norm") ||
                        absl::StrContains(parameter.shape.name, "embed");
      EXPECT_EQ(parameter.leaf.scalar_type(), full ? torch::kFloat : torch::kBFloat16)
          << parameter.shape.name;
    }
    EXPECT_EQ(model.parameters.Head().scalar_type(), torch::kBFloat16);
    EXPECT_EQ(model.parameters.Head().grad().scalar_type(), torch::kFloat);
  }
}

TEST(Parameters, OfGpt2NormsAndPositionsAreInFullToo) {
  const TinyModel model(TinyGpt2Config(), torch::kBFloat16);
  for (const Parameter& parameter : model.parameters.all()) {
    const std::string& name = parameter.shape.name;
    const bool full = absl::StrContains(name, "ln_") || absl::StrContains(name, "wpe") ||
                      absl::StrContains(name, "wte");
    EXPECT_EQ(parameter.leaf.scalar_type(), full ? torch::kFloat : torch::kBFloat16) << name;
  }
}

TEST(Parameters, NoGradientsWhereNoneAreWanted) {
  const auto parameters = Parameters::Create(TinyModelConfig(), {.device = torch::kCPU});
  ASSERT_TRUE(parameters.ok());
  for (const Parameter& parameter : parameters->all()) {
    EXPECT_FALSE(parameter.leaf.requires_grad());
  }
}

TEST(Parameters, ImpossibleSizeIsAnErrorThatNamesTheBytes) {
  DecoderConfig config = TinyModelConfig();
  config.vocab_size = 1 << 22;
  config.hidden_size = 1 << 16;
  config.layers = 1 << 10;
  config.intermediate_size = 1 << 20;
  const auto parameters = Parameters::Create(config, {.device = torch::kCPU});
  EXPECT_EQ(parameters.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(parameters.status().message().find("bytes for"), std::string::npos)
      << parameters.status();
}

torch::Tensor InitialValues(uint64_t seed, int threads) {
  const int before = torch::get_num_threads();
  torch::set_num_threads(threads);
  DecoderConfig config = TinyModelConfig();
  config.vocab_size = 3000;  // several random streams in one tensor
  auto parameters = *Parameters::Create(config, Trained(EmbeddingGradient::kDense));
  parameters.Initialize(seed, 0.02);
  torch::set_num_threads(before);
  return parameters.flat().Only().clone();
}

TEST(Parameters, InitialValuesDoNotDependOnTheThreadCount) {
  EXPECT_TRUE(torch::equal(InitialValues(1, 1), InitialValues(1, 2)));
  EXPECT_FALSE(torch::equal(InitialValues(1, 1), InitialValues(2, 1)));
}

// These very numbers are part of every run that names a seed.
TEST(Parameters, InitialValuesStayWhatTheyAre) {
  const TinyModel model(TinyModelConfig());
  const torch::Tensor embedding = model.parameters.Get("model.embed_tokens.weight");
  EXPECT_FLOAT_EQ(embedding[0][0].item<float>(), 0.17529316F);
  EXPECT_FLOAT_EQ(embedding[22][15].item<float>(), -0.19228248F);
}

TEST(Parameters, InitialValuesAreNormalAndNormsAreOne) {
  DecoderConfig config = TinyModelConfig();
  config.vocab_size = 20000;
  config.attention_bias = true;
  auto parameters = *Parameters::Create(config, {.device = torch::kCPU});
  parameters.Initialize(3, 0.02);
  const torch::Tensor z = parameters.Get("model.embed_tokens.weight") / 0.02;
  EXPECT_NEAR(z.mean().item<double>(), 0, 0.01);
  EXPECT_NEAR(z.std().item<double>(), 1, 0.01);
  EXPECT_NEAR(z.pow(4).mean().item<double>(), 3, 0.1);
  EXPECT_NEAR((z.abs() > 1.959964).to(torch::kDouble).mean().item<double>(), 0.05, 0.002);
  EXPECT_TRUE(parameters.Get("model.layers.1.input_layernorm.weight").eq(1).all().item<bool>());
  EXPECT_TRUE(parameters.Get("model.layers.1.self_attn.q_proj.bias").eq(0).all().item<bool>());
}

TEST(Parameters, OfGpt2WhatAddsToTheResidualStreamBeginsSmaller) {
  DecoderConfig config = TinyGpt2Config();
  config.hidden_size = 256;
  config.head_dim = 64;
  config.layers = 8;
  auto parameters = *Parameters::Create(config, {.device = torch::kCPU});
  parameters.Initialize(3, 0.02);
  const auto deviation = [&](const char* name) {
    return parameters.Get(absl::StrCat("transformer.", name)).std().item<double>();
  };
  EXPECT_NEAR(deviation("h.3.attn.c_attn.weight"), 0.02, 2e-4);
  EXPECT_NEAR(deviation("wpe.weight"), 0.02, 4e-4);
  EXPECT_NEAR(deviation("h.3.attn.c_proj.weight"), 0.005, 1e-4);
  EXPECT_NEAR(deviation("h.3.mlp.c_proj.weight"), 0.005, 2e-4);
  EXPECT_TRUE(parameters.Get("transformer.ln_f.weight").eq(1).all().item<bool>());
  EXPECT_TRUE(parameters.Get("transformer.ln_f.bias").eq(0).all().item<bool>());
}

}  // namespace
}  // namespace espalier
