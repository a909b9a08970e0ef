// adapter_config.json is read as PEFT writes it and back; what adapters here cannot be is refused
// by name.
#include "worker/formats/lora_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

std::string Json(const std::string& more) {
  return absl::StrCat(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": )",
                      R"(["v_proj", "q_proj"])", more, "}");
}

TEST(LoraConfig, IsReadAndWrittenAsPeftHasIt) {
  const auto read = LoraConfigFromJson(
      Json(R"(, "lora_dropout": 0.05, "use_rslora": true, "bias": "none", "modules_to_save": null,
              "rank_pattern": {}, "use_dora": false, "r_of_a_later_version": 3)"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->rank, 8);
  EXPECT_NEAR(read->scale(), 16 / std::sqrt(8.0), 1e-12);
  EXPECT_EQ(read->targets, (std::vector<std::string>{"q_proj", "v_proj"}));
  const auto again = LoraConfigFromJson(AdapterConfigToJson(
      *read, {.base = "m", .targets = read->targets, .weights_are_in_out = false}));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->ComputesAs(*read));
  EXPECT_EQ(again->dropout, 0.05);
  EXPECT_EQ(again->targets, read->targets);
}

TEST(LoraConfig, ATargetIsTheLastWordsOfAName) {
  LoraConfig config;
  EXPECT_TRUE(config.Targets("model.layers.0.mlp.up_proj")) << "no targets are all";
  config.targets = {"mlp.up_proj", "proj", "q_proj"};
  EXPECT_TRUE(config.Targets("model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(config.Targets("model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(config.Targets("model.layers.0.other.up_proj"));
  EXPECT_FALSE(config.Targets("model.layers.0.self_attn.seq_proj"));
}

TEST(LoraConfig, DefaultsAreThoseOfTheJobFile) {
  v1::LoraSpec spec;
  spec.add_targets("all-linear");
  EXPECT_EQ(LoraConfigFromSpec(spec).rank, 16);
  EXPECT_TRUE(LoraConfigFromSpec(spec).targets.empty());
  spec.set_rank(8);
  EXPECT_EQ(LoraConfigFromSpec(spec).scale(), 2) << "alpha follows the rank";
  spec.set_alpha(8);
  EXPECT_EQ(LoraConfigFromSpec(spec).scale(), 1);
}

TEST(LoraConfig, WhatAdaptersCannotBeIsRefusedByName) {
  for (const char* more :
       {R"(, "use_dora": true)", R"(, "bias": "all")", R"(, "modules_to_save": ["lm_head"])",
        R"(, "rank_pattern": {"q_proj": 4})", R"(, "layers_to_transform": [1])",
        R"(, "init_lora_weights": "pissa_niter_16")", R"(, "init_lora_weights": "olora")",
        R"(, "init_lora_weights": "corda")", R"(, "init_lora_weights": "loftq")"}) {
    const absl::Status status = LoraConfigFromJson(Json(more)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    const std::string key = std::string(more).substr(3, std::string(more).find(':') - 4);
    EXPECT_TRUE(absl::StrContains(status.message(), key)) << status;
  }
}

TEST(LoraConfig, InitialWeightsThatLeaveTheModelAsItIsAreAnyTrainings) {
  for (const char* initial : {"true", "false", "\"gaussian\"", "\"orthogonal\"", "\"eva\""}) {
    const auto read = LoraConfigFromJson(Json(absl::StrCat(R"(, "init_lora_weights": )", initial)));
    EXPECT_TRUE(read.ok()) << read.status();
  }
}

TEST(LoraConfig, HostileTextIsAnError) {
  for (const char* text :
       {"", "[]", "{", R"({"r": 8})", R"({"r": -1, "target_modules": ["q_proj"]})",
        R"({"r": 1e30, "target_modules": ["q_proj"]})",
        R"({"r": 8, "lora_alpha": -1, "target_modules": ["q_proj"]})",
        R"({"r": 8, "lora_alpha": "x", "target_modules": ["q_proj"]})",
        R"({"r": 8, "target_modules": ".*_proj"})", R"({"r": 8, "target_modules": [1]})",
        R"({"r": 8, "target_modules": []})", R"({"r": 8, "target_modules": [""]})",
        R"({"peft_type": 3, "r": 8, "target_modules": ["q_proj"]})"}) {
    EXPECT_FALSE(LoraConfigFromJson(text).ok()) << text;
  }
}

}  // namespace
}  // namespace espalier
