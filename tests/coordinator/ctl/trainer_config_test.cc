#include "coordinator/ctl/trainer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace espalier::ctl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// As a guide to fine-tuning on a Mac gives it, with the comments that make it no JSON.
constexpr char kAppleSilicon[] = R"({
  "model_name": "meta-llama/Llama-3.2-3B-Instruct",
  "train_data_path": "data/train.jsonl",
  "eval_data_path": null,
  "output_dir": "models/checkpoints",
  "max_seq_length": 2048,
  "num_train_epochs": 3,
  "per_device_train_batch_size": 1,      // Small batch for memory
  "gradient_accumulation_steps": 8,      // Effective batch = 8
  "learning_rate": 2e-4,
  "warmup_ratio": 0.03,
  "lr_scheduler_type": "cosine",
  "weight_decay": 0.01,
  "max_grad_norm": 1.0,
  "fp16": false,                         // FP32 more stable on MPS
  "bf16": false,
  "gradient_checkpointing": true,        // Saves memory
  "optim": "adamw_torch",
  "logging_steps": 10,
  "eval_steps": 100,
  "save_steps": 250,
  "save_total_limit": 2,
  "group_by_length": true,
  "report_to": "none",
  "seed": 42,
  "lora": {
    "r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "bias": "none",
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
  },
  "quantization": {"load_in_4bit": false}
})";

std::string Problems(const std::string& json) {
  const auto yaml = ConvertTrainerConfig(json, {.model = "m"});
  EXPECT_EQ(yaml.status().code(), absl::StatusCode::kInvalidArgument) << yaml.status();
  return std::string(yaml.status().message());
}

TEST(TrainerConfig, BecomesAJob) {
  const auto yaml = ConvertTrainerConfig(kAppleSilicon, {.name = "qa", .data = "chat"});
  ASSERT_TRUE(yaml.ok()) << yaml.status();
  EXPECT_THAT(*yaml, HasSubstr(R"(name: "qa"
model:
  from: "meta-llama/Llama-3.2-3B-Instruct"
data:
  path: "chat"
  seed: 42
  sequence_length: 2048
  group_by_length: true
train:
  task: sft
  epochs: 3
  global_batch: 8
  seed: 42
  clip_norm: 1
  precision: fp32
  recompute: [all]
  optimizer:
    beta1: 0.9
    beta2: 0.999
    eps: 1e-08
    weight_decay: 0.01
  schedule:
    kind: cosine
    learning_rate: 0.0002
    final_ratio: 0
    warmup_ratio: 0.03
  lora:
    rank: 16
    alpha: 32
    dropout: 0.05
    targets: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
batch:
  micro_batch: [1]
evaluate:
  every_steps: 100
checkpoint:
  every_steps: 250
  keep: 2
)"));
  EXPECT_THAT(
      *yaml,
      AllOf(HasSubstr("# The data: espalier data prepare --output chat --format auto "
                      "--tokenizer meta-llama/Llama-3.2-3B-Instruct --split-seed 42 "
                      "data/train.jsonl"),
            HasSubstr("# report_to has no counterpart."), HasSubstr("not in models/checkpoints")));
}

TEST(TrainerConfig, PackedRowsArePacked) {
  const auto yaml = ConvertTrainerConfig(R"({"packing": true})", {.model = "m"});
  ASSERT_TRUE(yaml.ok()) << yaml.status();
  EXPECT_THAT(*yaml, HasSubstr("\n  packing: true\n"));
  EXPECT_THAT(Problems(R"({"packing": true, "group_by_length": true})"),
              HasSubstr("set group_by_length to false"));
}

TEST(TrainerConfig, KeysThatAreNotKnownAreRefusedAllAtOnce) {
  EXPECT_THAT(
      Problems(R"({"num_train_epoch": 3, "frobnicate": 1, "lora": {"rank": 8}})"),
      AllOf(HasSubstr("num_train_epoch is not known; did you mean num_train_epochs?"),
            HasSubstr("frobnicate is not known; known are "), HasSubstr("lora.rank is not known")));
}

TEST(TrainerConfig, ValuesThatCannotBeHadAreRefused) {
  EXPECT_THAT(Problems(R"({"quantization": {"load_in_4bit": true}})"),
              HasSubstr("quantization.load_in_4bit is true; a model in 4 or 8 bits"));
  EXPECT_THAT(Problems(R"({"optim": "sgd"})"), HasSubstr("optim is \"sgd\"; allowed: adamw_8bit"));
  EXPECT_THAT(Problems(R"({"eval_strategy": "epoch"})"), HasSubstr("allowed: no, steps"));
  EXPECT_THAT(Problems(R"({"fp16": true, "bf16": true})"), HasSubstr("choose one"));
  EXPECT_THAT(Problems(R"({"learning_rate": "2e-4"})"), HasSubstr("allowed: a number"));
  EXPECT_THAT(Problems(R"({"lora": {"bias": "all"}})"), HasSubstr("lora.bias"));
  EXPECT_THAT(Problems("[]"), HasSubstr("not a JSON object"));
}

TEST(TrainerConfig, LoraThatIsOffIsLeftOut) {
  for (const char* key : {"lora", "lora_config", "peft"}) {
    const auto yaml = ConvertTrainerConfig(
        absl::StrCat("{\"", key, "\": {\"enabled\": false, \"r\": 8, \"bias\": \"all\"}}"),
        {.model = "m"});
    ASSERT_TRUE(yaml.ok()) << yaml.status();
    EXPECT_THAT(*yaml, Not(HasSubstr("lora:"))) << key;
  }
  const auto yaml = ConvertTrainerConfig(R"({"lora": {"enabled": true}})", {.model = "m"});
  ASSERT_TRUE(yaml.ok()) << yaml.status();
  EXPECT_THAT(*yaml, HasSubstr("\n  lora:\n    rank: 8\n"));
  EXPECT_THAT(Problems(R"({"lora": {"enabled": "no"}})"), HasSubstr("lora.enabled is \"no\""));
}

TEST(TrainerConfig, WithoutAModelIsRefused) {
  const auto yaml = ConvertTrainerConfig("{}", {});
  EXPECT_THAT(std::string(yaml.status().message()), HasSubstr("--model"));
}

TEST(TrainerConfig, StepsStandForEpochs) {
  const auto yaml = ConvertTrainerConfig(
      R"({"max_steps": 50, "warmup_steps": 5, "bf16": true, "optim": "paged_adamw_8bit"})",
      {.model = "m"});
  ASSERT_TRUE(yaml.ok()) << yaml.status();
  EXPECT_THAT(*yaml, AllOf(HasSubstr("  steps: 50\n"), HasSubstr("    warmup_steps: 5\n"),
                           HasSubstr("  precision: bf16\n"), HasSubstr("    moments: int8\n")));
}

}  // namespace
}  // namespace espalier::ctl
