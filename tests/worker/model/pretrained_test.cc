// Model folders: every stored type, shards, and what is wrong with a broken one; devices.
#include "worker/model/pretrained.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/support/tiny_model.h"
#include "worker/formats/lora_config.h"
#include "worker/formats/safetensors.h"
#include "worker/model/parameter_shapes.h"
#include "worker/tensor/device.h"

namespace espalier {
namespace {

using Tensors = std::map<std::string, torch::Tensor>;

TensorType TypeOf(const torch::Tensor& tensor) {
  if (tensor.scalar_type() == torch::kBFloat16) return TensorType::kBF16;
  if (tensor.scalar_type() == torch::kHalf) return TensorType::kF16;
  if (tensor.scalar_type() == torch::kDouble) return TensorType::kF64;
  if (tensor.scalar_type() == torch::kLong) return TensorType::kI64;
  return TensorType::kF32;
}

class Pretrained : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = testing::TempDir() + "/pretrained_" + info->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    config_.layers = 1;
    WriteText("config.json", DecoderConfigToJson(config_));
    const TinyModel model(config_);
    for (const Parameter& parameter : model.parameters.all()) {
      tensors_[parameter.shape.name] = parameter.value.detach().clone();
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void WriteText(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }
  void WriteTensors(const std::string& name, const Tensors& tensors) {
    std::ofstream out(folder_ + "/" + name, std::ios::binary);
    std::vector<TensorSpec> specs;
    for (const auto& [key, value] : tensors) {
      specs.push_back({key, TypeOf(value), value.sizes().vec()});
    }
    auto writer = SafetensorsWriter::Create(specs, {}, [&](absl::Span<const std::byte> bytes) {
      out.write(reinterpret_cast<const char*>(bytes.data()),
                static_cast<std::streamsize>(bytes.size()));
      return absl::OkStatus();
    });
    for (const auto& [key, value] : tensors) {
      const auto* data = static_cast<const std::byte*>(value.data_ptr());
      ASSERT_TRUE(writer->Append({data, value.nbytes()}).ok());
    }
  }
  absl::StatusOr<PretrainedModel> Load() { return LoadPretrained(folder_, {}); }
  void ExpectRefused(absl::StatusCode code, const std::string& message) {
    const absl::Status status = Load().status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
  }

  std::string folder_;
  DecoderConfig config_ = TinyModelConfig();
  Tensors tensors_;
};

TEST_F(Pretrained, EveryFloatingPointTypeBecomesFp32) {
  for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kHalf, torch::kDouble}) {
    Tensors stored;
    for (const auto& [name, value] : tensors_) stored[name] = value.to(type);
    WriteTensors("model.safetensors", stored);
    const auto model = Load();
    ASSERT_TRUE(model.ok()) << model.status();
    for (const auto& [name, value] : stored) {
      EXPECT_TRUE(torch::equal(model->parameters.Get(name), value.to(torch::kFloat))) << name;
    }
  }
}

TEST_F(Pretrained, ShardsAreFoundThroughTheIndex) {
  Tensors shards[2];
  nlohmann::json map;
  int i = 0;
  for (const auto& [name, value] : tensors_) {
    shards[i % 2][name] = value;
    map[name] = i++ % 2 == 0 ? "model-00001-of-00002.safetensors" : "b.safetensors";
  }
  WriteTensors("model-00001-of-00002.safetensors", shards[0]);
  WriteTensors("b.safetensors", shards[1]);
  WriteText("model.safetensors.index.json", nlohmann::json({{"weight_map", map}}).dump());
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(
      torch::equal(model->parameters.Get("model.norm.weight"), tensors_["model.norm.weight"]));
  std::filesystem::remove(folder_ + "/b.safetensors");
  ExpectRefused(absl::StatusCode::kNotFound, "b.safetensors");
}

TEST_F(Pretrained, AnswersEndByWhatEitherConfigSays) {
  config_.eos_token_ids = {5};
  WriteText("config.json", DecoderConfigToJson(config_));
  EXPECT_EQ(ReadModelConfig(folder_)->eos_token_ids, std::vector<int64_t>({5}));
  WriteText("generation_config.json", R"({"eos_token_id": [7, 5], "temperature": 0.6})");
  EXPECT_EQ(ReadModelConfig(folder_)->eos_token_ids, std::vector<int64_t>({5, 7}));
  WriteText("generation_config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(ReadModelConfig(folder_)->eos_token_ids, std::vector<int64_t>({5}));
  for (const char* wrong : {"[7]", "{\"eos_token_id\": \"</s>\"}", "{\"eos_token_id\": 7"}) {
    WriteText("generation_config.json", wrong);
    const absl::Status status = ReadModelConfig(folder_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_TRUE(absl::StrContains(status.message(), "generation_config.json")) << status;
  }
}

TEST_F(Pretrained, ATensorThatTwoShardsHoldIsRefused) {
  WriteTensors("a.safetensors", tensors_);
  WriteTensors("b.safetensors", {{"model.norm.weight", torch::ones({16})}});
  WriteText("model.safetensors.index.json",
            R"({"weight_map": {"x": "a.safetensors", "model.norm.weight": "b.safetensors"}})");
  ExpectRefused(absl::StatusCode::kInvalidArgument, "holds tensor model.norm.weight in two of");
}

TEST_F(Pretrained, AnIndexCannotNameFilesElsewhere) {
  WriteText("model.safetensors.index.json", R"({"weight_map": {"a": "../../etc/passwd"}})");
  ExpectRefused(absl::StatusCode::kInvalidArgument, "not the name of a file beside it");
  WriteText("model.safetensors.index.json", R"({"weight_map": 3})");
  ExpectRefused(absl::StatusCode::kInvalidArgument, "no weight_map");
}

TEST_F(Pretrained, WhatIsMissingOrTooMuchIsNamed) {
  ExpectRefused(absl::StatusCode::kNotFound, "neither model.safetensors nor");
  Tensors missing = tensors_;
  missing.erase("model.norm.weight");
  WriteTensors("model.safetensors", missing);
  ExpectRefused(absl::StatusCode::kNotFound, "no tensor model.norm.weight");
  Tensors extra = tensors_;
  extra["model.layers.0.self_attn.q_proj.bias"] = torch::zeros({24});
  WriteTensors("model.safetensors", extra);
  ExpectRefused(absl::StatusCode::kInvalidArgument, "q_proj.bias, for which");
}

TEST_F(Pretrained, WrongShapesAndTypesAreNamed) {
  Tensors wrong = tensors_;
  wrong["model.norm.weight"] = torch::ones({15});
  WriteTensors("model.safetensors", wrong);
  ExpectRefused(absl::StatusCode::kInvalidArgument,
                "model.norm.weight has shape [15]; config.json asks for [16]");
  wrong["model.norm.weight"] = torch::ones({16}, torch::kLong);
  WriteTensors("model.safetensors", wrong);
  ExpectRefused(absl::StatusCode::kUnimplemented, "type I64");
}

// As GPT-2's own files, with the masks that old versions stored.
TEST_F(Pretrained, NamesOfAModelWithoutItsHeadAreFound) {
  const DecoderConfig config = TinyGpt2Config();
  WriteText("config.json", DecoderConfigToJson(config));
  const TinyModel model(config);
  Tensors stored;
  for (const Parameter& parameter : model.parameters.all()) {
    const std::string name = parameter.shape.name.substr(std::string("transformer.").size());
    stored[name] = parameter.value.detach().to(torch::kBFloat16);
  }
  for (int layer = 0; layer < 3; ++layer) {
    stored[absl::StrCat("h.", layer, ".attn.bias")] = torch::ones({1, 1, 64, 64});
    stored[absl::StrCat("h.", layer, ".attn.masked_bias")] = torch::zeros({});
  }
  WriteTensors("model.safetensors", stored);
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(torch::equal(loaded->parameters.Get("transformer.h.2.attn.c_attn.weight"),
                           stored["h.2.attn.c_attn.weight"].to(torch::kFloat)));
  stored["h.3.ln_1.bias"] = torch::zeros({16});
  WriteTensors("model.safetensors", stored);
  ExpectRefused(absl::StatusCode::kInvalidArgument, "h.3.ln_1.bias, for which");
}

TEST_F(Pretrained, TiedHeadsAndOldBuffersAreIgnored) {
  Tensors extra = tensors_;
  extra["lm_head.weight"] = tensors_["model.embed_tokens.weight"].clone();
  extra["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch::ones({3});
  WriteTensors("model.safetensors", extra);
  EXPECT_TRUE(Load().ok()) << Load().status();
}

// Weights and an adapter in one folder, without the base.json of our checkpoints.
TEST_F(Pretrained, AnAdapterBesideTheWeightsIsLoadedOrMissedByName) {
  WriteTensors("model.safetensors", tensors_);
  const LoraConfig lora{.rank = 2, .alpha = 4, .targets = {"q_proj", "query_key_value"}};
  WriteText("adapter_config.json",
            AdapterConfigToJson(lora, {.base = "", .targets = lora.targets}));
  ExpectRefused(absl::StatusCode::kNotFound, "adapter_model.safetensors");
  Tensors adapter;
  for (const ParameterShape& shape : ParameterShapes(config_, lora)) {
    if (shape.is_adapter()) adapter[shape.name] = torch::randn(shape.shape);
  }
  WriteTensors("adapter_model.safetensors", adapter);
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(adapter.size(), 2U);
  for (const auto& [name, value] : adapter) {
    EXPECT_TRUE(torch::equal(model->parameters.Get(name), value)) << name;
  }
  adapter.erase(adapter.begin());
  WriteTensors("adapter_model.safetensors", adapter);
  ExpectRefused(absl::StatusCode::kNotFound, "lora_A");
}

TEST(SelectDevice, CpuIsAlwaysThereAndNamesAreChecked) {
  const auto cpu = SelectDevice({.name = "cpu"});
  ASSERT_TRUE(cpu.ok());
  EXPECT_TRUE(cpu->device.is_cpu());
  EXPECT_EQ(SelectDevice({.name = "tpu"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(SelectDevice({.name = "auto"}).ok());
}

// No silent fallback.
TEST(SelectDevice, AMissingDeviceIsAnError) {
  for (const char* name : {"cuda", "mps"}) {
    const auto chosen = SelectDevice({.name = name});
    if (chosen.ok()) {
      EXPECT_FALSE(chosen->device.is_cpu());
    } else {
      EXPECT_EQ(chosen.status().code(), absl::StatusCode::kFailedPrecondition);
    }
  }
}

v1::JobSpec JobWithSequencesOf(int64_t length) {
  v1::JobSpec spec;
  spec.mutable_data()->set_sequence_length(static_cast<int32_t>(length));
  return spec;
}

TEST(JobModelConfig, IsMeantForTheSequencesOfTheJob) {
  for (const auto& [length, given, positions] :
       {std::tuple{512, 0, 2048}, std::tuple{4096, 0, 4096}, std::tuple{512, 1024, 1024}}) {
    v1::JobSpec spec = JobWithSequencesOf(length);
    spec.mutable_model()->set_preset("124m");
    if (given > 0) spec.mutable_model()->set_max_position_embeddings(given);
    const absl::StatusOr<DecoderConfig> config = JobModelConfig(spec, 257);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->max_position_embeddings, positions) << length;
  }
}

TEST(JobModelConfig, OfPuzzlesIsForRowsOfExactlyTheirLength) {
  v1::JobSpec spec = JobWithSequencesOf(81);
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_hidden_size(16);
  model.set_num_hidden_layers(2);
  model.set_num_attention_heads(2);
  model.mutable_recursion();
  EXPECT_EQ(JobModelConfig(spec, 12)->max_position_embeddings, 81);
  model.set_max_position_embeddings(128);
  const absl::Status refused = JobModelConfig(spec, 12).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(refused.message(), "sequence_length is 81")) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "rows of 128")) << refused;
  model.mutable_recursion()->set_causal(true);
  EXPECT_EQ(JobModelConfig(spec, 12)->max_position_embeddings, 128) << "what follows is not seen";
}

TEST_F(Pretrained, IsRefusedForSequencesLongerThanItsPositions) {
  v1::JobSpec spec = JobWithSequencesOf(64);
  spec.mutable_model()->set_from(folder_);
  EXPECT_TRUE(JobModelConfig(spec, 23).ok());
  spec.mutable_data()->set_sequence_length(65);
  const absl::Status refused = JobModelConfig(spec, 23).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(refused.message(), "data.sequence_length is 65")) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "64 positions")) << refused;
  EXPECT_FALSE(JobModelConfig(JobWithSequencesOf(64), 23).ok()) << "no model at all";
}

}  // namespace
}  // namespace espalier
