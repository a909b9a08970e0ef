// Configs of tiny recursive models: from a job, from config.json and back, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "worker/formats/decoder_config.h"

namespace espalier {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

v1::ModelSpec Spec() {
  v1::ModelSpec spec;
  spec.set_hidden_size(512);
  spec.set_num_hidden_layers(2);
  spec.set_num_attention_heads(8);
  spec.mutable_recursion()->set_causal(true);
  return spec;
}

TEST(TrmConfig, OfAJobHasTheSizesOfTheOriginal) {
  const absl::StatusOr<DecoderConfig> config = DecoderConfigFromSpec(Spec(), 300);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, Architecture::kTrm);
  EXPECT_EQ(config->intermediate_size, 1536);
  EXPECT_EQ(config->vocab_size, 300);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_TRUE(config->recursion->halt_reads_last) << "the first position of a text sees nothing";
  v1::ModelSpec puzzles = Spec();
  puzzles.mutable_recursion()->set_causal(false);
  puzzles.set_intermediate_size(1024);
  EXPECT_FALSE(DecoderConfigFromSpec(puzzles, 300)->recursion->halt_reads_last);
  EXPECT_EQ(DecoderConfigFromSpec(puzzles, 300)->intermediate_size, 1024);
}

TEST(TrmConfig, FeedForwardPartsAreAsWideAsThoseOfTheOriginal) {
  RecursionConfig recursion;
  EXPECT_EQ(recursion.Inner(384), 1024);
  EXPECT_EQ(recursion.Inner(48), 256);
  recursion.expansion = 2;
  EXPECT_EQ(recursion.Inner(768), 1024);
  EXPECT_EQ(recursion.Inner(81), 256);
}

// Twelve heads would leave eight of 512 numbers out; what mixes positions sees later ones.
TEST(TrmConfig, WhatCannotBeIsRefusedByName) {
  struct Case {
    std::function<void(v1::ModelSpec&)> change;
    const char* message;
  };
  const Case cases[] = {
      {[](auto& spec) { spec.mutable_recursion()->set_mix_positions(true); },
       "mix_positions and recursion.causal would see the tokens that it is to give"},
      {[](auto& spec) { spec.set_num_attention_heads(12); }, "not a multiple"},
      {[](auto& spec) {
         spec.set_hidden_size(60);
         spec.set_num_attention_heads(12);
       },
       "heads of 5 numbers"},
      {[](auto& spec) { spec.set_qk_norm(true); }, "qk_norm"},
      {[](auto& spec) { spec.set_num_key_value_heads(4); }, "num_key_value_heads"},
      {[](auto& spec) { spec.set_sliding_window(4); }, "sliding_window"},
  };
  for (const Case& c : cases) {
    v1::ModelSpec spec = Spec();
    c.change(spec);
    const absl::Status status = DecoderConfigFromSpec(spec, 300).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(c.message));
  }
}

TEST(TrmConfig, RoundTripsThroughConfigJson) {
  DecoderConfig config = *DecoderConfigFromSpec(Spec(), 300);
  config.initializer_range = 1;
  for (const bool other : {false, true}) {
    if (other) {
      config.recursion = {.high_cycles = 2,
                          .low_cycles = 5,
                          .halt_max_steps = 7,
                          .halt_exploration = 0.25,
                          .halt_continue = true,
                          .halt_reads_last = true,
                          .positions = RecursionConfig::Positions::kLearned,
                          .mix_positions = true,
                          .stablemax = false,
                          .expansion = 2};
      config.max_position_embeddings = 81;
    }
    const std::string json = DecoderConfigToJson(config);
    EXPECT_EQ(Json::parse(json)["model_type"], "trm");
    const absl::StatusOr<DecoderConfig> read = DecoderConfigFromJson(json);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == config) << json;
  }
}

TEST(TrmConfig, OptionsThatAreNotKnownAreNamed) {
  const DecoderConfig config = *DecoderConfigFromSpec(Spec(), 300);
  const std::pair<const char*, Json> changes[] = {
      {"pos_encodings", "alibi"}, {"loss_type", "hinge"}, {"puzzle_emb_ndim", 512}};
  for (const auto& [key, value] : changes) {
    Json json = Json::parse(DecoderConfigToJson(config));
    json[key] = value;
    const absl::Status status = DecoderConfigFromJson(json.dump()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(status.message(), HasSubstr(key));
  }
}

}  // namespace
}  // namespace espalier
