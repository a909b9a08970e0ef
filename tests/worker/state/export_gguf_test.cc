// A GGUF file holds the model's values where llama.cpp looks for them, in the types that were asked
// for, and says what llama.cpp needs to compute the same; what it cannot compute is refused.
// tests/reference_models/compare_with_llama_cpp.py asks llama.cpp itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "tests/worker/support/gguf_file.h"
#include "tests/worker/support/test_folder.h"
#include "worker/model/adapter_files.h"
#include "worker/model/pretrained.h"
#include "worker/state/export_model.h"
#include "worker/state/gguf_model.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;

const std::string kModels = ESPALIER_SOURCE_DIR "/tests/data/models/";

GgufFile Exported(const std::string& from, std::optional<GgufType> type = std::nullopt) {
  const TestFolder folder;
  const std::string to = folder / "model.gguf";
  const auto exported = ExportGguf({from, to, type});
  EXPECT_TRUE(exported.ok()) << exported.status();
  auto parsed = GgufFile::Parse(PosixFileSystem().Read(to, 1 << 24).value_or(""));
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *std::move(parsed);
}

// Row-major, in fp32.
Tensor ValueOf(const GgufFile& file, const std::string& name) {
  const GgufFile::Tensor& tensor = file.tensor(name);
  const std::vector<int64_t> shape(tensor.dimensions.rbegin(), tensor.dimensions.rend());
  const auto type = tensor.type == GgufType::kF32   ? torch::kFloat
                    : tensor.type == GgufType::kF16 ? torch::kHalf
                                                    : torch::kBFloat16;
  return torch::from_blob(const_cast<char*>(tensor.bytes.data()), shape, type)
      .clone()
      .to(torch::kFloat);
}

// Of row `row` of a projection of llama's there, the row here: its pairs lie side by side.
int64_t RowHere(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, at = row % head_dim;
  return head * head_dim + at % 2 * (head_dim / 2) + at / 2;
}

void ExpectValues(const std::string& name, const std::string& family) {
  const GgufFile file = Exported(kModels + name);
  EXPECT_EQ(file.Fact<std::string>("general.architecture"), family);
  const auto model = LoadPretrained(kModels + name, {});
  ASSERT_TRUE(model.ok()) << model.status();
  const bool llama3 = model->config.rope_scaling.has_value() && name != "llama-yarn";
  EXPECT_EQ(file.names().size(), model->parameters.all().size() + (llama3 ? 1 : 0));
  for (const Parameter& parameter : model->parameters.all()) {
    const std::string& here = parameter.shape.name;
    Tensor there = ValueOf(file, GgufTensorName(here));
    if (family == "gpt2" && parameter.shape.role == ParameterRole::kMatrix) there = there.t();
    const Tensor value = parameter.value.to(torch::kFloat);
    const bool turned = absl::StrContains(here, "q_proj") || absl::StrContains(here, "k_proj");
    if (family != "llama" || !turned) {
      EXPECT_TRUE(torch::equal(there, value)) << here;
      continue;
    }
    for (int64_t row = 0; row < value.size(0); ++row) {
      EXPECT_TRUE(torch::equal(there[row], value[RowHere(row, model->config.head_dim)])) << here;
    }
  }
}

TEST(ExportGguf, ValuesAreThoseOfTheModelWhereLlamaCppLooksForThem) {
  ExpectValues("llama-tiny", "llama");
  ExpectValues("llama32-tiny", "llama");
  ExpectValues("llama-all-biases", "llama");
  ExpectValues("llama-bf16", "llama");
  ExpectValues("mistral-window", "llama");
  ExpectValues("qwen2-tiny", "qwen2");
  ExpectValues("qwen3-tiny", "qwen3");
  ExpectValues("gpt2-tiny", "gpt2");
}

TEST(ExportGguf, NamesAreLlamaCpps) {
  EXPECT_EQ(GgufTensorName("model.layers.12.self_attn.q_proj.bias"), "blk.12.attn_q.bias");
  EXPECT_EQ(GgufTensorName("model.layers.0.post_attention_layernorm.weight"),
            "blk.0.ffn_norm.weight");
  EXPECT_EQ(GgufTensorName("lm_head.weight"), "output.weight");
  EXPECT_EQ(GgufTensorName("transformer.h.3.mlp.c_proj.weight"), "blk.3.ffn_down.weight");
  EXPECT_EQ(GgufTensorName("transformer.ln_f.bias"), "output_norm.bias");
}

TEST(ExportGguf, FactsSayWhatTheModelIs) {
  const GgufFile file = Exported(kModels + "llama32-tiny");
  const std::pair<const char*, uint32_t> integers[] = {
      {"block_count", 3},           {"embedding_length", 64},     {"attention.head_count", 4},
      {"attention.key_length", 32}, {"rope.dimension_count", 32}, {"vocab_size", 768}};
  for (const auto& [name, value] : integers) {
    EXPECT_EQ(file.Fact<uint32_t>(absl::StrCat("llama.", name)), value) << name;
  }
  EXPECT_EQ(file.Fact<float>("llama.rope.freq_base"), 500000.0F);
  EXPECT_EQ(file.Fact<std::string>("general.name"), "model");
  EXPECT_EQ(file.Fact<std::string>("tokenizer.ggml.model"), "none") << "there is none beside it";
  EXPECT_EQ(Exported(kModels + "quickstart").Fact<std::string>("tokenizer.ggml.model"), "gpt2");
  const GgufFile gpt2 = Exported(kModels + "gpt2-tiny");
  EXPECT_EQ(gpt2.facts().count("gpt2.rope.freq_base"), 0U);
  EXPECT_GT(gpt2.Fact<float>("gpt2.attention.layer_norm_epsilon"), 0);
}

TEST(ExportGguf, TypesAreOfMatricesAlone) {
  const std::pair<GgufType, uint32_t> types[] = {
      {GgufType::kF32, 0}, {GgufType::kF16, 1}, {GgufType::kQ8_0, 7}, {GgufType::kBF16, 32}};
  for (const auto& [type, number] : types) {
    const GgufFile file = Exported(kModels + "gpt2-tiny", type);
    EXPECT_EQ(file.Fact<uint32_t>("general.file_type"), number);
    for (const std::string& name : file.names()) {
      const bool full = file.tensor(name).dimensions.size() == 1 || name == "position_embd.weight";
      EXPECT_EQ(file.tensor(name).type, full ? GgufType::kF32 : type) << name;
    }
  }
  EXPECT_EQ(Exported(kModels + "llama-bf16").tensor("blk.0.attn_q.weight").type, GgufType::kBF16)
      << "that of its files";
}

// Of each block of 32 elements: a scale and signed bytes.
TEST(ExportGguf, Q8IsTheNearestOfItsBlock) {
  const GgufFile file = Exported(kModels + "qwen2-tiny", GgufType::kQ8_0);
  const Tensor value = ValueOf(Exported(kModels + "qwen2-tiny"), "blk.0.attn_v.weight").flatten();
  const std::string& bytes = file.tensor("blk.0.attn_v.weight").bytes;
  ASSERT_EQ(bytes.size(), value.numel() / 32 * 34);
  for (int64_t i = 0; i < value.numel(); ++i) {
    const char* const block = bytes.data() + i / 32 * 34;
    at::Half scale;
    std::memcpy(&scale, block, sizeof(scale));
    const float largest = value.narrow(0, i / 32 * 32, 32).abs().max().item<float>();
    EXPECT_NEAR(scale, largest / 127, largest / 127 * 1e-3);
    const float there = scale * static_cast<int8_t>(block[2 + i % 32]);
    EXPECT_NEAR(there, value[i].item<float>(), largest / 127 * 0.57) << i;
  }
}

TEST(ExportGguf, RowsThatAreNoWholeBlocksAreHalf) {
  const GgufFile file = Exported(kModels + "llama-all-biases", GgufType::kQ8_0);
  for (const std::string& name : file.names()) {
    const auto& dimensions = file.tensor(name).dimensions;
    if (dimensions.size() < 2) continue;
    EXPECT_EQ(file.tensor(name).type, dimensions[0] % 32 == 0 ? GgufType::kQ8_0 : GgufType::kF16)
        << name;
  }
}

TEST(ExportGguf, Llama3sScalingIsATensor) {
  const GgufFile file = Exported(kModels + "llama32-tiny", GgufType::kF16);
  const Tensor factors = ValueOf(file, "rope_freqs.weight");
  const auto config = *ReadModelConfig(kModels + "llama32-tiny");
  const auto& scaling = *config.rope_scaling;
  ASSERT_EQ(factors.numel(), config.head_dim / 2);
  for (int64_t i = 0; i < factors.numel(); ++i) {
    const double wavelength =
        2 * M_PI * std::pow(config.rope_theta, 2.0 * static_cast<double>(i) / config.head_dim);
    const double turns = scaling.original_max_position_embeddings / wavelength;
    const double smooth =
        (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
    const double kept = std::min(std::max(smooth, 0.0), 1.0);
    EXPECT_NEAR(factors[i].item<double>(), 1 / ((1 - kept) / scaling.factor + kept), 1e-4) << i;
  }
}

TEST(ExportGguf, AdaptersAreMerged) {
  const TestFolder folder;
  for (const auto& [file, from] : std::map<std::string, std::string>{
           {"config.json", "config.json"},
           {"adapter_config.json", "adapter/adapter_config.json"},
           {"adapter_model.safetensors", "adapter/adapter_model.safetensors"}}) {
    folder.Write(file, *PosixFileSystem().Read(kModels + "qwen2-tiny/" + from, 1 << 24));
  }
  folder.Write("base.json", absl::StrCat("{\"model\": \"", kModels, "qwen2-tiny\"}"));
  const auto model = LoadPretrained(folder.path(), {});
  ASSERT_TRUE(model.ok() && model->parameters.lora()) << model.status();
  const GgufFile file = Exported(folder.path());
  EXPECT_EQ(file.Fact<std::string>("general.base_model.0.name"), "qwen2-tiny");
  const Parameter& up = *model->parameters.Find("model.layers.1.mlp.up_proj.weight");
  const Tensor there = ValueOf(file, "blk.1.ffn_up.weight");
  EXPECT_TRUE(torch::equal(there, MergedValue(model->config, model->parameters, up)));
  EXPECT_FALSE(torch::equal(there, up.value)) << "the adapter does nothing";
}

// The data may have been prepared with another one than the base has.
TEST(ExportGguf, TheVocabularyIsTheOneThatTrained) {
  const TestFolder folder;
  const std::string model = kModels + "qwen2-tiny/";
  for (const char* name : {"config.json", "model.safetensors"}) {
    folder.Write(absl::StrCat("base/", name), ReadText(model + name));
  }
  folder.Write("base/tokenizer.json",
               ReadText(ESPALIER_SOURCE_DIR "/tests/data/tokenizers/qwen2-tiny/tokenizer.json"));
  folder.Write("from/config.json", ReadText(model + "config.json"));
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    folder.Write(absl::StrCat("from/", name), ReadText(absl::StrCat(model, "adapter/", name)));
  }
  folder.Write("from/base.json", absl::StrCat("{\"model\": \"", folder / "base", "\"}"));
  const auto end = [](const GgufFile& file) {
    return file.Fact<uint32_t>("tokenizer.ggml.eos_token_id");
  };
  EXPECT_NE(end(Exported(folder / "from")), 256U) << "the base's where there is no other";
  folder.Write("from/tokenizer.json", MakeByteTokenizer()->Json());
  EXPECT_EQ(end(Exported(folder / "from")), 256U);
}

std::map<std::string, GgufValue> FactsOf(const GgufDecoder& decoder) {
  return {decoder.facts.begin(), decoder.facts.end()};
}

DecoderConfig Config(const std::string& name) { return *ReadModelConfig(kModels + name); }

TEST(ExportGguf, TheContextEndsWhereLlamaCppWouldComputeOtherwise) {
  for (const char* name : {"mistral-window", "qwen2-window", "qwen3-window"}) {
    const DecoderConfig config = Config(name);
    const auto decoder = MakeGgufDecoder(config);
    ASSERT_TRUE(decoder.ok()) << decoder.status();
    EXPECT_EQ(FactsOf(*decoder).at(decoder->architecture + ".context_length"),
              GgufValue(static_cast<uint32_t>(config.sliding_window)));
    EXPECT_THAT(decoder->notes, ElementsAre(HasSubstr(absl::StrCat(config.sliding_window))));
  }
  DecoderConfig config = Config("mistral-window");
  config.full_attention.assign(config.layers, 1);
  EXPECT_THAT(MakeGgufDecoder(config)->notes, ElementsAre());
  config = Config("llama-tiny");
  config.rope_scaling = {.kind = RopeScalingConfig::Kind::kDynamic, .factor = 2};
  EXPECT_THAT(MakeGgufDecoder(config)->notes, ElementsAre(HasSubstr("dynamic")));
}

TEST(ExportGguf, YarnIsWhatLlamaCppDoesNotDoItself) {
  DecoderConfig config = Config("llama-yarn");
  auto facts = FactsOf(*MakeGgufDecoder(config));
  EXPECT_EQ(facts.at("llama.rope.scaling.type"), GgufValue(std::string("yarn")));
  EXPECT_EQ(facts.at("llama.rope.scaling.original_context_length"), GgufValue(uint32_t{32}));
  EXPECT_EQ(facts.count("llama.rope.scaling.attn_factor"), 0U);
  config.rope_scaling->attention_factor = 1;
  facts = FactsOf(*MakeGgufDecoder(config));
  EXPECT_NEAR(std::get<float>(facts.at("llama.rope.scaling.attn_factor")),
              1 / (0.1 * std::log(4.0) + 1), 1e-6);
}

TEST(ExportGguf, WhatOnlyLlamasArchitectureHasIsItsOwn) {
  DecoderConfig config = Config("qwen2-tiny");
  config.head_dim *= 2;
  EXPECT_EQ(MakeGgufDecoder(config)->architecture, "llama");
  config = Config("qwen2-tiny");
  config.rope_scaling = Config("llama32-tiny").rope_scaling;
  EXPECT_EQ(MakeGgufDecoder(config)->architecture, "llama");
}

void ExpectRefused(const absl::Status& status, absl::StatusCode code, const std::string& why) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(why));
}

TEST(ExportGguf, WhatLlamaCppCannotComputeIsRefusedByName) {
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  DecoderConfig config = Config("qwen3-tiny");
  config.attention_bias = config.output_bias = true;
  ExpectRefused(MakeGgufDecoder(config).status(), kUnimplemented, "qk_norm and a bias on o");
  config = Config("qwen3-tiny");
  config.rope_scaling = Config("llama32-tiny").rope_scaling;
  ExpectRefused(MakeGgufDecoder(config).status(), kUnimplemented, "llama3");
  config = Config("llama-yarn");
  config.rope_scaling->truncate = false;
  ExpectRefused(MakeGgufDecoder(config).status(), kUnimplemented, "not truncated");
}

TEST(ExportGguf, WhatFailsLeavesNothingBesideAndNothingIsOverwritten) {
  const TestFolder folder;
  const std::string to = folder / "model.gguf";
  ExpectRefused(ExportGguf({kModels + "unsupported", to, {}}).status(),
                absl::StatusCode::kUnimplemented, "gpt_neox");
  ExpectRefused(ExportGguf({kModels + "llama-tiny", folder / "model", {}}).status(),
                absl::StatusCode::kInvalidArgument, ".gguf");
  EXPECT_THAT(*PosixFileSystem().List(folder.path()), ElementsAre());
  folder.Write("model.gguf", "mine");
  ExpectRefused(ExportGguf({kModels + "llama-tiny", to, {}}).status(),
                absl::StatusCode::kAlreadyExists, "there already");
  EXPECT_EQ(*PosixFileSystem().Read(to, 100), "mine");
  EXPECT_THAT(*PosixFileSystem().List(folder.path()), ElementsAre("model.gguf"));
}

// Tensor names of a model whose one matrix has a value that no F16 has.
TEST(ExportGguf, ValuesBeyondATypeAreRefusedAndWhatWasWrittenIsRemoved) {
  const TestFolder folder;
  folder.Write("config.json", *PosixFileSystem().Read(kModels + "llama-tiny/config.json", 1 << 20));
  std::string weights = *PosixFileSystem().Read(kModels + "llama-tiny/model.safetensors", 1 << 24);
  uint64_t header = 0;
  std::memcpy(&header, weights.data(), sizeof(header));
  const float huge = 1e30F;
  std::memcpy(weights.data() + 8 + header, &huge, sizeof(huge));
  folder.Write("model.safetensors", weights);
  const auto before = PosixFileSystem().List(folder.path());
  for (const GgufType type : {GgufType::kF16, GgufType::kQ8_0}) {
    ExpectRefused(ExportGguf({folder.path(), folder / "model.gguf", type}).status(),
                  absl::StatusCode::kInvalidArgument, "range");
  }
  EXPECT_EQ(*PosixFileSystem().List(folder.path()), *before);
  EXPECT_TRUE(ExportGguf({folder.path(), folder / "model.gguf", GgufType::kBF16}).ok());
}

}  // namespace
}  // namespace espalier
