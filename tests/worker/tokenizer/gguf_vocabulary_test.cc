// What a GGUF file says of the tokenizers of tests/data; what llama.cpp makes of it is compared by
// hand (tests/reference_models/compare_with_llama_cpp.py).
#include "worker/tokenizer/gguf_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/worker/tokenizer/tokenizer_cases.h"
#include "worker/tokenizer/open_tokenizer.h"
#include "worker/tokenizer/sentencepiece_model.h"

namespace espalier {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Tokenizer> Open(const json& tokenizer) {
  auto opened = TokenizerFromJson(tokenizer.dump());
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

absl::StatusOr<GgufVocabulary> Made(const json& tokenizer, int64_t vocab_size = 800) {
  return MakeGgufVocabulary(*Open(tokenizer), vocab_size, std::nullopt);
}

using Facts = std::map<std::string, GgufValue>;

Facts FactsOf(const absl::StatusOr<GgufVocabulary>& made) {
  EXPECT_TRUE(made.ok()) << made.status();
  return {made->facts.begin(), made->facts.end()};
}

std::string Text(const Facts& facts, const std::string& name) {
  return std::get<std::string>(facts.at("tokenizer.ggml." + name));
}

uint32_t Id(const Facts& facts, const std::string& name) {
  return std::get<uint32_t>(facts.at("tokenizer.ggml." + name + "_token_id"));
}

bool Flag(const Facts& facts, const std::string& name) {
  return std::get<bool>(facts.at("tokenizer.ggml." + name));
}

// GPT-2's with tokens of all kinds.
json WithAddedTokens() {
  json tokenizer = TokenizerJson("gpt2-added");
  tokenizer["pre_tokenizer"]["add_prefix_space"] = false;
  return tokenizer;
}

TEST(GgufVocabulary, ExpressionsHaveLlamaCppsNames) {
  const std::pair<const char*, const char*> names[] = {
      {"gpt2-tiny", "gpt-2"},     {"llama-tiny", "dbrx"},  {"llama3-real", "llama-bpe"},
      {"smollm2-tiny", "smollm"}, {"qwen2-tiny", "qwen2"}, {"o200k", "gpt-4o"}};
  for (const auto& [folder, name] : names) {
    const Facts facts = FactsOf(Made(TokenizerJson(folder)));
    EXPECT_EQ(Text(facts, "model"), "gpt2");
    EXPECT_EQ(Text(facts, "pre"), name) << folder;
  }
}

TEST(GgufVocabulary, EveryIdHasATokenOfItsOwnAndItsType) {
  const json tokenizer = WithAddedTokens();
  const Facts facts = FactsOf(Made(tokenizer));
  const auto tokens = std::get<std::vector<std::string>>(facts.at("tokenizer.ggml.tokens"));
  const auto types = std::get<std::vector<int32_t>>(facts.at("tokenizer.ggml.token_type"));
  ASSERT_EQ(tokens.size(), 800U);
  ASSERT_EQ(types.size(), 800U);
  for (const auto& [token, id] : tokenizer["model"]["vocab"].items()) {
    EXPECT_EQ(tokens[id.get<size_t>()], token);
  }
  EXPECT_EQ(tokens[768], "<mask>");
  EXPECT_THAT((std::vector<int32_t>{types[0], types[1], types[768], types[769], types[799]}),
              ElementsAre(3, 1, 3, 4, 5))
      << "special, of the vocabulary, special, added, unused";
  EXPECT_EQ(tokens[799], "[PAD799]");
}

TEST(GgufVocabulary, MergesAreInTheirOrderWhicheverWayTheFileSpellsThem) {
  json tokenizer = TokenizerJson("gpt2-tiny");
  const Facts facts = FactsOf(Made(tokenizer));
  json& merges = tokenizer["model"]["merges"];
  ASSERT_TRUE(merges[0].is_array());
  for (json& merge : merges) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  EXPECT_EQ(facts.at("tokenizer.ggml.merges"), GgufValue(merges.get<std::vector<std::string>>()));
  EXPECT_EQ(FactsOf(Made(tokenizer)), facts);
}

TEST(GgufVocabulary, TheFrameIsWhatLlamaCppAddsToTexts) {
  const Facts llama = FactsOf(Made(TokenizerJson("llama-tiny")));
  EXPECT_TRUE(Flag(llama, "add_bos_token"));
  EXPECT_FALSE(Flag(llama, "add_eos_token"));
  EXPECT_EQ(Id(llama, "bos"), 0U);
  EXPECT_EQ(Id(llama, "eos"), 1U);
  const Facts qwen = FactsOf(Made(TokenizerJson("qwen2-tiny")));
  EXPECT_FALSE(Flag(qwen, "add_bos_token"));
  EXPECT_EQ(Id(qwen, "bos"), Id(qwen, "eos")) << "there must be one";
  const auto given = MakeGgufVocabulary(*Open(TokenizerJson("qwen2-tiny")), 800, 5);
  EXPECT_EQ(Id(FactsOf(given), "bos"), 5U);
}

TEST(GgufVocabulary, ScoresFallInTheOrderOfMerges) {
  for (const char* name : {"llama2", "mistral", "gemma"}) {
    const json tokenizer = TokenizerJson(name);
    const Facts facts = FactsOf(Made(tokenizer));
    EXPECT_EQ(Text(facts, "model"), "llama");
    EXPECT_EQ(Flag(facts, "add_space_prefix"), std::string(name) != "gemma");
    const auto scores = std::get<std::vector<float>>(facts.at("tokenizer.ggml.scores"));
    float last = 0;
    for (const json& merge : tokenizer["model"]["merges"]) {
      const std::string made = merge[0].get<std::string>() + merge[1].get<std::string>();
      const float score = scores[tokenizer["model"]["vocab"][made].get<size_t>()];
      EXPECT_LE(score, last) << made;
      last = score;
    }
    EXPECT_LT(last, 0);
  }
}

TEST(GgufVocabulary, ASentencePieceModelKeepsTheOrderOfItsScores) {
  const auto tokenizer = TokenizerFromJson(*JsonOfSentencePiece(SentencePieceFile(), {}));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto made = MakeGgufVocabulary(**tokenizer, (*tokenizer)->vocab_size(), std::nullopt);
  const Facts facts = FactsOf(made);
  const auto types = std::get<std::vector<int32_t>>(facts.at("tokenizer.ggml.token_type"));
  EXPECT_EQ(types[0], 2) << "<unk>";
  EXPECT_EQ(types[1], 3) << "<s>";
  EXPECT_EQ(types[*(*tokenizer)->IdOf("<tool>")], 4);
  EXPECT_EQ(types[*(*tokenizer)->IdOf("<0x0A>")], 6);
}

TEST(GgufVocabulary, TheByteTokenizerIsOneWithoutMerges) {
  const auto made = MakeGgufVocabulary(*MakeByteTokenizer(), 257, std::nullopt);
  const Facts facts = FactsOf(made);
  EXPECT_EQ(Text(facts, "pre"), "gpt-2");
  EXPECT_EQ(std::get<std::vector<std::string>>(facts.at("tokenizer.ggml.merges")).size(), 0U);
  EXPECT_EQ(Id(facts, "eos"), 256U);
}

TEST(GgufVocabulary, ChatTemplatesGoAlongWithTheirNames) {
  const auto with = [](const char* templates) {
    const auto tokenizer = MakeByteTokenizer(templates);
    return FactsOf(MakeGgufVocabulary(*tokenizer, 257, std::nullopt));
  };
  EXPECT_EQ(with(R"({"chat_template": "a"})").at("tokenizer.chat_template"),
            GgufValue(std::string("a")));
  const Facts several = with(R"({"chat_template": [{"name": "default", "template": "a"},
                                                   {"name": "tools", "template": "b"}]})");
  EXPECT_EQ(several.at("tokenizer.chat_template"), GgufValue(std::string("a")));
  EXPECT_EQ(several.at("tokenizer.chat_template.tools"), GgufValue(std::string("b")));
  EXPECT_EQ(several.at("tokenizer.chat_templates"), GgufValue(std::vector<std::string>{"tools"}));
  EXPECT_EQ(with("{}").count("tokenizer.chat_template"), 0U);
}

// As llama.cpp's own converter does; exact or not at all is for what it could compute otherwise.
TEST(GgufVocabulary, WhatLlamaCppDoesOtherwiseIsSaid) {
  EXPECT_THAT(Made(TokenizerJson("gpt2-tiny"))->notes, ElementsAre());
  EXPECT_THAT(Made(TokenizerJson("qwen2-tiny"))->notes, ElementsAre(HasSubstr("NFC")));
  EXPECT_THAT(Made(TokenizerJson("mistral"))->notes, ElementsAre(HasSubstr("behind special")));
  json always = TokenizerJson("mistral");
  always["pre_tokenizer"]["prepend_scheme"] = "always";
  EXPECT_THAT(Made(always)->notes, ElementsAre(HasSubstr("begin with none")));
  EXPECT_THAT(Made(WithAddedTokens())->notes,
              testing::IsSupersetOf({HasSubstr("lstrip of the token '<mask>'"),
                                     HasSubstr("single_word of the token 'word'")}));
}

void ExpectRefused(const absl::StatusOr<GgufVocabulary>& made, absl::StatusCode code,
                   const std::string& why) {
  EXPECT_EQ(made.status().code(), code) << made.status();
  EXPECT_THAT(std::string(made.status().message()), HasSubstr(why));
}

TEST(GgufVocabulary, WhatLlamaCppCannotCutIsRefusedByName) {
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  ExpectRefused(Made(TokenizerJson("split-Removed-True")), kUnimplemented, "Punctuation");
  ExpectRefused(Made(TokenizerJson("gpt2-added")), kUnimplemented, "add_prefix_space");
  ExpectRefused(Made(TokenizerJson("qwen-NFD")), kUnimplemented, "normalizer: NFD");
  ExpectRefused(Made(TokenizerJson("unk-fused")), kUnimplemented, "pre_tokenizer: none");
  json ignoring = TokenizerJson("gpt2-tiny");
  ignoring["model"]["ignore_merges"] = true;
  ExpectRefused(Made(ignoring), kUnimplemented, "with ignore_merges");
  ExpectRefused(Made(TokenizerJson("gpt2-tiny"), 700), absl::StatusCode::kInvalidArgument,
                "768 ids, the model 700");
  json framed = TokenizerJson("llama-tiny");
  json& single = framed["post_processor"]["single"];
  single.insert(single.begin(), single[0]);
  ExpectRefused(Made(framed), kUnimplemented, "[0, 0] before");
}

TEST(GgufVocabulary, MergesThatNoScoresExpressAreRefused) {
  json missing = TokenizerJson("llama2");
  json& merges = missing["model"]["merges"];
  const std::string last =
      merges.back()[0].get<std::string>() + merges.back()[1].get<std::string>();
  merges.erase(merges.size() - 1);
  ExpectRefused(Made(missing), absl::StatusCode::kUnimplemented, last);
  json without_bytes = TokenizerJson("llama2");
  without_bytes["model"]["vocab"].erase("<0x41>");
  ExpectRefused(Made(without_bytes), absl::StatusCode::kUnimplemented, "255 of 256");
}

}  // namespace
}  // namespace espalier
