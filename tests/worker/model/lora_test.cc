// Adapters: how many parameters they are, where they begin, and that the model computes
// W x + scale B A x, whatever the path.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "tests/worker/support/tiny_model.h"
#include "worker/model/adapter_files.h"
#include "worker/model/parameter_shapes.h"
#include "worker/ops/dropout.h"

namespace espalier {
namespace {

using torch::Tensor;

DecoderConfig Shape(int64_t hidden, int64_t inner, int64_t layers, int64_t heads, int64_t kv,
                    int64_t head_dim) {
  DecoderConfig config;
  config.vocab_size = 1000;
  config.hidden_size = hidden;
  config.intermediate_size = inner;
  config.layers = layers;
  config.heads = heads;
  config.kv_heads = kv;
  config.head_dim = head_dim;
  return config;
}

Parameters::Options WithAdapters(const LoraConfig& lora, torch::ScalarType type = torch::kFloat,
                                 torch::Device device = torch::kCPU) {
  Parameters::Options options = Parameters::ForTraining(device, type);
  options.lora = lora;
  options.trained = [](const ParameterShape& shape) { return shape.is_adapter(); };
  return options;
}

LoraConfig Lora(int64_t rank, std::vector<std::string> targets = {}) {
  LoraConfig lora;
  lora.rank = rank;
  lora.alpha = 3 * static_cast<double>(rank);
  lora.targets = std::move(targets);
  return lora;
}

TEST(LoraShapes, CountsAreThoseOfPeft) {
  const DecoderConfig llama = Shape(3072, 8192, 28, 24, 8, 128);
  const DecoderConfig smollm = Shape(960, 2560, 32, 15, 5, 64);
  const auto trained = [](const DecoderConfig& config, const LoraConfig& lora) {
    return Parameters::SizeOf(config, WithAdapters(lora)).trained_elements;
  };
  EXPECT_EQ(trained(llama, Lora(16)), 24'313'856);
  EXPECT_EQ(trained(llama, Lora(16, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                                     "down_proj"})),
            24'313'856);
  EXPECT_EQ(trained(smollm, Lora(16)), 8'683'520);
  EXPECT_EQ(trained(smollm, Lora(4)), 2'170'880);
  EXPECT_EQ(trained(smollm, Lora(4, {"mlp.up_proj"})), 32 * 4 * (960 + 2560));
}

TEST(LoraShapes, HaveTheNamesOfPeftAndTheStagesOfTheirProjections) {
  std::map<std::string, ParameterShape> shapes;
  for (const ParameterShape& shape : ParameterShapes(TinyModelConfig(), Lora(2))) {
    shapes[shape.name] = shape;
  }
  const ParameterShape& a = shapes.at("base_model.model.model.layers.1.mlp.up_proj.lora_A.weight");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 16}));
  EXPECT_EQ(a.stage, BackwardStage::kFeedForward);
  const ParameterShape& b =
      shapes.at("base_model.model.model.layers.2.self_attn.k_proj.lora_B.weight");
  EXPECT_EQ(b.shape, (std::vector<int64_t>{12, 2}));
  EXPECT_EQ(b.stage, BackwardStage::kAttention);
}

TEST(LoraShapes, OfGpt2AreOfTheProjectionAsItComputes) {
  for (const ParameterShape& shape : ParameterShapes(TinyGpt2Config(), Lora(2, {"c_attn"}))) {
    if (!shape.is_adapter()) continue;
    const bool a = shape.role == ParameterRole::kAdapterA;
    EXPECT_EQ(shape.shape, a ? (std::vector<int64_t>{2, 16}) : (std::vector<int64_t>{48, 2}));
  }
}

TEST(LoraShapes, ATargetThatIsNoProjectionIsRefusedWithThoseThatAre) {
  for (const char* target : {"proj", "lm_head", "q_proj.weight", "embed_tokens"}) {
    const absl::Status status = CheckLoraTargets(TinyModelConfig(), Lora(2, {"q_proj", target}));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), "mlp.up_proj, self_attn.k_proj")) << status;
  }
  EXPECT_TRUE(CheckLoraTargets(TinyModelConfig(), Lora(2, {"q_proj", "mlp.up_proj"})).ok());
}

TEST(LoraShapes, OfAListOfPeftOneTargetIsEnough) {
  const auto check = [](std::vector<std::string> targets) {
    return CheckLoraTargets(TinyModelConfig(), Lora(2, std::move(targets)),
                            LoraTargetsFound::kSome);
  };
  EXPECT_TRUE(check({"q_proj", "v_proj", "query_key_value"}).ok());
  EXPECT_TRUE(check({}).ok()) << "all of them";
  EXPECT_TRUE(absl::IsInvalidArgument(check({"c_attn", "query_key_value"})));
}

// A key matches if it is the target, or ends with "." and the target.
TEST(LoraShapes, OfPeftATargetMayNameALayer) {
  for (const char* target : {"model.layers.0.self_attn.q_proj", "layers.0.self_attn.q_proj"}) {
    const LoraConfig lora = Lora(2, {target});
    for (const LoraTargetsFound wanted : {LoraTargetsFound::kSome, LoraTargetsFound::kAll}) {
      const absl::Status status = CheckLoraTargets(TinyModelConfig(), lora, wanted);
      EXPECT_TRUE(status.ok()) << status;
    }
    std::vector<std::string> names;
    for (const ParameterShape& shape : ParameterShapes(TinyModelConfig(), lora)) {
      if (shape.is_adapter()) names.push_back(shape.name);
    }
    const std::string adapter = "base_model.model.model.layers.0.self_attn.q_proj.lora_";
    EXPECT_EQ(names, (std::vector<std::string>{adapter + "B.weight", adapter + "A.weight"}));
  }
  for (const char* target : {"model.layers.9.self_attn.q_proj", "s.0.self_attn.q_proj"}) {
    const absl::Status status = CheckLoraTargets(TinyModelConfig(), Lora(2, {target}));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << target;
  }
}

TEST(LoraShapes, AreOneTextWhereAdaptersComputeTheSame) {
  const DecoderConfig config = TinyModelConfig();
  const auto text = [&](const LoraConfig& lora) { return AdaptersText(config, lora); };
  EXPECT_EQ(text(Lora(4, {"q_proj", "v_proj"})), text(Lora(4, {"v_proj", "self_attn.q_proj"})));
  EXPECT_NE(text(Lora(4, {"q_proj"})), text(Lora(4, {"v_proj"})));
  EXPECT_NE(text(Lora(4)), text(Lora(5)));
  LoraConfig louder = Lora(4);
  louder.alpha *= 1.5;
  EXPECT_NE(text(Lora(4)), text(louder));
  EXPECT_EQ(AdaptersText(config, std::nullopt), "");
}

TEST(Lora, BeginsAsNothingAndAsAFunctionOfTheSeedAndTheName) {
  TinyModel model(TinyModelConfig(), WithAdapters(Lora(4)));
  TinyModel fewer(TinyModelConfig(), WithAdapters(Lora(4, {"v_proj"})));
  TinyModel without(TinyModelConfig());
  const std::string v = "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight";
  EXPECT_TRUE(torch::equal(model.parameters.Get(v), fewer.parameters.Get(v)));
  for (const Parameter& parameter : model.parameters.trained()) {
    if (parameter.shape.role == ParameterRole::kAdapterB) {
      EXPECT_EQ(parameter.value.abs().max().item<float>(), 0) << parameter.shape.name;
    } else {
      const double bound = 1 / std::sqrt(static_cast<double>(parameter.shape.shape[1]));
      EXPECT_LE(parameter.value.abs().max().item<double>(), bound);
      EXPECT_GT(parameter.value.abs().max().item<double>(), 0.8 * bound);
    }
  }
  const Tensor ids = SomeIds(2, 9, 23);
  EXPECT_TRUE(torch::equal(model.decoder->Logits(ids), without.decoder->Logits(ids)));
}

TEST(Lora, AddsNothingBeforeAnybodyFillsIt) {
  for (const bool trained : {true, false}) {
    Parameters::Options options = WithAdapters(Lora(4), torch::kBFloat16);
    if (!trained) options.trained = {};
    for (int time = 0; time < 2; ++time) {  // the second in memory of the first
      torch::NoGradGuard no_grad;
      Parameters parameters = *Parameters::Create(TinyModelConfig(), options);
      for (const Parameter& parameter : parameters.all()) {
        if (parameter.shape.is_adapter()) {
          EXPECT_TRUE(parameter.value.eq(0).all().item<bool>()) << parameter.shape.name;
          EXPECT_TRUE(parameter.leaf.eq(0).all().item<bool>()) << parameter.shape.name;
        }
        for (const Tensor& values : {parameter.value, parameter.leaf}) {
          Tensor(values).fill_(std::nan(""));
        }
      }
    }
  }
}

// Adapters that add something.
void Stir(Parameters& parameters) {
  torch::NoGradGuard no_grad;
  for (const Parameter& parameter : parameters.trained()) {
    Tensor(parameter.value).normal_(0, 0.2);
  }
  parameters.RefreshCopy();
}

// A model whose weights are W + scale B A.
TinyModel Merged(const DecoderConfig& config, const Parameters& adapted) {
  torch::NoGradGuard no_grad;
  TinyModel merged(config);
  for (const Parameter& parameter : merged.parameters.all()) {
    Tensor value = parameter.value;
    value.copy_(adapted.Get(parameter.shape.name));
    const std::string name(absl::StripSuffix(parameter.shape.name, ".weight"));
    const Tensor a = adapted.Get(AdapterName(name, ParameterRole::kAdapterA));
    if (!a.defined()) continue;
    const Tensor b = adapted.Get(AdapterName(name, ParameterRole::kAdapterB));
    const Tensor added = b.mm(a) * adapted.lora()->scale();
    value.add_(config.architecture == Architecture::kGpt2 ? added.t() : added);
  }
  return merged;
}

std::vector<DecoderConfig> Configs() {
  DecoderConfig biased = TinyModelConfig();
  biased.attention_bias = true;
  DecoderConfig untied = TinyModelConfig();
  untied.tie_word_embeddings = false;
  untied.qk_norm = true;
  return {TinyModelConfig(), biased, untied, TinyGpt2Config()};
}

TEST(Lora, ComputesWhatMergedWeightsDo) {
  for (const DecoderConfig& config : Configs()) {
    LoraConfig lora = Lora(4);
    for (const bool rslora : {false, true}) {
      lora.rslora = rslora;
      TinyModel model(config, WithAdapters(lora));
      Stir(model.parameters);
      const TinyModel merged = Merged(config, model.parameters);
      const Tensor ids = SomeIds(2, 9, 23);
      EXPECT_LT(LargestDifference(model.decoder->Logits(ids), merged.decoder->Logits(ids)), 1e-4);
      KeyValueCache cache = *model.decoder->MakeCache({.rows = 1, .positions = 9});
      cache.BeginPrompt(0, 8);
      model.decoder->Keep(ids[0].narrow(0, 0, 8), cache);
      cache.BeginStep(1);
      EXPECT_LT(LargestDifference(model.decoder->NextLogits(ids[0].narrow(0, 8, 1), cache)[0],
                                  merged.decoder->Logits(ids)[0][8]),
                1e-4);
    }
  }
}

// What a policy is compared with, in a pass beside its own.
TEST(Lora, APassCanLeaveThemOut) {
  for (const DecoderConfig& config : Configs()) {
    TinyModel model(config, WithAdapters(Lora(4)));
    const Tensor ids = SomeIds(2, 9, 23), targets = (ids + 1).remainder(23);
    const Tensor before = model.decoder->TargetLogProbabilities(ids, targets);
    Stir(model.parameters);
    PassInputs without;
    without.adapters = false;
    const Tensor left_out =
        model.decoder->TargetLogProbabilities(ids, targets, /*temperature=*/1, without);
    EXPECT_LT(LargestDifference(left_out, before), 1e-5);
    EXPECT_GT(LargestDifference(model.decoder->TargetLogProbabilities(ids, targets), before), 0.01);
  }
}

// Of the merged weight G = dL/dW: dL/dB = scale G A', dL/dA = scale B' G.
double Largest(const Tensor& x) { return std::max(1.0, x.abs().max().item<double>()); }

TEST(Lora, GradientsFollowFromThoseOfTheMergedWeights) {
  for (const DecoderConfig& config : Configs()) {
    for (const bool recompute : {false, true}) {
      TinyModel model(config, WithAdapters(Lora(4)));
      model.decoder->set_recompute(std::vector<bool>(config.layers, recompute));
      Stir(model.parameters);
      const TinyModel merged = Merged(config, model.parameters);
      const Tensor ids = SomeIds(2, 9, 23), targets = (ids + 1).remainder(23);
      model.decoder->LossSum(ids, targets).backward();
      merged.decoder->LossSum(ids, targets).backward();
      for (const Parameter& parameter : model.parameters.all()) {
        if (parameter.trained) continue;
        EXPECT_FALSE(parameter.leaf.grad().defined()) << parameter.shape.name;
        const std::string name(absl::StripSuffix(parameter.shape.name, ".weight"));
        const Parameter* a = model.parameters.Find(AdapterName(name, ParameterRole::kAdapterA));
        if (a == nullptr) continue;
        const Parameter* b = model.parameters.Find(AdapterName(name, ParameterRole::kAdapterB));
        Tensor whole = merged.parameters.Find(parameter.shape.name)->leaf.grad();
        if (config.architecture == Architecture::kGpt2) whole = whole.t();
        const double scale = model.parameters.lora()->scale();
        const Tensor of_b = whole.mm(a->value.t()) * scale, of_a = b->value.t().mm(whole) * scale;
        EXPECT_LT(LargestDifference(b->leaf.grad(), of_b), 1e-4 * Largest(of_b));
        EXPECT_LT(LargestDifference(a->leaf.grad(), of_a), 1e-4 * Largest(of_a));
      }
    }
  }
}

// The generic path joins neighbours; in double precision on the processor it is the one that runs.
TEST(Lora, TheOperatorsOfOtherDevicesComputeTheSame) {
  for (const DecoderConfig& config : Configs()) {
    TinyModel model(config, WithAdapters(Lora(4)));
    TinyModel wide(config, WithAdapters(Lora(4), torch::kDouble));
    Stir(model.parameters);
    for (const Parameter& parameter : wide.parameters.all()) {
      torch::NoGradGuard no_grad;
      Tensor(parameter.value).copy_(model.parameters.Get(parameter.shape.name));
    }
    wide.parameters.RefreshCopy();
    const Tensor ids = SomeIds(2, 9, 23), targets = (ids + 1).remainder(23);
    PassInputs inputs;
    inputs.dropout = {.rate = 0, .of_row = torch::tensor({5, 9}), .adapter_rate = 0.4};
    const Tensor loss = model.decoder->LossSum(ids, targets, {}, inputs);
    const Tensor same = wide.decoder->LossSum(ids, targets, {}, inputs);
    EXPECT_NEAR(loss.item<double>(), same.item<double>(), 1e-3);
    EXPECT_NE(loss.item<double>(), model.decoder->LossSum(ids, targets).item<double>());
    loss.backward();
    same.backward();
    const Tensor gradient = wide.parameters.flat_gradient().Only();
    EXPECT_LT(LargestDifference(model.parameters.flat_gradient().Only(), gradient),
              1e-4 * Largest(gradient));
  }
}

TEST(Lora, StagesOfFinalGradientsAreRight) {
  TinyModel model(TinyModelConfig(), WithAdapters(Lora(2)));
  Stir(model.parameters);
  const Tensor ids = SomeIds(2, 9, 23), targets = (ids + 1).remainder(23);
  model.decoder->LossSum(ids, targets).backward();
  const Tensor whole = model.parameters.flat_gradient().Only().clone();
  model.parameters.ZeroGradients();
  int64_t last = 0;
  PassInputs inputs;
  inputs.gradients_final = [&](int64_t end) {
    EXPECT_GE(end, last);
    const Tensor now = model.parameters.flat_gradient().Only();
    EXPECT_TRUE(torch::equal(now.narrow(0, 0, end), whole.narrow(0, 0, end))) << end;
    last = end;
  };
  model.decoder->LossSum(ids, targets, {}, inputs).backward();
  EXPECT_GT(last, model.parameters.trained_elements() / 2);
}

}  // namespace
}  // namespace espalier
