// What is exported is what was trained: merged weights compute what the adapters did, in one file
// or in several, and adapters go out as PEFT and MLX name them.
#include "worker/state/export_model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "nlohmann/json.hpp"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "worker/formats/safetensors.h"
#include "worker/model/adapter_files.h"
#include "worker/model/decoder.h"
#include "worker/model/pretrained.h"
#include "worker/state/replica_checkpoint.h"

namespace espalier {
namespace {

using torch::Tensor;

constexpr char kModels[] = ESPALIER_SOURCE_DIR "/tests/data/models/";

nlohmann::json ReadJson(const std::string& path) {
  return nlohmann::json::parse(*PosixFileSystem().Read(path, 1 << 20));
}

Tensor LogitsOf(const PretrainedModel& model) {
  torch::NoGradGuard no_grad;
  const Tensor ids = (torch::arange(14) * 7).remainder(40).view({2, 7});
  return Decoder(model.config, model.parameters).Logits(ids);
}

double Difference(const Tensor& a, const Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

// A checkpoint of adapters on a model of tests/data/models.
std::string Checkpoint(const TestFolder& folder, const std::string& name) {
  v1::JobSpec spec = TinySpec(1);
  spec.mutable_model()->set_from(kModels + name);
  spec.mutable_train()->mutable_lora()->set_from(kModels + name + "/adapter");
  auto replica = *Replica::Create(*ReadModelConfig(kModels + name), spec.train(), torch::kCPU);
  EXPECT_TRUE(SetInitialWeights(spec, *replica).ok());
  const RunIdentity identity{.spec = spec};
  const std::string made = folder / "checkpoint";
  const absl::Status written = WriteCheckpointFiles(
      PosixFileSystem(), made, ContentOf(*replica, identity, /*validation_loss=*/1.5));
  EXPECT_TRUE(written.ok()) << written;
  return made;
}

std::string CopyOf(const std::string& path) { return *PosixFileSystem().Read(path, 1 << 24); }

// A folder of adapters on a model beside it, each with a tokenizer of its own.
void WriteAdapterAndBase(const TestFolder& folder) {
  const std::string model = std::string(kModels) + "llama32-tiny/";
  for (const char* name : {"config.json", "model.safetensors"}) {
    folder.Write(absl::StrCat("base/", name), CopyOf(model + name));
  }
  folder.Write("from/config.json", CopyOf(model + "config.json"));
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    folder.Write(absl::StrCat("from/", name), CopyOf(absl::StrCat(model, "adapter/", name)));
  }
  folder.Write("from/base.json", absl::StrCat("{\"model\": \"", folder / "base", "\"}"));
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "merges.txt"}) {
    folder.Write(absl::StrCat("base/", name), "the base's");
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    folder.Write(absl::StrCat("from/", name), "the data's");
  }
  folder.Write("base/generation_config.json", R"({"eos_token_id": 7, "temperature": 0.6})");
  folder.Write("from/generation_config.json", R"({"eos_token_id": [2, 7]})");
}

// The data may have been prepared with another one than the base has.
TEST(ExportModel, TheTokenizerIsTheOneThatTrained) {
  const TestFolder folder;
  WriteAdapterAndBase(folder);
  const auto exported = [&](const std::string& to) {
    const ExportOptions options{.from = folder / "from", .output = folder / to, .type = {}};
    const auto done = to == "adapter" ? ExportPeftAdapter(options) : ExportModel(options);
    EXPECT_TRUE(done.ok()) << done.status();
    return folder / to;
  };
  for (const char* form : {"model", "adapter"}) {
    const std::string to = exported(form);
    EXPECT_EQ(ReadText(to + "/tokenizer.json"), "the data's");
    EXPECT_EQ(ReadText(to + "/tokenizer_config.json"), "the data's");
    EXPECT_EQ(Names(to).count("merges.txt") + Names(to).count("chat_template.jinja"), 0U);
    // The base's, and what answers of the data ended with.
    EXPECT_EQ(nlohmann::json::parse(ReadText(to + "/generation_config.json")),
              (nlohmann::json{{"eos_token_id", {7, 2}}, {"temperature", 0.6}}));
  }
  std::filesystem::remove(folder / "from/tokenizer.json");
  const std::string to = exported("of-the-base");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "merges.txt"}) {
    EXPECT_EQ(ReadText(absl::StrCat(to, "/", name)), "the base's") << name;
  }
}

TEST(ExportModel, MergedWeightsComputeWhatTheAdaptersDid) {
  for (const char* name : {"llama32-tiny", "qwen2-tiny"}) {
    const TestFolder folder;
    const std::string from = Checkpoint(folder, name);
    const auto adapted = LoadPretrained(from, {});
    ASSERT_TRUE(adapted.ok()) << adapted.status();
    for (const int64_t shard_bytes : {int64_t{1} << 40, int64_t{100'000}}) {
      const std::string to = folder / absl::StrCat("model", shard_bytes);
      const auto exported = ExportModel(
          {.from = from, .output = to, .type = std::nullopt, .shard_bytes = shard_bytes});
      ASSERT_TRUE(exported.ok()) << exported.status();
      EXPECT_EQ(exported->weight_files > 1, shard_bytes < 1'000'000);
      const auto merged = LoadPretrained(to, {});
      ASSERT_TRUE(merged.ok()) << merged.status();
      EXPECT_FALSE(merged->parameters.lora().has_value());
      EXPECT_LT(Difference(LogitsOf(*merged), LogitsOf(*adapted)), 1e-4);
    }
    const auto base = LoadPretrained(kModels + std::string(name), {});
    EXPECT_GT(Difference(LogitsOf(*base), LogitsOf(*adapted)), 1e-2) << "the adapter does nothing";
  }
}

TEST(ExportModel, ATypeIsThatOfTheFilesAndOfTheConfig) {
  const TestFolder folder;
  const std::string from = Checkpoint(folder, "llama32-tiny");
  for (const auto& [type, name] :
       {std::pair{torch::kBFloat16, "bfloat16"}, {torch::kHalf, "float16"}}) {
    const std::string to = folder / name;
    ASSERT_TRUE(ExportModel({.from = from, .output = to, .type = type}).ok());
    EXPECT_EQ(ReadJson(to + "/config.json")["dtype"], name);
    const auto file = Safetensors::Open(to + "/model.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    for (const TensorView& tensor : file->tensors()) {
      EXPECT_EQ(TensorTypeBytes(tensor.spec.type), 2) << tensor.spec.name;
    }
    EXPECT_LT(Difference(LogitsOf(*LoadPretrained(to, {})), LogitsOf(*LoadPretrained(from, {}))),
              0.1);
  }
}

TEST(ExportModel, AnAdapterGoesOutAsItIsWithTheFactsOfTheRun) {
  const TestFolder folder;
  const std::string from = Checkpoint(folder, "llama32-tiny"), to = folder / "adapter";
  const auto exported = ExportPeftAdapter({.from = from, .output = to, .type = std::nullopt});
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_TRUE(absl::EndsWith(exported->base, "llama32-tiny"));
  const auto model = LoadPretrained(exported->base, {}, to);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(torch::equal(LogitsOf(*model), LogitsOf(*LoadPretrained(from, {}))));
  const std::string card = *PosixFileSystem().Read(to + "/README.md", 1 << 20);
  EXPECT_TRUE(absl::StrContains(card, "| validation loss (nats per token) | 1.5 |")) << card;
  EXPECT_TRUE(absl::StrContains(card, "rank 8, alpha 8")) << card;
}

TEST(ExportModel, MlxHasAAndBTurned) {
  const TestFolder folder;
  const std::string from = Checkpoint(folder, "llama32-tiny"), to = folder / "mlx";
  const auto exported = ExportMlxAdapter({.from = from, .output = to, .type = std::nullopt});
  ASSERT_TRUE(exported.ok()) << exported.status();
  const nlohmann::json config = ReadJson(to + "/adapter_config.json");
  EXPECT_EQ(config["num_layers"], 3);
  EXPECT_EQ(config["lora_parameters"]["rank"], 8);
  EXPECT_NEAR(config["lora_parameters"]["scale"].get<double>(), 8 / std::sqrt(8.0), 1e-6);
  EXPECT_EQ(config["lora_parameters"]["keys"].size(), 4U);
  const auto file = Safetensors::Open(to + "/adapters.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const TensorView* a = file->Find("model.layers.0.self_attn.q_proj.lora_a");
  const TensorView* b = file->Find("model.layers.0.self_attn.q_proj.lora_b");
  ASSERT_TRUE(a != nullptr && b != nullptr);
  EXPECT_EQ(a->spec.shape, (std::vector<int64_t>{64, 8}));
  EXPECT_EQ(b->spec.shape, (std::vector<int64_t>{8, 128}));
}

std::string SafetensorsOf(const std::string& name, const Tensor& value) {
  std::string text;
  auto writer = SafetensorsWriter::Create(
      {{name, TensorType::kF32, value.sizes().vec()}}, {}, [&](absl::Span<const std::byte> bytes) {
        text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        return absl::OkStatus();
      });
  EXPECT_TRUE(
      writer->Append({static_cast<const std::byte*>(value.data_ptr()), value.nbytes()}).ok());
  EXPECT_TRUE(writer->Finish().ok());
  return text;
}

// With train.freeze: of parameters that are fp32 in training, whatever the base's are.
TEST(ExportModel, WhatWasTrainedAboveABaseKeepsItsBits) {
  const std::string base = std::string(kModels) + "llama-bf16";
  const auto config = ReadModelConfig(base);
  ASSERT_TRUE(config.ok()) << config.status();
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    const TestFolder folder;
    const Tensor trained = torch::randn({config->vocab_size, config->hidden_size});
    folder.Write("config.json", CopyOf(base + "/config.json"));
    folder.Write("base.json", absl::StrCat("{\"model\": \"", base, "\"}"));
    folder.Write("trained.safetensors", SafetensorsOf(name, trained));
    const auto model = LoadPretrained(folder.path(), {});
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_TRUE(torch::equal(model->parameters.Get(name), trained)) << name;
    const std::string to = folder / "model";
    const auto exported = ExportModel({.from = folder.path(), .output = to, .type = torch::kFloat});
    ASSERT_TRUE(exported.ok()) << exported.status();
    const auto file = Safetensors::Open(to + "/model.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    const TensorView* const there = file->Find(name);
    ASSERT_EQ(there->bytes.size(), trained.nbytes());
    EXPECT_EQ(std::memcmp(there->bytes.data(), trained.data_ptr(), trained.nbytes()), 0) << name;
  }
}

TEST(ExportModel, WhatWasTrainedBeyondTheRangeOfItsBaseIsRefused) {
  const TestFolder folder;
  const std::string base = folder / "base";
  ASSERT_TRUE(
      ExportModel(
          {.from = std::string(kModels) + "llama-bf16", .output = base, .type = torch::kHalf})
          .ok());
  const Tensor trained = torch::full({ReadModelConfig(base)->hidden_size}, 1e6F);
  folder.Write("from/config.json", CopyOf(base + "/config.json"));
  folder.Write("from/base.json", absl::StrCat("{\"model\": \"", base, "\"}"));
  folder.Write("from/trained.safetensors",
               SafetensorsOf("lm_head.weight",
                             trained.expand({ReadModelConfig(base)->vocab_size, -1}).contiguous()));
  const auto exported = ExportModel({.from = folder / "from", .output = folder / "to", .type = {}});
  EXPECT_EQ(exported.status().code(), absl::StatusCode::kInvalidArgument) << exported.status();
}

// As a shell completes the name of a folder.
TEST(ExportModel, ASlashAtTheEndOfTheOutputIsNoOtherFolder) {
  const TestFolder folder;
  const std::string from = Checkpoint(folder, "llama32-tiny");
  for (const std::string name : {"one", "two"}) {
    const auto exported = ExportPeftAdapter(
        {.from = from, .output = folder / name + (name == "one" ? "/" : "//"), .type = {}});
    ASSERT_TRUE(exported.ok()) << exported.status();
    EXPECT_TRUE(HoldsAdapter(folder / name));
  }
}

TEST(ExportModel, WhatFailsLeavesNothingBeside) {
  const TestFolder folder;
  const auto before = PosixFileSystem().List(folder.path());
  ASSERT_TRUE(before.ok()) << before.status();
  const auto exported =
      ExportModel({.from = folder / "nothing", .output = folder / "x", .type = std::nullopt});
  EXPECT_FALSE(exported.ok());
  EXPECT_EQ(*PosixFileSystem().List(folder.path()), *before);
}

TEST(ExportModel, WhatIsThereIsNotOverwrittenAndWhatIsNoAdapterIsRefused) {
  const TestFolder folder;
  const std::string from = Checkpoint(folder, "llama32-tiny");
  EXPECT_EQ(ExportModel({.from = from, .output = from, .type = std::nullopt}).status().code(),
            absl::StatusCode::kAlreadyExists);
  const auto refused = ExportPeftAdapter({.from = std::string(kModels) + "llama32-tiny",
                                          .output = folder / "x",
                                          .type = std::nullopt});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace espalier
